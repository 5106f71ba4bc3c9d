"""The page about metrics and the dashboard speak of series that exist, and of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from omni_core.observe.requests import REASONS
from omni_core.observe.series import SERIES, Kind

ROOT = Path(__file__).parents[4]
PAGE, DASHBOARD = ROOT / "docs" / "metrics.md", ROOT / "dashboards" / "omni.json"
NAME = re.compile(r"\b(?:omni|vllm:|process_resident)\w*")
OWN_LABELS = {"le", "instance"}

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not beside the package")


def queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [*found, *[item["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]]


def sample_names(name: str, kind: Kind) -> set[str]:
    return {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind is Kind.HISTOGRAM else {name}


def test_the_table_is_that_of_the_code() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `omni_")]

    labels = {item.name: ", ".join(f"`{label}`" for label in item.labels) or "–" for item in SERIES}
    assert rows == [f"| `{item.name}` | {item.kind} | {labels[item.name]} | {item.help} |" for item in SERIES]


def test_every_reason_is_explained() -> None:
    text = PAGE.read_text()

    assert [reason for reason in REASONS if f"`{reason}`" not in text] == []


def test_every_query_of_the_dashboard_names_series_that_exist() -> None:
    known = {name for item in SERIES for name in sample_names(item.name, item.kind)} | {"process_resident_memory_bytes"}

    for query in queries():
        names = set(NAME.findall(query))
        assert names, query
        assert {name for name in names if not name.startswith("vllm:")} <= known, query


def test_every_query_groups_by_labels_that_the_series_has() -> None:
    labels = {item.name: set(item.labels) for item in SERIES}

    for query in queries():
        name = NAME.findall(query)[0]
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        if base not in labels:
            continue
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert {part.strip() for part in group.split(",")} <= labels[base] | OWN_LABELS, query
        for selector in re.findall(r"\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=~|(\w+)!=", selector)[0]) - {""} <= labels[base] | OWN_LABELS, query


def test_panels_have_titles_places_and_legends_of_their_own() -> None:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    for panel in panels:
        assert panel["title"]
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs)


def test_every_series_is_on_the_dashboard_or_is_one_that_only_names() -> None:
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for query in queries() for name in NAME.findall(query)}

    assert {item.name for item in SERIES} - shown == {"omni_stage_info"}


@pytest.mark.engine
def test_series_of_vllm_that_the_page_and_the_dashboard_name_are_vllms() -> None:
    import inspect

    from omni_core.engine.vllm_bridge import PrometheusStatLogger

    made = set(re.findall(r'name="(vllm:\w+)"', inspect.getsource(PrometheusStatLogger)))
    named = {name for text in (*queries(), PAGE.read_text()) for name in re.findall(r"vllm:\w+", text)}
    bases = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in named}

    assert len(bases) > 5
    assert bases <= made
