"""`omni config schema`: what a deploy file may say, for editors and for people."""

from __future__ import annotations

import argparse

from omni_core.commands.output import write, write_json
from omni_core.deploy.schema_doc import deploy_schema, schema_page
from omni_core.errors import ConfigError
from omni_core.plugins import plugin_manager
from omni_core.registry import pipelines
from omni_core.suggest import way_out

HELP = "Write the JSON Schema of deploy files, for editors."
DESCRIPTION = (
    "Write the JSON Schema of deploy files, of all or of those for one pipeline, or the page of docs that has their fields."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--pipeline", metavar="KEY", help="Only what deploy files of this pipeline may say, stage by stage.")
    form.add_argument("--markdown", action="store_true", help="Write the page docs/deploy-schema.md instead.")


def run(args: argparse.Namespace) -> int:
    """Write the schema or the page."""
    if args.markdown:
        write(schema_page().rstrip())
        return 0
    if args.pipeline is None:
        write_json(deploy_schema())
        return 0
    offers = pipelines(plugin_manager())
    if args.pipeline not in offers:
        hint = way_out(args.pipeline, offers, "pipelines")
        raise ConfigError(f"there is no pipeline {args.pipeline!r}", where="--pipeline", hint=hint)
    write_json(deploy_schema(offers[args.pipeline].record))
    return 0
