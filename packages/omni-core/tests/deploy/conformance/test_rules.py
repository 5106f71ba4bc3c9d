"""The conformance table, rules.yaml: each rule has a test that exists, or a reason why none can check it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[4]
COUNTS = {
    "PC": 9,
    "SP": 4,
    "RG": 16,
    "EO": 14,
    "DY": 10,
    "SF": 6,
    "MG": 6,
    "BC": 5,
    "PL": 6,
    "PR": 10,
    "SO": 5,
    "SM": 6,
    "DV": 10,
    "CN": 11,
    "DX": 4,
    "DP": 11,
    "FE": 10,
    "MR": 10,
    "BK": 13,
    "EX": 2,
    "RY": 6,
    "LR": 7,
    "NU": 4,
    "MP": 8,
    "WT": 1,
    "CV": 1,
    "RA": 16,
}
"""How many rules each family has, counted from 01."""
BUNDLED = {
    "BD": "qwen2_5_omni qwen3_omni_moe qwen3_omni_moe_thinking qwen3_omni_duplex qwen3_tts qwen3_tts_mrv2 "
    "qwen3_tts_high_concurrency qwen3_tts_high_concurrency_mrv2 qwen3_tts_high_concurrency_mrv2_b4 "
    "qwen3_tts_high_concurrency_mrv2_single_gpu moss_tts_local pipelines",
    "TB": "qwen3_tts qwen3_tts_mrv2 qwen3_tts_high_concurrency qwen3_tts_high_concurrency_mrv2 "
    "qwen3_tts_high_concurrency_mrv2_b4 qwen3_tts_high_concurrency_mrv2_single_gpu qwen3_tts_fused_single_gpu "
    "moss_tts_local moss_tts_local_npu_mrv2 moss_tts_local_2npu_3npu qwen_omni personaplex",
}
IDS = {
    *(f"{family}-{number:02}" for family, count in COUNTS.items() for number in range(1, count + 1)),
    *(f"{family}-{name}" for family, names in BUNDLED.items() for name in names.split()),
    *(f"E{number:02}" for number in range(1, 35)),
}
FOLDERS = {
    "qwen": "packages/omni-models-qwen/tests",
    "moss": "packages/omni-models-moss/tests",
    "server": "packages/omni-server/tests",
    "connectors": "packages/omni-connectors/tests",
    "root": "tests",
}
MODULES = {
    "qwen": "omni_models_qwen",
    "moss": "omni_models_moss",
    "server": "omni_server",
    "connectors": "omni_connectors",
    "root": "psutil",
}
"""What must be installed to collect the tests of a folder."""


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    says: str
    tests: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def places(self) -> list[tuple[str, str]]:
        """The tests as (owner, node id from the root of the repository)."""
        found = []
        for test in self.tests:
            owner, colon, path = test.partition(":") if re.match(r"\w+:[^:]", test) else ("", "", test)
            folder = FOLDERS[owner] if colon else "packages/omni-core/tests"
            found.append((owner, f"{folder}/{path}"))
        return found


RULES = {name: Rule(**row) for name, row in yaml.safe_load((HERE / "rules.yaml").read_text()).items()}
PLACES = sorted({place for rule in RULES.values() for place in rule.places})


def test_table_has_every_rule_and_no_other() -> None:
    assert sorted(RULES.keys() ^ IDS) == []


def test_each_rule_has_a_test_or_a_reason() -> None:
    bare = [name for name, rule in RULES.items() if not rule.tests and not (rule.reason or "").strip()]

    assert bare == []
    assert all(len(rule.says) <= 120 and rule.says.endswith(".") for rule in RULES.values())


def test_most_rules_are_tested() -> None:
    """A table of reasons would prove nothing."""
    untested = [name for name, rule in RULES.items() if not rule.tests]

    assert len(untested) <= 34, untested


def functions(file: Path) -> set[str]:
    """Return the names of a module's tests, without importing it."""
    nodes = ast.walk(ast.parse(file.read_text())) if file.is_file() else ()
    return {
        node.name
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    }


def test_named_tests_are_in_their_files() -> None:
    known = {file: functions(ROOT / file) for file in {place.partition("::")[0] for _, place in PLACES}}
    missing = [
        place for _, place in PLACES if re.sub(r"\[.*", "", place.rpartition("::")[2]) not in known[place.partition("::")[0]]
    ]

    assert missing == []


def is_collected(place: str, collected: set[str]) -> bool:
    """Return whether a test, or a case of it, is among collected ones; pytest numbers cases that have the same id."""
    if not place.endswith("]"):
        return any(node.partition("[")[0] == place for node in collected)
    form = re.compile(re.escape(place[:-1]) + r"(_?\d+)?\]")
    return any(form.fullmatch(node) for node in collected)


def test_named_cases_are_collected_without_an_engine() -> None:
    """Also the ids of parametrised cases, which only pytest knows; of packages that are not here the functions must do."""
    here = [place for owner, place in PLACES if owner not in MODULES or importlib.util.find_spec(MODULES[owner])]
    files = sorted({place.partition("::")[0] for place in here})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not engine and not gpu"]

    # Options for this run, such as -v, would change what is read below.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [*command, *files], capture_output=True, text=True, timeout=240, check=False, cwd=ROOT, env=environment
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    collected = {line for line in done.stdout.splitlines() if "::" in line}
    assert [place for place in here if not is_collected(place, collected)] == []


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("a.py::test_b", True),
        ("a.py::test_b[c]", True),
        ("a.py::test_b[e]", True),
        ("a.py::test_b[d]", False),
        ("a.py::test_", False),
        ("a.py::test_b[cc]", False),
    ],
)
def test_check_of_collected_tests_can_fail(place: str, expected: bool) -> None:
    assert is_collected(place, {"a.py::test_b[c]", "a.py::test_b[e_0]", "a.py::test_b[e_1]"}) is expected


def test_every_row_of_the_catalogue_is_in_the_table() -> None:
    """Each case of the error catalogue names the row that it is about."""
    cases = re.findall(r'^    "(E\d\d)(?:-[\w]+)?": ', HERE.joinpath("test_error_catalogue.py").read_text(), re.MULTILINE)

    assert len(cases) > 60
    assert {name for name in cases if not RULES[name].tests} == set()
