"""`omni config memory`: what a deployment takes of each device's memory, before anything starts."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from omni_core.commands.config.arguments import add_deployment, resolve_arguments
from omni_core.commands.output import write, write_json, write_table
from omni_core.deploy.memory import GIB, DeviceMemory, estimate_memory
from omni_core.plugins import plugin_manager

HELP = "Estimate what the deployment takes of each device's memory."
DESCRIPTION = (
    "Add up for each device the weights, by the headers of the checkpoint's files, the KV cache, the reserve for graphs and "
    "the margin. No tensor is read and no GPU is needed. Exits with 1 if a device is too small."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_deployment(parser)
    parser.add_argument("--device-memory", metavar="GIB", type=_gib, help="Memory of each device, for the verdict.")


def _gib(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB") from None
    if not 0 < found < 1 << 20:
        raise argparse.ArgumentTypeError(f"{text} GiB is no size of a device")
    return found


def run(args: argparse.Namespace) -> int:
    """Write the table; return 1 if a device is too small."""
    capacity = None if args.device_memory is None else round(args.device_memory * GIB)
    devices = estimate_memory(resolve_arguments(args, plugin_manager()), capacity)
    if args.json:
        write_json([_plain(device) for device in devices])
    else:
        for position, device in enumerate(devices):
            if position:
                write()
            _write(device)
    return 1 if any(device.verdict == "does not fit" for device in devices) else 0


def _plain(device: DeviceMemory) -> dict[str, object]:
    return {**asdict(device), "reserves": device.reserves, "needed": device.needed, "verdict": device.verdict}


def _write(device: DeviceMemory) -> None:
    capacity = "" if device.capacity is None else f" of {_size(device.capacity)}"
    name = "CPU" if device.device == "cpu" else f"device {device.device}"
    write(f"{name}{capacity}: {device.verdict}")
    rows = [["  stage", "weights", "KV cache", "claim", "graphs", "from"]]
    for share in device.shares:
        sizes = [_size(size) for size in (share.weights, share.kv_cache, share.claim, share.graphs)]
        rows.append([f"  {share.stage}", *sizes, f"{share.what}; {share.basis}"])
    rows.append(["  other programs and margin", "", "", _size(device.reserves), "", ""])
    rows.append(["  needed", "", "", _size(device.needed), "", "" if device.capacity else "give --device-memory for a verdict"])
    write_table(rows)


def _size(size: int | None) -> str:
    return "?" if size is None else f"{size / GIB:.2f} GiB"
