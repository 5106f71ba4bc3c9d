"""`omni doctor`: look for faults of this installation without importing anything heavy, and say the way out of each."""

from __future__ import annotations

import argparse
import platform as machine
import sys
from collections.abc import Iterator
from dataclasses import asdict

from omni_core.commands.machine import machine_facts, machine_faults
from omni_core.commands.output import write, write_json, write_table
from omni_core.commands.packages import BESIDE_TORCH, Finding, lockstep_versions, package_faults
from omni_core.commands.plugins import call_plain_hooks
from omni_core.errors import OmniError
from omni_core.platforms import current_platform
from omni_core.plugins import PluginManager, plugin_manager, version_of, vllm_distribution


class DoctorCommand:
    """Show the versions of what matters, and every fault with its way out."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--json", action="store_true", help="Write JSON.")

    def run(self, args: argparse.Namespace) -> int:
        """Write the report; return 1 if there is an error."""
        manager = plugin_manager()
        call_plain_hooks(manager)
        facts, findings = collect_facts(manager), list(find_faults(manager))
        if args.json:
            write_json({"facts": facts, "findings": [asdict(finding) for finding in findings]})
        else:
            write_table([[name, value] for name, value in facts.items()])
            write()
            for finding in findings:
                write(f"{finding.level}: {finding.text}\n  way out: {finding.way_out}")
            if not findings:
                write("nothing is wrong")
        return 1 if any(finding.level == "error" for finding in findings) else 0


def collect_facts(manager: PluginManager) -> dict[str, str]:
    """Return the versions that belong into a report of a fault, and what there is of the machine."""
    vllm = vllm_distribution()
    facts = {"python": sys.version.split()[0], "machine": f"{machine.system()} {machine.machine()}"}
    facts |= lockstep_versions(manager)
    facts["vllm"] = "none" if vllm is None else f"{vllm[1]} (from {vllm[0]})"
    facts |= {name: version_of(name) or "none" for name in ("torch", *BESIDE_TORCH, "transformers")}
    try:
        facts["platform"] = current_platform(manager).name
    except OmniError as error:
        facts["platform"] = f"error: {error}"
    facts |= machine_facts()
    facts |= {f"plugin {report.name}": f"{report.status} {report.reason}".rstrip() for report in manager.reports}
    return facts


def find_faults(manager: PluginManager) -> Iterator[Finding]:
    """Yield every fault."""
    yield from package_faults(manager)
    try:
        platform = current_platform(manager).name
    except OmniError as error:
        yield Finding(
            "error", f"the platform of this machine cannot be told: {error.message}", error.hint or "set OMNI_PLATFORM"
        )
        return
    yield from machine_faults(platform, version_of("torch"))


command = DoctorCommand()
