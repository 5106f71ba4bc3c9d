"""The plot of a run: latency against offered load. It needs matplotlib, which nothing else here does."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_core.errors import DependencyError
from omni_server.bench.endpoint import Endpoint, Measure
from omni_server.bench.report import LevelResult, decisive

PERCENTILES = {"p50": "-", "p90": "--", "p99": ":"}
"""What is drawn, and with which line."""
COLOURS = ("#0b6cb3", "#c8500a")
COLUMNS = 2
WIDE_RANGE = 10
"""Loads that differ by more than this factor are drawn on a logarithmic axis."""


def require_matplotlib() -> None:
    """Refuse a plot before anything is measured.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise DependencyError(
            "a plot needs matplotlib, which is not installed",
            where="--plot",
            hint="pip install 'omni-server[bench]', or leave --plot out: the table and --json work without it",
        )


def save_plot(results: Sequence[LevelResult], endpoint: Endpoint, path: Path) -> None:
    """Write a PNG with one panel for each time that servers are compared by, and one for throughput.

    Args:
        results: Levels of one kind of load, at least one.
        endpoint: What was measured.
        path: File to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times = [measure for measure in decisive(endpoint) if measure.unit == "s"]
    rows = -(-(len(times) + 1) // COLUMNS)
    figure = Figure(figsize=(10, 3.8 * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    ordered = sorted(results, key=lambda result: result.load.value)
    panels: list[Any] = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for panel in panels[len(times) + 1 :]:
        panel.remove()
    panels = panels[: len(times) + 1]
    for panel, measure in zip(panels, times, strict=False):
        _draw_times(panel, ordered, measure)
    _draw_throughput(panels[-1], ordered, endpoint)
    for panel in panels:
        _dress(panel, ordered)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        columns = len(results[0].servers) if len(results[0].servers) > 1 else len(PERCENTILES)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.suptitle(f"omni bench: {endpoint.path}", fontsize=11)
    figure.savefig(path, format="png", dpi=120)


def _draw_times(panel: Any, results: Sequence[LevelResult], measure: Measure) -> None:
    for index, server in enumerate(results[0].servers):
        for percentile, style in PERCENTILES.items():
            points = [
                (result.load.value, 1000 * getattr(summary, percentile))
                for result in results
                if (summary := result.servers[index].measures.get(measure.name))
            ]
            if points:
                loads, values = zip(*points, strict=True)
                panel.plot(loads, values, style, color=COLOURS[index], marker="o", ms=4, label=f"{server.url} {percentile}")
    panel.set_title(f"{measure.title}, ms", fontsize=10)


def _draw_throughput(panel: Any, results: Sequence[LevelResult], endpoint: Endpoint) -> None:
    loads = [result.load.value for result in results]
    for index in range(len(results[0].servers)):
        values = [result.servers[index].produced_per_s for result in results]
        panel.plot(loads, values, color=COLOURS[index], marker="o", ms=4)
    panel.set_title(f"throughput, {endpoint.produced.title} seconds/s", fontsize=10)


def _dress(panel: Any, results: Sequence[LevelResult]) -> None:
    loads = [result.load.value for result in results]
    if loads[-1] > WIDE_RANGE * loads[0]:
        panel.set_xscale("log")
    panel.set_xticks(loads, [f"{load:g}" for load in loads])
    panel.minorticks_off()
    kind = results[0].load.kind
    panel.set_xlabel("concurrent requests" if kind == "closed" else "offered load, requests/s", fontsize=9)
    panel.margins(y=0.08)
    panel.autoscale_view()
    panel.set_ylim(bottom=0)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
