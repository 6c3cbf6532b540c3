"""``demo``: run an unmodified example agent under ``opentelemetry-instrument`` and print its spans."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from importlib import metadata
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_assembly._internal.whole_files import is_written_into, write_whole
from otel_assembly.cli.export import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    file_exporter,
    otlp_endpoint,
    otlp_exporter,
)
from otel_assembly.cli.extras import SPAN_FILES, TABLES, require
from otel_assembly.cli.frameworks import framework_name
from otel_assembly.cli.tree import print_tree
from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation import FRAMEWORKS, PROVIDER_CLIENTS
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.conventions_environment import SPAN_FILE
from otel_assembly.telemetry.span_values import ItemRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.telemetry.store_reader import StoredSpan

#: The default framework. Only its agent also shows alerts and a halt.
_DEFAULT: Final = "ag2"
#: The example of each framework, and of the provider clients that have one.
_AGENTS: Final = {
    **{framework: f"{framework}_agent.py" for framework in FRAMEWORKS},
    "ag2": "ag2_support_agent.py",
    **{client: f"{client}_loop.py" for client in ("openai", "anthropic", "google_genai")},
}
_CONVERSATIONS: Final = "conversations.jsonl"
#: The longest run of an agent, in seconds.
_SECONDS: Final = 120


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``demo`` and its options to the command line."""
    parser = commands.add_parser(
        "demo",
        help="run an unmodified agent offline and print the spans of its overflowing context",
        description="Run an unmodified AG2 support agent under opentelemetry-instrument, offline. Its window drops the "
        "customer's first request, its budget overflows, an alert reports a loop, and a FATAL alert halts it. The "
        f"spans are written to a file, sent to {OTEL_EXPORTER_OTLP_ENDPOINT} if that is set, and printed as a tree. "
        "With --framework, run an agent of another framework, whose own reducer drops the first request, or a loop "
        "with a provider's client, which drops the first request itself.",
    )
    parser.add_argument(
        "--framework",
        type=_name_of_example,
        choices=[*_AGENTS],
        default=_DEFAULT,
        metavar="NAME",
        help=f"the agent's framework or client, which has to be installed: {', '.join(_AGENTS)} (default: {_DEFAULT})",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the span file to write (default: a file in the temporary directory)"
    )
    parser.set_defaults(run=run)


def _name_of_example(text: str) -> str:
    name = framework_name(text)
    if name not in _AGENTS:
        clients = ", ".join(client for client in PROVIDER_CLIENTS if client in _AGENTS)
        raise argparse.ArgumentTypeError(f"{name} is instrumented, but has no demo; clients with a demo: {clients}")
    return name


def run(arguments: argparse.Namespace) -> int:
    """Run the example agent of a framework and print its spans; return 0.

    Raises:
        AssemblyError: The agent failed, or recorded no span.
    """
    from otel_assembly.telemetry.store_reader import read_spans

    framework: str = arguments.framework
    require("the demo", ("opentelemetry.distro", *SPAN_FILES, *TABLES), framework=framework)
    agent = _shipped(_AGENTS[framework])
    # A pipe or a device cannot be read back, so the agent writes to a temporary file, which is copied at the end.
    output = Path(arguments.output).absolute() if arguments.output else None
    needs_copy = output is None or is_written_into(output)
    path = Path(tempfile.mkdtemp(prefix="otel-assembly-")) / "spans.jsonl" if needs_copy or output is None else output
    file_exporter(str(path))
    sent_to = ""
    if os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT):
        otlp_exporter()
        sent_to = otlp_endpoint()
    earlier = list(read_spans(path)) if path.stat().st_size else []
    earlier_ids = {(span.trace_id, span.span_id) for span in earlier}
    print(f"$ opentelemetry-instrument python {agent.name}\n", flush=True)
    exporters = "otel_assembly_file" + (",otlp" if sent_to else "")
    status = _run_instrumented(agent, path, exporters=exporters, service=agent.stem.replace("_", "-"))
    spans = [span for span in read_spans(path) if (span.trace_id, span.span_id) not in earlier_ids]
    if status or not spans:
        raise AssemblyError(
            f"{agent} exited with status {status} and recorded {len(spans)} spans; run it alone to see the error: "
            f"{sys.executable} {agent}"
        )
    if needs_copy and output is not None:
        write_whole({output: path.read_bytes()})
    print("\nSpans:\n")
    print_tree(spans)
    print(f"\nwrote {len(spans)} spans to {path}" + (f" and sent them to {sent_to}" if sent_to else ""))
    # Print the program as the user called it, so that the commands can be copied even if it is not on the PATH.
    program = sys.argv[0] if Path(sys.argv[0]).name == "otel-assembly" else "otel-assembly"
    quoted_path = shlex.quote(str(path))
    print(f"Where is the first request?  {program} explain --traces {quoted_path} {_turn_option(spans)} --item 0")
    print(f"All turns on one page:       {program} view {quoted_path}")
    recorded = shlex.quote(str(_shipped(_CONVERSATIONS)))
    print(f"Recorded conversations:      {program} replay {recorded} --budget 400 --budget 250")
    return 0


def _turn_option(spans: Sequence[StoredSpan]) -> str:
    """Return options of ``explain`` that select a turn whose prompt lacks the conversation's first message.

    The last such turn before an error is selected, because ``explain`` can compute what would have kept the message
    only on a turn without an error. If several ledgers dropped their first message, the first ledger is used.
    """
    assemblies = sorted(
        (span for span in spans if span.name == names.SPAN_ASSEMBLE_CONTEXT), key=attrgetter("start_ns")
    )
    ledgers = dict.fromkeys(span.attributes[names.LEDGER_ID] for span in assemblies)
    for ledger in ledgers:
        turns = [span for span in assemblies if span.attributes[names.LEDGER_ID] == ledger]
        lacking = [span for span in turns if _lacks_first_item(span)]
        if lacking:
            healthy = [span for span in takewhile(lambda span: span.status != "ERROR", turns) if span in lacking]
            option = f"--turn {(healthy or lacking[:1])[-1].attributes[names.TURN]}"
            return option if len(ledgers) == 1 else f"{option} --ledger {ledger}"
    return "--turn 0"


def _lacks_first_item(span: StoredSpan) -> bool:
    offered, kept = (ItemRanges(span.attributes.get(name)) for name in (names.OFFERED_ITEMS, names.KEPT_ITEMS))
    return "0" in offered and "0" not in kept


def _shipped(name: str) -> Path:
    """Return the path of a file in ``examples``: in the source tree, or else in the installed package."""
    in_sources = Path(__file__).parents[2] / "examples" / name
    if in_sources.is_file():
        return in_sources
    for file in metadata.files("otel-assembly") or ():
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise AssemblyError(f"{name} is missing from the installed package; reinstall otel-assembly")


def _run_instrumented(agent: Path, path: Path, *, exporters: str, service: str) -> int:
    """Run an agent under ``opentelemetry-instrument``, write its spans to `path`, and return its exit status."""
    environment = {
        "OTEL_SERVICE_NAME": service,
        **os.environ,
        "OTEL_TRACES_EXPORTER": exporters,
        SPAN_FILE.name: str(path),
        "PYTHONIOENCODING": sys.stdout.encoding or "utf-8",
    }
    # The demo shows spans: metrics and logs are exported only if the environment asks for it.
    environment.setdefault("OTEL_METRICS_EXPORTER", "none")
    environment.setdefault("OTEL_LOGS_EXPORTER", "none")
    launcher = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    try:
        completed = subprocess.run(  # noqa: S603  # an example of this package
            [sys.executable, "-c", launcher, sys.executable, str(agent)],
            env=environment,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C reaches this process only, so that the agent prints no traceback
        )
    except subprocess.TimeoutExpired as error:
        raise AssemblyError(f"{agent} did not exit within {_SECONDS} seconds") from error
    return completed.returncode
