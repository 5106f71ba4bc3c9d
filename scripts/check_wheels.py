"""Check built wheels and the environment that a user's install line made from them, for the `wheels` session of nox.

    python check_wheels.py DIST

Run it outside the checkout, with the Python of that environment. It needs the standard library alone.
"""

from __future__ import annotations

import csv
import importlib.metadata as metadata
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1] / "packages"
BIN = Path(sys.executable).parent
NEEDED = {"omni-core", "omni-connectors", "omni-models-qwen", "omni-server"}
"""What `pip install omni-core omni-models-qwen` must bring."""


def main(dist: Path) -> int:
    """Run every check and return 0; the first that fails ends the program."""
    for wheel in sorted(dist.glob("*.whl")):
        check_contents(wheel)
    check_installed(dist)
    check_commands()
    print("wheels: all checks passed")
    return 0


def check_contents(wheel: Path) -> None:
    """Check that a wheel carries every file of its source folder, and nothing else of the repository."""
    module = wheel.name.split("-")[0]
    source = PACKAGES / module.replace("_", "-") / "src"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expect(f"{module}/py.typed" in found, f"{wheel.name} has no py.typed")
    expect(found == wanted, f"{wheel.name} differs from its sources in {sorted(found ^ wanted)}")


def check_installed(dist: Path) -> None:
    """Check that every first-party distribution came from `dist` and agrees with the others."""
    installed = {d.name: d for d in metadata.distributions() if d.name.startswith("omni-")}
    expect(set(installed) >= NEEDED, f"the install line did not bring {sorted(NEEDED - set(installed))}")
    expect(
        len({d.version for d in installed.values()}) == 1,
        f"versions differ: {[(d.name, d.version) for d in installed.values()]}",
    )
    for name, distribution in installed.items():
        wheels = list(dist.glob(f"{name.replace('-', '_')}-{distribution.version}-*.whl"))
        expect(len(wheels) == 1, f"{name} {distribution.version} did not come from {dist}")
        with zipfile.ZipFile(wheels[0]) as archive:
            record = next(item for item in archive.namelist() if item.endswith(".dist-info/RECORD"))
            built = hashes(archive.read(record).decode())
        expect(built <= hashes(distribution.read_text("RECORD") or ""), f"{name} is not the one in {dist}")


def hashes(record: str) -> set[tuple[str, str]]:
    """Return (path, hash) of every file of a wheel's RECORD, its own line apart."""
    return {(row[0], row[1]) for row in csv.reader(io.StringIO(record)) if row and row[1]}


def check_commands() -> None:
    """Use the installed program as its first user does."""
    run("omni", "--help")
    run("omni", "plugins", "--strict")
    run("omni", "serve", "--help")
    expect("qwen3_tts" in run("omni", "pipelines"), "omni pipelines does not list qwen3_tts")
    with tempfile.TemporaryDirectory() as scratch:
        model = str(Path(scratch) / "tiny")
        run("omni", "tiny", "qwen3_tts", model)
        shown = run("omni", "config", "show", model)
        expect("max_num_seqs" in shown, f"omni config show did not read the bundled deploy file:\n{shown}")
        serve = [str(BIN / "omni"), "serve", model, "--port", "0"]
        refused = subprocess.run(serve, capture_output=True, text=True, timeout=60, check=False)
    expect(refused.returncode == 3, f"without vLLM, omni serve ended with {refused.returncode}, not 3:\n{refused.stderr}")
    expect(
        re.search(r"pip install \S*omni-core\[", refused.stderr) is not None, f"no word on what to install:\n{refused.stderr}"
    )
    expect("Traceback" not in refused.stderr, refused.stderr)


def run(program: str, *arguments: str) -> str:
    """Run an installed program and return its standard output."""
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    expect(done.returncode == 0, f"{program} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"wheels: {program} {' '.join(arguments)}: ok")
    return done.stdout


def expect(condition: bool, message: str) -> None:
    """End the program with a message unless the condition holds."""
    if not condition:
        sys.exit(f"wheels: {message}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
