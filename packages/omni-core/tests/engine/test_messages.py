from __future__ import annotations

import msgspec
import pytest

from omni_core.connector import PeerGone
from omni_core.engine.messages import Chunk, Failure, Fault, FromHost, Open, Output, Push, ToHost, request_fault
from omni_core.errors import DeadlineError, NotFoundError, RequestError, ServiceError, StageDeadError


@pytest.mark.parametrize(
    ("union", "message"),
    [
        (ToHost, Open("r", b"\x00\x01", {"temperature": 0.5, "stop_token_ids": [1]}, True, 3.5, [1, 2], False)),
        (ToHost, Push("r", 0, 7, b"handle", True)),
        (FromHost, Chunk("r", 1, 0, b"", True, "length", {"frames": 3.0})),
        (FromHost, Output("r", 2, b"x" * 1000, "text", [1, 2], False)),
        (FromHost, Failure("r", Fault("RequestError", "no", "here", "try that", "seed"))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_message_comes_back_as_it_was(union: object, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)

    assert msgspec.msgpack.decode(data, type=union) == message


def test_error_keeps_class_and_fields_across_a_fault() -> None:
    error = RequestError("too long", where="input", hint="cut it", param="text")

    found = Fault.of(error).error()

    assert (type(found), found.message, found.where, found.hint, found.param) == (
        RequestError,
        "too long",
        "input",
        "cut it",
        "text",
    )


def test_subclass_that_others_do_not_know_becomes_its_known_base() -> None:
    class StoreGone(DeadlineError):
        pass

    assert type(Fault.of(StoreGone("late")).error()) is DeadlineError


def test_unknown_exception_becomes_service_error_that_names_it() -> None:
    found = Fault.of(KeyError("weights"), where="stage 1 (vocoder)").error()

    assert type(found) is ServiceError
    assert str(found) == "stage 1 (vocoder): KeyError: 'weights'"


def test_caller_is_told_the_place_of_server_failures_only() -> None:
    assert request_fault(NotFoundError("no such voice"), where="stage 0").where == ""
    assert request_fault(StageDeadError("gone"), where="stage 0").where == "stage 0"


def test_dead_peer_of_a_connector_is_a_dead_stage_for_the_caller() -> None:
    """B09."""
    error = request_fault(PeerGone("replica 0 of stage 0 does not listen"), where="stage 1 (vocoder)").error()

    assert type(error) is StageDeadError
    assert error.http_status == 503
    assert "stage 1 (vocoder): replica 0 of stage 0 does not listen" in str(error)
