"""A module that takes long to import, for tests of what happens meanwhile."""

from __future__ import annotations

import time

time.sleep(600)
