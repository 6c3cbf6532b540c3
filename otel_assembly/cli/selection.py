"""The options with which ``explain`` and ``view`` select a conversation and a turn, and the selection itself."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from otel_assembly.cli.conversation_summary import AmbiguousError, marks_of, summary_of
from otel_assembly.errors import AssemblyError, TranscriptError
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.telemetry.span_values import item_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a conversation."""
    parser.add_argument("--trace", type=_trace_id, metavar="ID", help="select the conversation and turn of this trace")
    parser.add_argument("--overflowed", action="store_true", help="select turns that exceeded their budget")
    parser.add_argument("--conversation", metavar="ID", help="select a conversation by its id")
    parser.add_argument("--agent", metavar="NAME", help="select a conversation by its agent")
    parser.add_argument("--assembler", metavar="NAME", help="select a conversation by its assembler")
    parser.add_argument("--ledger", metavar="ID", help="select a ledger by its id, or the beginning of it")
    parser.add_argument("--transcript", metavar="PATH", help="select the conversation that was replayed from this file")
    parser.add_argument("--service", metavar="NAME", help="with --jaeger: read this service only")
    parser.add_argument("--lookback", metavar="TIME", help="with --jaeger: how far back, such as 2h or 7d (default 2d)")


def _trace_id(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", text):
        raise argparse.ArgumentTypeError(f"must be a trace id, up to 32 hexadecimal digits, got {text!r}")
    return text.lower().rjust(32, "0")


def has_selection(arguments: argparse.Namespace) -> bool:
    """Return whether any option selects among the conversations."""
    named = (arguments.trace, arguments.conversation, arguments.agent, arguments.assembler, arguments.ledger)
    return arguments.overflowed or arguments.transcript is not None or any(value is not None for value in named)


def select_ledgers(
    ledgers: Iterable[LedgerHistory], arguments: argparse.Namespace, where: str, only: Collection[str] | None = None
) -> list[LedgerHistory]:
    """Return the ledgers that the options select.

    Args:
        ledgers: All ledgers that were read.
        arguments: The options.
        where: Where the ledgers were read from, for messages.
        only: The ids of the ledgers to select from; None for all.

    Raises:
        AssemblyError: No ledger matches.
    """
    found = [ledger for ledger in ledgers if only is None or ledger.id in only]
    if not found:
        raise AssemblyError(f"{where}: no assembly found")
    wanted = {
        "id": (arguments.conversation, "conversation"),
        "agent": (arguments.agent, "agent"),
        "assembler": (arguments.assembler, "assembler"),
    }
    for what, (name, attribute) in wanted.items():
        if name is not None:
            values = {ledger.id: getattr(summary_of(ledger), attribute) for ledger in found}
            matching = [ledger for ledger in found if values[ledger.id] == name]
            if not matching:
                known = ", ".join(sorted({str(value) for value in values.values() if value is not None})[:5])
                raise AssemblyError(f"{where}: no conversation has the {what} {name!r}; there are: {known or 'none'}")
            found = matching
    if arguments.ledger is not None:
        exact = [ledger for ledger in found if ledger.id == arguments.ledger]
        found = exact or [ledger for ledger in found if ledger.id.startswith(arguments.ledger)]
        if not found:
            raise AssemblyError(f"{where}: no ledger has the id {arguments.ledger!r}")
    if arguments.transcript is not None:
        found = _of_transcript(found, arguments.transcript, where)
    if arguments.trace is not None:
        found = [ledger for ledger in found if any(turn.trace_id == arguments.trace for turn in ledger.turns)]
        if not found:
            raise AssemblyError(f"{where}: no assembly has the trace {arguments.trace}")
    if arguments.overflowed:
        found = [ledger for ledger in found if any("overflowed" in marks_of(turn) for turn in ledger.turns)]
        if not found:
            raise AssemblyError(f"{where}: no turn overflowed")
    return found


def select_turn(
    found: Sequence[LedgerHistory], arguments: argparse.Namespace, where: str
) -> tuple[LedgerHistory, int, str | None]:
    """Return the ledger and the turn that the options select, and a sentence on an implicit choice.

    Of several overflowed turns, the newest is selected.

    Raises:
        AmbiguousError: Several turns match.
        AssemblyError: No turn matches.
    """
    if arguments.overflowed:
        turns = [(turn, ledger) for ledger in found for turn in ledger.turns if _is_overflowed(turn, arguments)]
        if not turns:
            raise AssemblyError(f"{where}: that turn did not overflow")
        turns.sort(key=lambda pair: -pair[0].end_ns)
        turn, ledger = turns[0]
        others = f", the newest of {len(turns)} that overflowed" if len(turns) > 1 else ""
        return ledger, turn.number, f"turn {turn.number} of {summary_of(ledger)}{others}"
    if len(found) > 1:
        raise AmbiguousError(
            f"found {len(found)} conversations in {where}; select one with --conversation, --agent, --assembler, "
            "--ledger, --trace or --overflowed",
            [str(summary_of(ledger)) for ledger in found],
        )
    (ledger,) = found
    if arguments.turn is not None:
        return ledger, arguments.turn, None
    matching = [turn for turn in ledger.turns if arguments.trace in {None, turn.trace_id}]
    if len(matching) == 1:
        return ledger, matching[0].number, f"turn {matching[0].number} of {summary_of(ledger)}"
    raise AmbiguousError(
        f"found {len(matching)} turns in {where}; select one with --turn or --overflowed",
        [", ".join([f"--turn {turn.number}", *_size(turn), *marks_of(turn)]) for turn in matching],
    )


def _is_overflowed(turn: ReportedTurn, arguments: argparse.Namespace) -> bool:
    is_selected = arguments.trace in {None, turn.trace_id} and arguments.turn in {None, turn.number}
    return is_selected and "overflowed" in marks_of(turn)


def _size(turn: ReportedTurn) -> list[str]:
    return [f"{len(turn.kept):,} item{'s' * (len(turn.kept) != 1)}"] if turn.sent else ["nothing sent"]


def _of_transcript(ledgers: Sequence[LedgerHistory], path: str, where: str) -> list[LedgerHistory]:
    """Return the ledgers of a file's conversations, matched by conversation id, else by the bytes of the messages."""
    from otel_assembly.cli.transcripts import read_transcripts

    ids: set[str] = set()
    sizes: list[list[int]] = []
    for found in read_transcripts([path]):
        if isinstance(found, TranscriptError):
            raise found
        if found.named:
            ids.add(found.id)
            continue
        facts = [describe(message) for message in found.messages]
        first = next((at for at, message in enumerate(facts) if message.kind != EventKind.SYSTEM), len(facts))
        sizes.append([_bytes_of(message.texts) for message in facts[first:]])
    named = [ledger for ledger in ledgers if summary_of(ledger).conversation in ids]
    same_size = {
        ledger.id: len(items)
        for ledger in ledgers
        if summary_of(ledger).conversation is None
        and (items := _sizes_of(ledger))
        and any(items == messages[: len(items)] for messages in sizes)
    }
    # A file is replayed to its end: of conversations with the same beginning, the longest ones match.
    longest = max(same_size.values(), default=0)
    matching = named + [ledger for ledger in ledgers if same_size.get(ledger.id) == longest]
    if not matching:
        raise AssemblyError(f"{where}: no conversation matches one of {path}")
    return matching


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _sizes_of(ledger: LedgerHistory) -> list[int]:
    """Return the bytes of each input item, in order."""
    return [ledger.items[item].bytes for item in sorted(ledger.items, key=item_key) if not item_key(item)[0]]
