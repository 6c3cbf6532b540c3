"""``demo``: an agent that knows nothing of us, under ``opentelemetry-instrument``, and what its spans say."""

from __future__ import annotations

import os
import shlex
import shutil
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
from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation import FRAMEWORKS
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.conventions_environment import SPAN_FILE
from otel_assembly.telemetry.span_values import ItemRuns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from otel_assembly.telemetry.store_reader import StoredSpan

#: The framework whose agent is also warned about, and halted; each other one's is a file of its name.
_DEFAULT: Final = "ag2"
_AGENTS: Final = {"ag2": "ag2_support_agent.py"}
_CONVERSATIONS: Final = "conversations.jsonl"
_SECONDS: Final = 120


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="an unmodified agent whose context overflows, offline, with its spans in your terminal",
        description="Run an AG2 support agent that imports nothing of otel-assembly under opentelemetry-instrument, "
        "offline: its window loses the customer's first request, its budget overflows, a loop is warned about, and a "
        f"FATAL alert halts it. Its spans go to a file, and to {OTEL_EXPORTER_OTLP_ENDPOINT} where that is set; their "
        "tree is printed. With --framework, an agent of another framework, whose own reducer loses its first request.",
    )
    parser.add_argument(
        "--framework",
        choices=[*FRAMEWORKS],
        default=_DEFAULT,
        metavar="NAME",
        help=f"whose agent: {', '.join(FRAMEWORKS)} (default: {_DEFAULT}); it has to be installed",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where the spans go (default: a file in the temporary directory)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Play the demonstration; 0, or 1 where the agent failed or no span arrived."""
    from otel_assembly.cli.tree import render_tree
    from otel_assembly.telemetry.store_reader import read_spans, span_tree

    framework: str = arguments.framework
    require("the demonstration", ("opentelemetry.distro", *SPAN_FILES, *TABLES), framework=framework)
    agent = _shipped(_AGENTS.get(framework, f"{framework}_agent.py"))
    # What cannot be read back gets a copy.
    wanted = Path(arguments.output).absolute() if arguments.output else None
    aside = wanted is None or is_written_into(wanted)
    path = Path(tempfile.mkdtemp(prefix="otel-assembly-")) / "spans.jsonl" if aside or wanted is None else wanted
    file_exporter(str(path))
    sent_to = ""
    if os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or os.environ.get(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT):
        otlp_exporter()
        sent_to = otlp_endpoint()
    already = list(read_spans(path)) if path.stat().st_size else []
    known = {(span.trace_id, span.span_id) for span in already}
    print(f"$ opentelemetry-instrument python {agent.name}\n", flush=True)
    exporters = "otel_assembly_file" + (",otlp" if sent_to else "")
    status = _instrumented(agent, path, exporters=exporters, service=agent.stem.replace("_", "-"))
    spans = [span for span in read_spans(path) if (span.trace_id, span.span_id) not in known]
    if status or not spans:
        raise AssemblyError(
            f"{agent} ended with status {status} and left {len(spans)} spans; run it alone to see why: "
            f"{sys.executable} {agent}"
        )
    if aside and wanted is not None:
        write_whole({wanted: path.read_bytes()})
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print("\nIts spans:\n")
    print(render_tree(span_tree(spans), width=width, color=color, ascii=ascii_only), end="")
    print(f"\n{len(spans)} spans are in {path}" + (f" and were sent to {sent_to}" if sent_to else "") + ".")
    # As it was called, so that the lines can be copied where the program is not on the path.
    program = sys.argv[0] if Path(sys.argv[0]).name == "otel-assembly" else "otel-assembly"
    where = shlex.quote(str(path))
    print(f"Where is the first request?  {program} explain --traces {where} {_telling_turn(spans)} --item 0")
    print(f"All of it on one page:       {program} view {where}")
    recorded = shlex.quote(str(_shipped(_CONVERSATIONS)))
    print(f"Recorded conversations:      {program} replay {recorded} --budget 400 --budget 250")
    return 0


def _telling_turn(spans: Sequence[StoredSpan]) -> str:
    """Which turn to ask for the first request: one without it, the last before anything goes wrong, where there is one.

    What would have kept it has an answer there. Of several ledgers, it is asked of the first that lost it.
    """
    assemblies = sorted((one for one in spans if one.name == names.SPAN_ASSEMBLE_CONTEXT), key=attrgetter("start_ns"))
    ledgers = dict.fromkeys(span.attributes[names.LEDGER_ID] for span in assemblies)
    for ledger in ledgers:
        turns = [span for span in assemblies if span.attributes[names.LEDGER_ID] == ledger]
        without = [span for span in turns if _lacks_the_first(span)]
        if without:
            well = [span for span in takewhile(lambda span: span.status != "ERROR", turns) if span in without]
            told = f"--turn {(well or without[:1])[-1].attributes[names.TURN]}"
            return told if len(ledgers) == 1 else f"{told} --ledger {ledger}"
    return "--turn 0"


def _lacks_the_first(span: StoredSpan) -> bool:
    offered, kept = (ItemRuns(span.attributes.get(name)) for name in (names.OFFERED_ITEMS, names.KEPT_ITEMS))
    return "0" in offered and "0" not in kept


def _shipped(name: str) -> Path:
    """An example: beside the sources, or where an installed package has it."""
    beside_the_sources = Path(__file__).parents[2] / "examples" / name
    if beside_the_sources.is_file():
        return beside_the_sources
    for file in metadata.files("otel-assembly") or ():
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise AssemblyError(f"{name} is not where the package was installed; install otel-assembly again")


def _instrumented(agent: Path, path: Path, *, exporters: str, service: str) -> int:
    """Run the agent as ``opentelemetry-instrument`` does, with its spans in a file; its exit status."""
    environment = {
        "OTEL_SERVICE_NAME": service,
        **os.environ,
        "OTEL_TRACES_EXPORTER": exporters,
        SPAN_FILE.name: str(path),
        "PYTHONIOENCODING": sys.stdout.encoding or "utf-8",
    }
    # What the demonstration shows are spans; metrics and logs go where they are asked for.
    environment.setdefault("OTEL_METRICS_EXPORTER", "none")
    environment.setdefault("OTEL_LOGS_EXPORTER", "none")
    launcher = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    try:
        done = subprocess.run(  # noqa: S603  # our own example
            [sys.executable, "-c", launcher, sys.executable, str(agent)],
            env=environment,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C is for this process alone, which ends that one without a traceback
        )
    except subprocess.TimeoutExpired as error:
        raise AssemblyError(f"{agent} did not end within {_SECONDS} seconds") from error
    return done.returncode
