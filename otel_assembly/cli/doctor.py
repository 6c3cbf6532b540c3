"""``doctor``: what is here, what counts, where spans would go, and whether anybody would answer there."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from otel_assembly._version import __version__
from otel_assembly.cli.export import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    otlp_endpoint,
    otlp_protocol,
    reachable,
)
from otel_assembly.cli.findings import Finding
from otel_assembly.cli.frameworks import frameworks
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import TokenizerError
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.tokens import TiktokenCounter, counter_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from otel_assembly.cli.findings import Verdict

_PACKAGES = (
    ("opentelemetry-api", True),
    ("opentelemetry-sdk", False),
    ("opentelemetry-distro", False),
    ("opentelemetry-exporter-otlp", False),
    ("opentelemetry-exporter-otlp-json-file", False),
    ("tiktoken", True),
    ("pydantic", True),
)
_MARKS = {"ok": ("✓", "32"), "note": ("•", "33"), "fail": ("✖", "31")}
_PLAIN = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="what is installed, which hooks take on it, what counts tokens, and whether the endpoint answers",
        description="Look at versions, at the frameworks that are installed and which of our hooks take on them (they "
        "are imported for it), at tokenizers, the exporter's endpoint and content capture. Exit status 1 where "
        "something does not work.",
    )
    parser.add_argument("--model", metavar="NAME", help="say which tokenizer answers for this model")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 where something does not work."""
    failed = False
    for title, findings in (
        ("Versions", _versions()),
        ("Frameworks", frameworks()),
        ("Tokenizers", _tokenizers(arguments.model)),
        ("Export", _export()),
        ("Content", _content()),
    ):
        print(f"\n{title}" if title != "Versions" else title)
        for finding in findings:
            failed = failed or finding.verdict == "fail"
            print(f"{finding.indent}  {_mark(finding.verdict)} {finding.what:<38} {safe_text(finding.found)}")
    return 1 if failed else 0


def _mark(verdict: Verdict) -> str:
    if "utf" not in (sys.stdout.encoding or "").lower():
        return _PLAIN[verdict]
    mark, color = _MARKS[verdict]
    return f"\x1b[{color}m{mark}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else mark


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "otel-assembly", __version__)
    yield Finding("ok", "Python", platform.python_version())
    for package, needed in _PACKAGES:
        try:
            yield Finding("ok", package, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding("fail" if needed else "note", package, "not installed")


def _tokenizers(model: str | None) -> Iterator[Finding]:
    for encoding in ("o200k_base", "cl100k_base"):
        try:
            counter = TiktokenCounter(encoding)
            counter.count("ready")
            yield Finding("ok", encoding, "bundled, checksum right")
        except TokenizerError as error:
            yield Finding("fail", encoding, str(error))
    if model is None:
        return
    try:
        answering = counter_for(model)
    except TokenizerError as error:
        yield Finding("fail", model, str(error))
        return
    if answering.method == "exact":
        yield Finding("ok", model, f"counted exactly, by {answering.name}")
    else:
        yield Finding(
            "note", model, f"no public tokenizer: estimated by {answering.name}, calibrated from billed usage"
        )


def _export() -> Iterator[Finding]:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield Finding("note", "OTEL_SDK_DISABLED", "true: nothing is exported")
    endpoint = otlp_endpoint()
    chosen = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT)
    why = reachable(endpoint)
    where = f"OTLP endpoint ({otlp_protocol()})"
    if why is None:
        yield Finding("ok", where, f"{endpoint} answers")
    elif chosen:
        yield Finding("fail", where, f"{endpoint}: nobody answers ({why})")
    else:
        yield Finding("note", where, f"{OTEL_EXPORTER_OTLP_ENDPOINT} is not set; {endpoint}: nobody answers ({why})")


def _content() -> Iterator[Finding]:
    settings = TelemetrySettings.from_environment()
    if settings.content_on_spans:
        yield Finding("note", "message content", f"captured ({settings.content.value.upper()})")
    else:
        yield Finding("ok", "message content", f"not captured ({settings.content.value.upper()})")
    messages = "exported" if settings.capture_alert_message else "not exported"
    yield Finding("ok", "alert messages", messages)
    yield Finding("ok", "alerts, overflows and halts go to", settings.alert_signal.value)
