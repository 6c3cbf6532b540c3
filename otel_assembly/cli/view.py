"""``view``: write one self-contained HTML page of all turns, with what filled the budget and what was dropped."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.whole_files import is_written_into
from otel_assembly.cli.jaeger_source import check_jaeger_options, spans_of_jaeger
from otel_assembly.cli.logged_spans import is_span_file, spans_of_transcripts
from otel_assembly.cli.problems import Problems
from otel_assembly.cli.selection import add_selection_options, has_selection, select_ledgers
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import ConfigurationError, TranscriptError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.telemetry.store_reader import StoredSpan

_OUTPUT = "assemblies.html"
#: The most conversations that cannot be read, as the page lists them.
_MAX_REFUSALS = 100


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``view`` and its options to the command line."""
    parser = commands.add_parser(
        "view",
        help="write an HTML page that shows what filled the budget on each turn, and what was dropped and why",
        description="Read spans from files (OTLP JSON lines) or a Jaeger, or transcripts such as a log of Claude Code, "
        "and write one self-contained HTML page. It shows the turns of each conversation, what filled each prompt, "
        "what was dropped, by which policy and why. The page loads nothing.",
        epilog="The page contains texts only if content capture was on when the spans were recorded, or if --with-text "
        "names the transcripts.",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="a span file (OTLP JSON lines) or a transcript; several are merged"
    )
    parser.add_argument("--jaeger", metavar="URL", help="read the spans from a Jaeger, such as http://localhost:16686")
    add_selection_options(parser)
    parser.add_argument(
        "--trace-link",
        metavar="URL",
        help="link traces to this Jaeger (default: that of --jaeger), or to an address that contains {trace}",
    )
    parser.add_argument(
        "--with-text",
        action="append",
        metavar="FILE",
        help="show the texts of the items from the transcript that was replayed, or is shown; may be repeated",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default=_OUTPUT, help=f"the page to write (default: {_OUTPUT}); - is stdout"
    )
    parser.set_defaults(run=run, turn=None)


def run(arguments: argparse.Namespace) -> int:
    """Write the HTML page; return 0, or 1 if the spans contain no assembly.

    Raises:
        ConfigurationError: The options do not fit together, or the page cannot be written.
        TranscriptError: The spans cannot be read.
    """
    from otel_assembly.page import page_model, render_page, save_page

    if bool(arguments.paths) == bool(arguments.jaeger):
        raise ConfigurationError("name either span files or --jaeger URL; see otel-assembly view --help")
    check_jaeger_options(arguments)
    files = _SpanFiles()
    if arguments.jaeger:
        spans, only = spans_of_jaeger(arguments, files.add, only_one=False)
    else:
        spans, only = list(chain.from_iterable(map(files.spans, arguments.paths))), None
    link = arguments.trace_link or arguments.jaeger
    model = page_model(spans, title=_title(arguments), trace_link=link, files=files.files)
    if not model["conversations"] and spans and arguments.paths:
        # The spans of other instrumentations contain model calls, but no assemblies.
        replayed = [span for path in arguments.paths for span in files.replayed(path) or ()]
        spans = replayed or spans
        model = page_model(spans, title=_title(arguments), trace_link=link, files=files.files)
    files.print()
    model["refusals"] = files.refusals
    if not model["conversations"]:
        print(f"otel-assembly: no assembly in {model['spans']:,} spans", file=sys.stderr)
        return 1
    if only is not None or has_selection(arguments):
        _keep_selected(model, spans, arguments, only)
    if arguments.with_text:
        _add_texts(model, arguments.with_text)
    if arguments.output == "-":
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a text stream at a command line
        sys.stdout.write(render_page(model))
        return 0
    save_page(model, arguments.output)
    # The output may be standard output under another name, such as /dev/stdout.
    print(_result(model, Path(arguments.output)), file=sys.stderr if is_written_into(arguments.output) else sys.stdout)
    return 0


def _keep_selected(
    model: dict[str, Any], spans: list[StoredSpan], arguments: argparse.Namespace, only: set[str] | None
) -> None:
    """Remove the ledgers that the options do not select from the data of the page."""
    from otel_assembly.telemetry.ledger_reader import read_ledgers

    ledgers = read_ledgers(spans, allocations=True).values()
    selected = {ledger.id for ledger in select_ledgers(ledgers, arguments, _title(arguments), only)}
    for conversation in model["conversations"]:
        conversation["ledgers"] = [ledger for ledger in conversation["ledgers"] if ledger["id"] in selected]
    model["conversations"] = [conversation for conversation in model["conversations"] if conversation["ledgers"]]


def _add_texts(model: Mapping[str, Any], paths: Sequence[str]) -> None:
    from otel_assembly.cli.page_files import read_local
    from otel_assembly.page import add_texts

    total = sum(len(conversation["ledgers"]) for conversation in model["conversations"])
    missing = total - add_texts(model, read_local(paths))
    if missing:
        print(
            f"otel-assembly: no texts for {missing:,} of {_plural(total, 'ledger')}: no conversation in "
            f"{safe_text(', '.join(paths))} matches the spans",
            file=sys.stderr,
        )


class _SpanFiles(Problems):
    """Reads span files; collects the problems in them, and the file name of each trace id in `files`."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}
        self.refusals: list[str] = []

    def add(self, problem: object) -> None:
        """Record a problem; a conversation that cannot be read is also listed on the page."""
        super().add(problem)
        if isinstance(problem, TranscriptError) and len(self.refusals) < _MAX_REFUSALS:
            self.refusals.append(str(problem))

    def replayed(self, path: str) -> list[StoredSpan] | None:
        """Return the spans of the turns of a transcript; None if the file is no transcript."""
        return spans_of_transcripts(path, self.files.setdefault, self.add)

    def spans(self, path: str) -> Iterator[StoredSpan]:
        """Yield the spans of a span file, or of the turns of a transcript."""
        from otel_assembly.telemetry.store_reader import read_spans

        if Path(path).is_dir():
            raise TranscriptError(path, None, "is a folder; name the span files in it")
        if not is_span_file(path):
            replayed = self.replayed(path)
            if replayed is not None:
                yield from replayed
                return
        for span in read_spans(path, on_problem=lambda line, problem: self.add(f"{path}:{line}: {problem}")):
            self.files.setdefault(span.trace_id, safe_text(Path(path).name))
            yield span


def _title(arguments: argparse.Namespace) -> str:
    if arguments.jaeger:
        return safe_text(arguments.service or arguments.jaeger)
    names = [safe_text(Path(path).name) for path in arguments.paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _result(model: Mapping[str, Any], path: Path) -> str:
    conversations = model["conversations"]
    ledgers = [ledger for conversation in conversations for ledger in conversation["ledgers"]]
    turns = sum(len(ledger["turns"]) for ledger in ledgers)
    problems = sum(ledger.get("problemCount", 0) for ledger in ledgers)
    variants = f" ({_plural(len(ledgers), 'ledger')})" if len(ledgers) > len(conversations) else ""
    missing = f"; {_plural(problems, 'problem')} in the spans, listed on the page" if problems else ""
    size = "" if is_written_into(path) else f", {path.stat().st_size / 1e6:.1f} MB"
    return safe_text(
        f"wrote {path}: {_plural(len(conversations), 'conversation')}{variants}, {_plural(turns, 'turn')}"
        f"{size}{missing}"
    )


def _plural(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
