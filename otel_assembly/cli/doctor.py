"""``doctor``: check the installed versions, the hooks in frameworks, the tokenizers, the export and a running stack."""

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
from otel_assembly.cli.frameworks import framework_findings, framework_name, uncaptured
from otel_assembly.cli.probes import SERVICE
from otel_assembly.cli.stack_probe import StackProbe
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import ConfigurationError, TokenizerError
from otel_assembly.instrumentation import INSTRUMENTORS
from otel_assembly.telemetry.conventions_environment import FLUSH_ON_SIGTERM, SDK_METRICS
from otel_assembly.telemetry.settings import TelemetrySettings
from otel_assembly.tokens import TiktokenCounter, counter_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.cli.findings import Verdict

#: The packages whose versions are printed, and whether each is required.
_PACKAGES = (
    ("opentelemetry-api", True),
    ("opentelemetry-sdk", False),
    ("opentelemetry-distro", False),
    ("opentelemetry-exporter-otlp", False),
    ("opentelemetry-exporter-otlp-json-file", False),
    ("tiktoken", True),
    ("pydantic", True),
)
#: The mark and the color of each verdict, and its text for terminals without Unicode.
_MARKS = {"ok": ("✓", "32"), "note": ("•", "33"), "fail": ("✖", "31")}
_PLAIN = {"ok": "ok  ", "note": "note", "fail": "FAIL"}
#: The width of the left column, and the narrowest terminal on which wrapped text continues in the right column.
_COLUMN = 38
_NARROW = 100
#: The default of ``--wait``, in seconds.
_WAIT = 30.0
_AUTOGEN_WITHOUT_TRACING = "AUTOGEN_DISABLE_RUNTIME_TRACING"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``doctor`` and its options to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation, the hooks, the tokenizers and the OTLP endpoint",
        description="Check the installed versions, the hooks of the installed frameworks (which are imported), clients "
        "and frameworks whose model calls are not captured, the tokenizers, the OTLP endpoint, and content capture. "
        "With --jaeger, --prometheus or --alertmanager, also check a running stack: send a probe to the OTLP endpoint "
        "and look for it there. Exit status 1 if a check fails.",
        epilog=f"The probes belong to the service {SERVICE} and are not assemblies: no panel and no rule counts them.",
    )
    parser.add_argument(
        "frameworks",
        nargs="*",
        type=framework_name,
        metavar="FRAMEWORK",
        help=f"check these frameworks and clients only: {', '.join(INSTRUMENTORS)} (default: all)",
    )
    parser.add_argument("--model", metavar="NAME", help="name the tokenizer for this model")
    stack = parser.add_argument_group("a running stack")
    stack.add_argument("--jaeger", metavar="URL", help="send a span, find it here; such as http://localhost:16686")
    stack.add_argument(
        "--prometheus",
        metavar="URL",
        help="send a metric, find it here, and check the alert rules and the Alertmanager; such as "
        "http://localhost:9090",
    )
    stack.add_argument(
        "--alertmanager",
        metavar="URL",
        help="find the alert that always fires here; such as http://localhost:9093",
    )
    stack.add_argument(
        "--wait",
        type=_seconds,
        metavar="SECONDS",
        help=f"longest wait for each check (default: {_WAIT:.0f}); set it above the decision_wait of a tail sampler",
    )
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:5]) <= 3600:
        raise argparse.ArgumentTypeError(f"must be a whole number of seconds from 1 to 3600, got {text!r}")
    return float(text)


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print a line for each finding; return 1 if a check failed, else 0.

    Raises:
        ConfigurationError: ``--wait`` is used without a server of a stack.
    """
    sections: list[tuple[str, Iterable[Finding]]] = [
        ("Versions", _versions()),
        ("Frameworks", framework_findings(arguments.frameworks or INSTRUMENTORS)),
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
        sections.append((f"Stack (each check waits for at most {seconds:g} s)", probe.findings()))
    elif arguments.wait is not None:
        raise ConfigurationError("--wait needs a check of a stack; add --jaeger, --prometheus or --alertmanager")
    failed = False
    for title, findings in sections:
        print(f"\n{title}" if title != "Versions" else title)
        for finding in findings:
            failed = failed or finding.verdict == "fail"
            print(_line(finding), flush=True)
    return 1 if failed else 0


def _line(finding: Finding) -> str:
    line = f"{finding.indent}  {_mark(finding.verdict)} {finding.subject:<{_COLUMN}} {safe_text(finding.result)}"
    if not sys.stdout.isatty():
        return line  # one line per finding, for grep
    width = shutil.get_terminal_size().columns
    hanging = _COLUMN + 5 if width >= _NARROW else 6
    # The escape sequences that color the mark take no columns.
    invisible = len(_mark(finding.verdict)) - 1
    first, *rest = textwrap.wrap(
        line, width + invisible, drop_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    if not rest:
        return line
    text, indent = line[len(first) :].lstrip(), " " * hanging
    more = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
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
            TiktokenCounter(encoding).count("ready")
            yield Finding("ok", encoding, "bundled, checksum correct")
        except TokenizerError as error:
            yield Finding("fail", encoding, str(error))
    if model is None:
        return
    try:
        counter = counter_for(model)
    except TokenizerError as error:
        yield Finding("fail", model, str(error))
        return
    if counter.method == "exact":
        yield Finding("ok", model, f"counted exactly, by {counter.name}")
    else:
        yield Finding("note", model, f"no public tokenizer: estimated by {counter.name}, calibrated from billed usage")


def _export() -> Iterator[Finding]:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield Finding("note", "OTEL_SDK_DISABLED", "true: nothing is exported")
    endpoint = otlp_endpoint()
    configured = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT)
    reason = reachable(endpoint)
    label = f"OTLP endpoint ({otlp_protocol()})"
    if reason is None:
        yield Finding("ok", label, f"{endpoint} answers")
    elif configured:
        yield Finding("fail", label, f"{endpoint} does not answer ({reason})")
    else:
        yield Finding("note", label, f"{OTEL_EXPORTER_OTLP_ENDPOINT} is not set; {endpoint} does not answer ({reason})")
    if os.environ.get(SDK_METRICS.name, "").strip().lower() == "true":
        yield Finding("ok", "spans dropped by the SDK", "counted")
    else:
        yield Finding("note", "spans dropped by the SDK", f"not counted; set {SDK_METRICS.name}=true to count them")
    yield from _sigterm()


def _sigterm() -> Iterator[Finding]:
    """Yield a finding on whether a process exports its last spans and metrics when SIGTERM ends it."""
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
        "uvicorn is installed: on SIGTERM it exits without exporting its last spans and metrics. To export them, set "
        f"{FLUSH_ON_SIGTERM.name}=true under opentelemetry-instrument, or wrap the app of any ASGI server in "
        "otel_assembly.telemetry.FlushOnShutdown(app)",
    )


def _content() -> Iterator[Finding]:
    settings = TelemetrySettings.from_environment()
    if settings.content_on_spans:
        yield Finding("note", "message content", f"captured ({settings.content.value.upper()})")
    else:
        yield Finding("ok", "message content", f"not captured ({settings.content.value.upper()})")
    messages = "exported" if settings.capture_alert_message else "not exported"
    yield Finding("ok", "alert messages", messages)
    yield Finding("ok", "alerts, overflows and halts are sent as", settings.alert_signal.value)
    yield from _autogen_content()


def _autogen_content() -> Iterator[Finding]:
    """Yield a finding on the spans of AutoGen's own runtime, which contain whole messages, if AutoGen is installed."""
    try:
        metadata.version("autogen-core")
    except metadata.PackageNotFoundError:
        return
    # AutoGen accepts no other spelling of true.
    if os.environ.get(_AUTOGEN_WITHOUT_TRACING) == "true":
        yield Finding("ok", "AutoGen's runtime", f"creates no spans ({_AUTOGEN_WITHOUT_TRACING}=true)")
    else:
        yield Finding(
            "note",
            "AutoGen's runtime",
            "records the whole content of messages between agents on its own spans, whatever the settings above; set "
            f"{_AUTOGEN_WITHOUT_TRACING}=true to disable these spans",
        )
