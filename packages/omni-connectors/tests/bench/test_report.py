"""Numbers that come of samples."""

from __future__ import annotations

import pytest

from omni_connectors.bench import report
from omni_connectors.bench.run import Samples
from omni_connectors.bench.ways import MEMCPY, MESSAGE, SEGMENT

US = 1000


def samples() -> list[Samples]:
    return [
        Samples(MEMCPY, 10**6, [100 * US] * 4, [100 * US] * 4, 400 * US, stream_ns=200 * US, streamed=2),
        Samples(SEGMENT, 10**6, [900 * US, 1000 * US, 1100 * US], [500 * US] * 3, stream_ns=900 * US, streamed=1),
        Samples("Fast", 10**6, [120 * US, 125 * US, 130 * US, 1000 * US], [110 * US] * 4, 2 * 10**9, 500 * US, 4),
        Samples(MESSAGE, 10**6, [30 * US] * 4, [1 * US] * 4, 100 * US, stream_ns=20 * US, streamed=2),
        Samples("Fast", 10, [10 * US] * 4, [5 * US] * 4, stream_ns=8 * US, streamed=1),
    ]


def test_ratios_are_those_of_medians_of_the_same_size() -> None:
    cell = report.make_cells(samples())[2]

    assert cell.p50_us == pytest.approx(127.5)
    assert cell.of_memcpy == pytest.approx(100 / 127.5)
    assert cell.times_segment == pytest.approx(1000 / 127.5)
    assert cell.gb_per_s == pytest.approx(10**6 / 127_500)
    assert cell.cpu_s_per_gb == pytest.approx(2 / 4e6 * 1e9)
    assert cell.stream_gb_per_s == pytest.approx(8.0)
    assert cell.stream_of_memcpy == pytest.approx(8.0 / 10.0)


def test_a_size_without_its_baselines_has_no_ratio() -> None:
    cell = report.make_cells(samples())[4]

    assert (cell.of_memcpy, cell.stream_of_memcpy, cell.times_segment) == (None, None, None)


def test_a_message_without_a_payload_has_times_and_no_rates() -> None:
    cell = report.make_cells(samples())[3]

    assert (cell.nbytes, cell.p50_us, cell.put_p50_us) == (10**6, 30, 1)
    assert (cell.gb_per_s, cell.stream_gb_per_s, cell.cpu_s_per_gb) == (0, 0, 0)
    assert (cell.of_memcpy, cell.stream_of_memcpy, cell.times_segment) == (None, None, None)


def test_the_text_has_a_table_for_each_size() -> None:
    text = report.as_text(report.make_cells(samples()))

    assert [line for line in text.splitlines() if line and not line.startswith(" ")] == ["976.562 KiB", "10 B"]
    assert all(len(line) <= 128 for line in text.splitlines())


@pytest.mark.parametrize(
    ("nbytes", "name"), [(1, "1 B"), (1024, "1 KiB"), (65536, "64 KiB"), (2**20, "1 MiB"), (2**30, "1 GiB")], ids=str
)
def test_sizes_have_names(nbytes: int, name: str) -> None:
    assert report.size_name(nbytes) == name
