"""The `omni` program as `python -m omni_core`, for where its script is not on the path."""

from __future__ import annotations

import sys

from omni_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
