import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from omni_core.errors import ConfigError
from omni_core.logs import setup_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_line_has_process_level_place_and_message() -> None:
    stream = io.StringIO()
    setup_logging("stage0-talker", stream=stream)

    logging.getLogger("omni_core.test").info("stage %d ready", 0)

    form = r"\(stage0-talker pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[test_logs\.py:\d+\] stage 0 ready\n"
    assert re.fullmatch(form, stream.getvalue())


def test_json_form_is_one_object_for_each_record() -> None:
    stream = io.StringIO()
    setup_logging("server", form="json", stream=stream)

    logging.getLogger("omni_core.test").warning('a "quoted" word')

    record = json.loads(stream.getvalue())
    assert record["message"] == 'a "quoted" word'
    assert (record["process"], record["level"]) == ("server", "WARNING")


def test_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging("a", stream=first)
    setup_logging("b", stream=second)

    logging.getLogger("omni_core.test").info("once")

    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_others_are_heard_from_warning_on() -> None:
    stream = io.StringIO()
    setup_logging("server", level="debug", stream=stream)

    logging.getLogger("httpx").info("chatter")
    logging.getLogger("httpx").warning("trouble")

    assert "chatter" not in stream.getvalue()
    assert "trouble" in stream.getvalue()


@pytest.mark.parametrize("wrong", [{"level": "LOUD"}, {"form": "xml"}], ids=["level", "form"])
def test_unknown_setting_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="use one of"):
        setup_logging("server", **wrong)  # type: ignore[arg-type]
