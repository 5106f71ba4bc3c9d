"""`omni tiny`: build a tiny checkpoint with random weights."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

from omni_core.commands.output import write
from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager, unique_by_name
from omni_core.suggest import way_out
from omni_core.target import load_target
from omni_core.tiny import TinyModelEntry


class TinyCommand:
    """Build a checkpoint in the real layout whose weights are random: for demos and tests."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        entries = _entries()
        known = "; ".join(f"{name}: {entry.summary}" for name, entry in sorted(entries.items()))
        parser.add_argument("name", metavar="NAME", help=f"Kind of model ({known or 'no plugin offers any'}).")
        parser.add_argument("folder", metavar="DIR", type=Path, help="Folder to make; it must be empty or not exist.")
        parser.add_argument("--variant", help="Variant of the model; by default its first.")
        parser.add_argument("--seed", type=int, default=0, help="Seed of the weights (default: 0).")

    def run(self, args: argparse.Namespace) -> int:
        """Build the checkpoint and say where it is."""
        entry = _choose(args.name)
        variant = entry.variants[0] if args.variant is None else args.variant
        if variant not in entry.variants:
            raise ConfigError(
                f"{entry.name} has no variant {variant!r}",
                where="--variant",
                hint=way_out(variant, entry.variants, "variants"),
            )
        build(entry, args.folder, variant, args.seed)
        write(f"built {entry.name} ({variant}, seed {args.seed}) in {args.folder}")
        return 0


def build(entry: TinyModelEntry, folder: Path, variant: str, seed: int) -> None:
    """Build a checkpoint; the folder is there only once it is complete.

    Raises:
        ConfigError: The folder has something in it, or is a file.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty", where="DIR", hint="name a folder that is empty or does not exist")
    make = cast("Callable[[Path, str, int], None]", load_target(entry.target, where=f"tiny model {entry.name!r}"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(partial, variant, seed)
        partial.chmod(0o755)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _entries() -> dict[str, TinyModelEntry]:
    offers = unique_by_name(plugin_manager().collect("omni_tiny_models"), "tiny model")
    return {name: offer.record for name, offer in offers.items()}


def _choose(name: str) -> TinyModelEntry:
    entries = _entries()
    if name not in entries:
        raise ConfigError(f"there is no tiny model {name!r}", where="NAME", hint=way_out(name, entries, "tiny models"))
    return entries[name]


command = TinyCommand()
