"""``view``: one self-contained page of what filled the budget, turn by turn, what left and why."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.whole_files import is_written_into
from otel_assembly.cli.choosing import add_choices, chooses, chosen_ledgers
from otel_assembly.cli.jaeger_source import check_jaeger_options, spans_of_jaeger
from otel_assembly.cli.problems import Problems
from otel_assembly.cli.terminal import safe_text
from otel_assembly.errors import ConfigurationError, TranscriptError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.telemetry.store_reader import StoredSpan

_OUTPUT = "assemblies.html"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "view",
        help="write one HTML page that shows, turn by turn, what filled the budget, what left and why",
        description="Read spans (OTLP JSON lines, or a Jaeger) and write one self-contained HTML page: every "
        "conversation as a row of turns, what filled each prompt, what left, by which rule and why. The page opens "
        "from a file and loads nothing.",
        epilog="Texts are in the page only where content capture was on when the spans were recorded, or --with-text "
        "names the transcripts.",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="a file of spans, as OTLP JSON lines; several are merged"
    )
    parser.add_argument("--jaeger", metavar="URL", help="read the spans from a Jaeger, such as http://localhost:16686")
    add_choices(parser)
    parser.add_argument(
        "--trace-link",
        metavar="URL",
        help="where the page's traces are looked at: a Jaeger's address (default: that of --jaeger), or any address "
        "with {trace} in it",
    )
    parser.add_argument(
        "--with-text",
        action="append",
        metavar="FILE",
        help="show what the items say, from the transcript that was replayed; may be repeated",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default=_OUTPUT, help=f"the page to write (default: {_OUTPUT}); - is stdout"
    )
    parser.set_defaults(run=run, turn=None)


def run(arguments: argparse.Namespace) -> int:
    """Write the page; 0, 1 where the spans report no assembly, 2 where they cannot be read."""
    from otel_assembly.page import page_model, render_page, save_page

    if bool(arguments.paths) == bool(arguments.jaeger):
        raise ConfigurationError("name either files of spans or --jaeger URL; see otel-assembly view --help")
    check_jaeger_options(arguments)
    unread = _Unread()
    if arguments.jaeger:
        spans, only = spans_of_jaeger(arguments, unread.add, one=False)
    else:
        spans, only = list(chain.from_iterable(map(unread.spans, arguments.paths))), None
    model = page_model(
        spans,
        title=_title(arguments),
        trace_link=arguments.trace_link or arguments.jaeger,
        files=unread.files,
    )
    unread.print()
    if not model["conversations"]:
        print(f"otel-assembly: {model['spans']:,} spans, and no assembly among them", file=sys.stderr)
        return 1
    if only is not None or chooses(arguments):
        _choose(model, spans, arguments, only)
    if arguments.with_text:
        _add_texts(model, arguments.with_text)
    if arguments.output == "-":
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a text stream at a command line
        sys.stdout.write(render_page(model))
        return 0
    save_page(model, arguments.output)
    # What was written into may be standard output under another name.
    print(_said(model, Path(arguments.output)), file=sys.stderr if is_written_into(arguments.output) else sys.stdout)
    return 0


def _choose(
    model: dict[str, Any], spans: list[StoredSpan], arguments: argparse.Namespace, only: set[str] | None
) -> None:
    """Leave the ledgers that the options choose."""
    from otel_assembly.telemetry.ledger_reader import read_ledgers

    ledgers = read_ledgers(spans, allocations=True).values()
    chosen = {one.id for one in chosen_ledgers(ledgers, arguments, _title(arguments), only)}
    for conversation in model["conversations"]:
        conversation["ledgers"] = [one for one in conversation["ledgers"] if one["id"] in chosen]
    model["conversations"] = [one for one in model["conversations"] if one["ledgers"]]


def _add_texts(model: Mapping[str, Any], paths: Sequence[str]) -> None:
    from otel_assembly.cli.page_files import read_local
    from otel_assembly.page import add_texts

    every = sum(len(conversation["ledgers"]) for conversation in model["conversations"])
    missing = every - add_texts(model, read_local(paths))
    if missing:
        whose = safe_text(", ".join(paths))
        print(
            f"otel-assembly: {_many(missing, 'ledger')} of {every:,} without texts: what {whose} holds is not what "
            "the spans tell of",
            file=sys.stderr,
        )


class _Unread(Problems):
    """What could not be read, for the rest is worth a page; and which file each trace is from."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def spans(self, path: str) -> Iterator[StoredSpan]:
        from otel_assembly.telemetry.store_reader import read_spans

        if Path(path).is_dir():
            raise TranscriptError(path, None, "is a folder; name the files of spans in it")
        for span in read_spans(path, on_problem=lambda line, problem: self.add(f"{path}:{line}: {problem}")):
            self.files.setdefault(span.trace_id, safe_text(Path(path).name))
            yield span


def _title(arguments: argparse.Namespace) -> str:
    if arguments.jaeger:
        return safe_text(arguments.service or arguments.jaeger)
    names = [safe_text(Path(path).name) for path in arguments.paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _said(model: Mapping[str, Any], path: Path) -> str:
    conversations = model["conversations"]
    ledgers = [ledger for conversation in conversations for ledger in conversation["ledgers"]]
    turns = sum(len(ledger["turns"]) for ledger in ledgers)
    problems = sum(ledger.get("problemCount", 0) for ledger in ledgers)
    variants = f" ({_many(len(ledgers), 'ledger')})" if len(ledgers) > len(conversations) else ""
    missing = f"; {_many(problems, 'gap')} in the spans, named on the page" if problems else ""
    size = "" if is_written_into(path) else f", {path.stat().st_size / 1e6:.1f} MB"
    return safe_text(
        f"{path}: {_many(len(conversations), 'conversation')}{variants}, {_many(turns, 'turn')}{size}{missing}"
    )


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
