from __future__ import annotations

import logging

import pytest

from omni_core.deploy.notes import collect_warnings
from omni_core.modelkit import first_chunk
from omni_core.modelkit.first_chunk import advise_cut, cut_request


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    first_chunk._say_cut.cache_clear()


def test_a_request_that_asks_for_more_than_a_payload_is_cut_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """TT-15."""
    with caplog.at_level(logging.WARNING, logger=first_chunk.__name__):
        sizes = [cut_request(asked, 10) for asked in (30, 30, 10, 0)]

    assert sizes == [10, 10, 10, 0]
    assert caplog.messages == ["a request's initial_codec_chunk_frames 30 is cut to codec_chunk_frames 10 (said once)"]


def test_another_size_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=first_chunk.__name__):
        cut_request(30, 10)
        cut_request(31, 10)

    assert len(caplog.messages) == 2


def test_an_option_of_the_edge_is_a_warning_of_the_resolution() -> None:
    with collect_warnings() as found:
        for size in (9, 10, 11):
            advise_cut("initial_codec_chunk_frames", size, 10, "here")

    assert found == ["here: initial_codec_chunk_frames 11 is cut to codec_chunk_frames 10"]
