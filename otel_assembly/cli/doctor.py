"""``doctor``: what is here, what counts, where spans would go, and whether anybody would answer there."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import textwrap
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
from otel_assembly.cli.frameworks import frameworks, uncaptured
from otel_assembly.cli.probes import SERVICE
from otel_assembly.cli.stack_probe import StackProbe
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import ConfigurationError, TokenizerError
from otel_assembly.telemetry.conventions_environment import FLUSH_ON_SIGTERM, SDK_METRICS
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.tokens import TiktokenCounter, counter_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
#: Where what was found begins, and where it goes on in a terminal that is too narrow for a column.
_COLUMN = 38
_NARROW = 100
_WAIT = 30.0
_AUTOGEN_WITHOUT_TRACING = "AUTOGEN_DISABLE_RUNTIME_TRACING"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="what is installed, which hooks take on it, what counts tokens, and whether the endpoint answers",
        description="Look at versions, at the frameworks that are installed and which of our hooks take on them (they "
        "are imported for it), at what else is installed that calls models and is not captured, at tokenizers, the "
        "exporter's endpoint and content capture. With --jaeger, --prometheus or --alertmanager, also at a running "
        "stack: a probe goes to the exporter's endpoint, and is looked for where it should come out. Exit status 1 "
        "where something does not work.",
        epilog=f"The probes are of the service {SERVICE}, and no assembly: no panel and no rule counts them.",
    )
    parser.add_argument("--model", metavar="NAME", help="say which tokenizer answers for this model")
    stack = parser.add_argument_group("a running stack")
    stack.add_argument("--jaeger", metavar="URL", help="send a span and find it there, such as http://localhost:16686")
    stack.add_argument(
        "--prometheus",
        metavar="URL",
        help="send a metric and find it there, such as http://localhost:9090; are our alert rules loaded there, and "
        "does it know an Alertmanager?",
    )
    stack.add_argument(
        "--alertmanager",
        metavar="URL",
        help="has the alert that always fires come there, such as http://localhost:9093?",
    )
    stack.add_argument(
        "--wait",
        type=_seconds,
        metavar="SECONDS",
        help=f"how long each is waited for, at most (default {_WAIT:.0f}); longer than a tail sampler's decision_wait",
    )
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:5]) <= 3600:
        raise argparse.ArgumentTypeError(f"must be a whole number of seconds from 1 to 3600, got {text!r}")
    return float(text)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; 1 where something does not work."""
    sections: list[tuple[str, Iterable[Finding]]] = [
        ("Versions", _versions()),
        ("Frameworks", frameworks()),
        ("Not captured", uncaptured()),
        ("Tokenizers", _tokenizers(arguments.model)),
        ("Export", _export()),
        ("Content", _content()),
    ]
    if any(url is not None for url in (arguments.jaeger, arguments.prometheus, arguments.alertmanager)):
        seconds = arguments.wait or _WAIT
        probe = StackProbe(
            jaeger=arguments.jaeger,
            prometheus=arguments.prometheus,
            alertmanager=arguments.alertmanager,
            seconds=seconds,
        )
        sections.append((f"Stack (each is waited for, {seconds:g} s at most)", probe.findings()))
    elif arguments.wait is not None:
        raise ConfigurationError(
            "--wait is for what is looked for in a stack; name --jaeger, --prometheus or --alertmanager"
        )
    failed = False
    for title, findings in sections:
        print(f"\n{title}" if title != "Versions" else title)
        for finding in findings:
            failed = failed or finding.verdict == "fail"
            print(_line(finding), flush=True)
    return 1 if failed else 0


def _line(finding: Finding) -> str:
    line = f"{finding.indent}  {_mark(finding.verdict)} {finding.what:<{_COLUMN}} {safe_text(finding.found)}"
    if not sys.stdout.isatty():
        return line  # whoever reads it from a pipe looks for lines
    width = shutil.get_terminal_size().columns
    hanging = _COLUMN + 5 if width >= _NARROW else 6
    # What sets a colour takes no room.
    invisible = len(_mark(finding.verdict)) - 1
    first, *rest = textwrap.wrap(
        line, width + invisible, drop_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    if not rest:
        return line
    told = line[len(first) :].lstrip()
    indent = " " * hanging
    more = textwrap.wrap(
        told, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join([first.rstrip(), *more])


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
    if os.environ.get(SDK_METRICS.name, "").strip().lower() == "true":
        yield Finding("ok", "spans that the SDK loses", "counted")
    else:
        yield Finding("note", "spans that the SDK loses", f"not counted; {SDK_METRICS.name}=true counts them")
    yield from _sigterm()


def _sigterm() -> Iterator[Finding]:
    """Whether a server that ends by SIGTERM itself exports its last spans."""
    value = os.environ.get(FLUSH_ON_SIGTERM.name, "").strip()
    if value.lower() not in {"", "false", "0", "no", "off"}:
        yield Finding("ok", "SIGTERM", f"opentelemetry-instrument flushes ({FLUSH_ON_SIGTERM.name}={value})")
        return
    try:
        metadata.version("uvicorn")
    except metadata.PackageNotFoundError:
        return
    yield Finding(
        "note",
        "SIGTERM",
        "uvicorn is installed: on SIGTERM it ends without exporting its last spans and metrics. "
        f"{FLUSH_ON_SIGTERM.name}=true exports them under opentelemetry-instrument, "
        "otel_assembly.telemetry.FlushOnShutdown(app) in any ASGI server",
    )


def _content() -> Iterator[Finding]:
    settings = TelemetrySettings.from_environment()
    if settings.content_on_spans:
        yield Finding("note", "message content", f"captured ({settings.content.value.upper()})")
    else:
        yield Finding("ok", "message content", f"not captured ({settings.content.value.upper()})")
    messages = "exported" if settings.capture_alert_message else "not exported"
    yield Finding("ok", "alert messages", messages)
    yield Finding("ok", "alerts, overflows and halts go to", settings.alert_signal.value)
    yield from _content_of_others()


def _content_of_others() -> Iterator[Finding]:
    """What AutoGen's runtime writes onto spans of its own as soon as there is a tracer provider, as ours makes one."""
    try:
        metadata.version("autogen-core")
    except metadata.PackageNotFoundError:
        return
    # AutoGen knows no other spelling of it.
    if os.environ.get(_AUTOGEN_WITHOUT_TRACING) == "true":
        yield Finding("ok", "AutoGen's runtime", f"opens no spans of its own ({_AUTOGEN_WITHOUT_TRACING}=true)")
    else:
        yield Finding(
            "note",
            "AutoGen's runtime",
            "writes each message that its agents exchange whole onto spans of its own, whatever stands above; "
            f"{_AUTOGEN_WITHOUT_TRACING}=true leaves them out",
        )
