"""Where traces go: OpenTelemetry's own variables of the environment, which the server and the stages share."""

from __future__ import annotations

import os
from collections.abc import Mapping

TRACES_ENDPOINT_ENV = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
"""The flag `--otlp-traces-endpoint` sets it."""
_BASE_ENV = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL_ENVS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def traces_endpoint(environ: Mapping[str, str] | None = None) -> str | None:
    """Return where traces go, None if nothing is traced."""
    environ = os.environ if environ is None else environ
    if endpoint := environ.get(TRACES_ENDPOINT_ENV):
        return endpoint
    base = environ.get(_BASE_ENV)
    if base and traces_protocol(environ).startswith("http"):
        return f"{base.rstrip('/')}/v1/traces"
    return base or None


def traces_protocol(environ: Mapping[str, str] | None = None) -> str:
    """Return the protocol in which traces are sent: `grpc`, which is the default, or `http/protobuf`."""
    environ = os.environ if environ is None else environ
    return next((environ[name] for name in _PROTOCOL_ENVS if environ.get(name)), "grpc")
