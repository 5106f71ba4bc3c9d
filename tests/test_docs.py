"""Pages and fragments that people read: links lead somewhere, commands exist, fragments have their form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("examples/**/*.md")]
)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FRAGMENTS = sorted(ROOT.glob("changelog.d/*.md"))
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for name, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(name + anchor)

    assert broken == []


def test_every_page_of_docs_is_listed_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()

    missing = [page.name for page in ROOT.glob("docs/*.md") if page.name != "index.md" and f"({page.name})" not in index]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_named_in_a_page_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/.])((?:scripts|benchmarks|examples)/[\w./-]*\w)", page.read_text()))

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_changelog_fragment_begins_with_its_package(fragment: Path) -> None:
    assert re.fullmatch(r"(\d+|\+[\w-]+)\.(added|changed|fixed|removed)\.md", fragment.name)
    assert fragment.read_text().split(maxsplit=1)[0].strip("`:") in PACKAGES


def test_sessions_named_in_contributing_exist() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))

    named = set(re.findall(r"nox -s \"?(\w+)", (ROOT / "CONTRIBUTING.md").read_text()))

    assert named
    assert named <= sessions
