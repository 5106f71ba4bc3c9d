"""Errors say what, where and what to do, and keep that across processes."""

from __future__ import annotations

import pickle

import pytest

from omni_core.errors import ERROR_CLASSES, ConfigError, NotFoundError, OmniError, OverloadedError, RequestError, StageDeadError


def test_overload_keeps_its_retry_time_when_pickled() -> None:
    error = pickle.loads(pickle.dumps(OverloadedError("full", retry_after_s=3, hint="wait")))

    assert (error.retry_after_s, str(error)) == (3, "full (wait)")


def test_an_error_reads_place_then_message_then_hint() -> None:
    error = ConfigError("3 devices for 2 ranks", where="my.yaml:14:14", hint="set two")

    assert str(error) == "my.yaml:14:14: 3 devices for 2 ranks (set two)"


@pytest.mark.parametrize("kind", ERROR_CLASSES.values(), ids=ERROR_CLASSES)
def test_an_error_survives_pickle_with_every_part(kind: type[OmniError]) -> None:
    error = pickle.loads(pickle.dumps(kind("m", where="w", hint="h", param="p")))

    assert type(error) is kind
    assert (error.message, error.where, error.hint, error.param) == ("m", "w", "h", "p")


def test_each_branch_has_its_http_status_and_exit_code() -> None:
    assert (RequestError.http_status, NotFoundError.http_status, StageDeadError.http_status) == (400, 404, 503)
    assert (ConfigError.exit_code, ERROR_CLASSES["DependencyError"].exit_code, OmniError.exit_code) == (2, 3, 1)


def test_every_error_class_of_the_module_can_cross_a_process() -> None:
    def leaves(kind: type[OmniError]) -> set[type[OmniError]]:
        return {kind, *(found for child in kind.__subclasses__() for found in leaves(child))}

    own = {kind for kind in leaves(OmniError) if kind.__module__ == "omni_core.errors"}

    assert own == set(ERROR_CLASSES.values())
