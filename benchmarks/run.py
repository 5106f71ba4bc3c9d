"""Run the benchmarks one after another and print one table with n, median and ratio.

    .venv/bin/python benchmarks/run.py [--quick] [NAME ...]

NAMEs are config, step_overhead, codec_dispatch, start_to_ready, serving and load; without one, all run. Run it on an idle
machine: the servers and the baseline share its cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rows import Row, as_table, from_json

HERE = Path(__file__).parent
QUICK: dict[str, list[str]] = {
    "config": ["--n", "5"],
    "step_overhead": ["--rounds", "2", "--steps", "60"],
    "codec_dispatch": ["--rounds", "1", "--seconds", "2"],
    "start_to_ready": ["--n", "2"],
    "serving": ["--n", "16"],
    "load": ["--rounds", "1"],
}
LIMIT_S = 3600


def main() -> int:
    """Run what was asked for; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Run the benchmarks and print one table.")
    parser.add_argument("names", nargs="*", choices=[[], *QUICK], metavar="NAME", help=", ".join(QUICK))
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    options = parser.parse_args()
    rows: list[Row] = []
    failed = False
    for name in options.names or QUICK:
        print(f"running {name} ...", file=sys.stderr)
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", *(QUICK[name] if options.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            print(f"{name} failed with exit code {done.returncode}", file=sys.stderr)
            failed = True
            continue
        rows += from_json(done.stdout.splitlines()[-1])
    print(as_table(rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
