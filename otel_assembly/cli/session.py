"""``session``: list, show and verify the sessions in a log, which contains the messages (envelopes) between agents."""

from __future__ import annotations

import json
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from otel_assembly.cli.session_lines import Lines
    from otel_assembly.sessions import SessionAdapter
    from otel_assembly.sessions.log_reader import LogReader, StoredSession


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``session`` and its options to the command line."""
    parser = commands.add_parser(
        "session",
        help="list, show and verify the sessions of a log",
        description="List the sessions of a log, show one, or verify them. The log is only read, and hubs may append "
        "to it at the same time.",
        epilog="Times are UTC. Set the password in PGPASSWORD or ~/.pgpass, not in the DSN. Exit status 1 if something "
        "is damaged or the session does not exist.",
    )
    parser.add_argument("log", metavar="LOG", help="an SQLite file, or postgresql://…")
    parser.add_argument("session", nargs="?", metavar="ID", help="show the session with this id, or its beginning")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check checksums, order, ids, times and keys of all rows, fold the sessions, and check snapshots",
    )
    parser.add_argument(
        "--adapter",
        dest="adapters",
        action="append",
        metavar="MODULE:CLASS",
        help="import the adapter of a custom protocol, to fold its sessions; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the sessions of a log, show one, or verify them; return 0, or 1 if a session or the log is damaged."""
    from otel_assembly.cli.session_lines import Lines, terminal_width
    from otel_assembly.sessions import open_log

    adapters = {
        (adapter.manifest.type, adapter.manifest.version): adapter
        for adapter in [*_built_in_adapters(), *map(_adapter, arguments.adapters or ())]
    }
    lines = Lines(terminal_width())
    with open_log(arguments.log) as reader:
        stored = None if arguments.session is None else _find(reader, arguments.session)
        if arguments.verify:
            return _verify(reader, reader.sessions() if stored is None else [stored], adapters, lines, arguments)
        if stored is not None:
            return _show(reader, stored, adapters, lines, as_json=arguments.json)
        return _list(reader, lines, as_json=arguments.json)


def _built_in_adapters() -> list[SessionAdapter]:
    from otel_assembly.sessions import ConsultingAdapter, ConversationAdapter, DiscussionAdapter, WorkflowAdapter

    return [ConsultingAdapter(), ConversationAdapter(), DiscussionAdapter(), WorkflowAdapter()]


def _adapter(name: str) -> SessionAdapter:
    from otel_assembly.sessions import SessionAdapter

    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(f"--adapter: {name} does not have the form MODULE:CLASS")
    try:
        imported: Any = reduce(getattr, path.split("."), import_module(module))
        adapter = imported() if isinstance(imported, type) else imported
    except Exception as error:  # an import runs the code of the module
        raise ConfigurationError(f"--adapter: cannot import {name}: {type(error).__name__}: {error}") from error
    if not isinstance(adapter, SessionAdapter):
        raise ConfigurationError(f"--adapter: {name} is not a SessionAdapter")
    return adapter


def _find(reader: LogReader, wanted: str) -> StoredSession:
    exact = reader.session(wanted)
    if exact is not None:
        return exact
    matching: list[StoredSession] = []
    for session in reader.sessions():
        if session.id.startswith(wanted):
            matching.append(session)
        if len(matching) > 1:
            ids = " and ".join(repr(session.id) for session in matching)
            raise ConfigurationError(f"several sessions begin with {wanted!r}, such as {ids}; give more of the id")
    if not matching:
        raise NotFoundError(f"the log has no session {wanted!r}")
    return matching[0]


def _list(reader: LogReader, lines: Lines, *, as_json: bool) -> int:
    from otel_assembly.cli.session_lines import summary_json
    from otel_assembly.sessions.session_summary import read_summary

    count = damaged = 0

    def summaries() -> Iterator[dict[str, Any]]:
        nonlocal count, damaged
        for stored in reader.sessions():
            summary = read_summary(reader, stored)
            count += 1
            damaged += summary.damage is not None
            yield summary_json(summary)
            if not as_json:
                lines.summary(summary)

    if as_json:
        _print_document({}, "sessions", summaries())
    else:
        for _ in summaries():
            pass
        if count == 0:
            print("the log contains no sessions")
    return 1 if damaged else 0


def _show(
    reader: LogReader,
    stored: StoredSession,
    adapters: dict[tuple[str, int], SessionAdapter],
    lines: Lines,
    *,
    as_json: bool,
) -> int:
    from otel_assembly.cli.session_lines import metadata_json
    from otel_assembly.cli.session_reading import Reading

    reading = Reading(reader, stored, adapters)
    if as_json:
        _print_document({"id": stored.id, **metadata_json(reading)}, "envelopes", reading.as_json(), reading.outcome)
    else:
        lines.head(reading)
        for envelope in reading.envelopes():
            lines.envelope(envelope, reading)
        lines.foot(reading)
    return 1 if reading.damage is not None else 0


def _verify(
    reader: LogReader,
    sessions: Iterable[StoredSession],
    adapters: dict[tuple[str, int], SessionAdapter],
    lines: Lines,
    arguments: argparse.Namespace,
) -> int:
    from otel_assembly.sessions.session_check import SessionCheck

    counts = {"sessions": 0, "envelopes": 0, "damaged": 0}
    log_problems: Sequence[str] = [] if arguments.session is not None else list(reader.problems())

    def is_whole() -> bool:
        return not counts["damaged"] and not log_problems

    def check_results() -> Iterator[dict[str, Any]]:
        for stored in sessions:
            check = SessionCheck(reader, stored, adapters)
            problems: list[dict[str, Any]] = []
            for problem in check.problems():
                if not arguments.json and not problems:
                    print(lines.fitted(f"damaged  {stored.id}"))
                problems.append({"row": problem.row, "problem": problem.what})
                if not arguments.json:
                    lines.problem(problem.what)
            counts["sessions"] += 1
            counts["envelopes"] += check.envelopes
            counts["damaged"] += bool(problems)
            folded = check.adapter is not None
            if not arguments.json and not problems:
                lines.session_ok(check, stored.id)
            yield {"id": stored.id, "envelopes": check.envelopes, "folded": folded, "problems": problems}

    if arguments.json:
        _print_document({"problems": log_problems}, "sessions", check_results(), lambda: {"whole": is_whole()})
    else:
        for what in log_problems:
            print("damaged  the log")
            lines.problem(what)
        for _ in check_results():
            pass
        lines.verdict(counts, len(log_problems))
    return 0 if is_whole() else 1


def _print_document(head: dict[str, Any], name: str, items: Iterable[Any], foot: Any = dict) -> None:
    """Print a JSON object: the fields of `head`, then the list `name`, then the fields that `foot` returns.

    The list is printed item by item, so that a long log needs little memory.
    """
    before = json.dumps(head)[1:-1]
    print("{" + (f"{before}, " if before else "") + f"{json.dumps(name)}: [", end="")
    for index, item in enumerate(items):
        print((",\n" if index else "\n") + json.dumps(item), end="")
    after = json.dumps(foot())[1:-1]
    print("\n]" + (f", {after}" if after else "") + "}")
