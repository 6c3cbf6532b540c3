"""Which conversation, and which of its turns: the options of the commands that read spans, and what they choose."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from otel_assembly.cli.told import AmbiguousError, marks_of, told_of
from otel_assembly.errors import AssemblyError, TranscriptError
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.telemetry.span_values import item_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a conversation."""
    parser.add_argument("--trace", type=_trace_id, metavar="ID", help="the conversation of this trace, and its turn")
    parser.add_argument("--overflowed", action="store_true", help="only what overflowed: turns over the budget")
    parser.add_argument("--conversation", metavar="ID", help="the conversation, by its id")
    parser.add_argument("--agent", metavar="NAME", help="the conversation, by the name of its agent")
    parser.add_argument("--assembler", metavar="NAME", help="the conversation, by the name of its assembler")
    parser.add_argument("--ledger", metavar="ID", help="the ledger, by its id or the beginning of it")
    parser.add_argument("--transcript", metavar="PATH", help="the conversation that was replayed from this file")
    parser.add_argument("--service", metavar="NAME", help="with --jaeger: only this service")
    parser.add_argument("--lookback", metavar="TIME", help="with --jaeger: how far back, such as 2h or 7d (default 2d)")


def _trace_id(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", text):
        raise argparse.ArgumentTypeError(f"must be a trace's id, up to 32 hexadecimal digits, got {text!r}")
    return text.lower().rjust(32, "0")


def chooses(arguments: argparse.Namespace) -> bool:
    """Whether any option chooses among conversations."""
    named = (arguments.trace, arguments.conversation, arguments.agent, arguments.assembler, arguments.ledger)
    return arguments.overflowed or arguments.transcript is not None or any(one is not None for one in named)


def chosen_ledgers(
    ledgers: Iterable[LedgerHistory], arguments: argparse.Namespace, where: str, only: Collection[str] | None = None
) -> list[LedgerHistory]:
    """The ledgers that the options choose.

    Args:
        ledgers: All that were read.
        arguments: The options.
        where: Where they were read from, for a message.
        only: The ids of those that were asked for; None: all.

    Raises:
        AssemblyError: None fits.
    """
    found = [one for one in ledgers if only is None or one.id in only]
    if not found:
        raise AssemblyError(f"{where}: no assembly is told of there")
    wanted = {
        "id": (arguments.conversation, "conversation"),
        "agent": (arguments.agent, "agent"),
        "assembler": (arguments.assembler, "assembler"),
    }
    for what, (name, attribute) in wanted.items():
        if name is not None:
            there = {one.id: getattr(told_of(one), attribute) for one in found}
            fitting = [one for one in found if there[one.id] == name]
            if not fitting:
                known = ", ".join(sorted({str(one) for one in there.values() if one is not None})[:5])
                raise AssemblyError(f"{where}: no conversation has the {what} {name!r}; there are: {known or 'none'}")
            found = fitting
    if arguments.ledger is not None:
        exact = [one for one in found if one.id == arguments.ledger]
        found = exact or [one for one in found if one.id.startswith(arguments.ledger)]
        if not found:
            raise AssemblyError(f"{where}: no ledger has the id {arguments.ledger!r}")
    if arguments.transcript is not None:
        found = _of_transcript(found, arguments.transcript, where)
    if arguments.trace is not None:
        found = [one for one in found if any(turn.trace_id == arguments.trace for turn in one.turns)]
        if not found:
            raise AssemblyError(f"{where}: no assembly has the trace {arguments.trace}")
    if arguments.overflowed:
        found = [one for one in found if any("overflowed" in marks_of(turn) for turn in one.turns)]
        if not found:
            raise AssemblyError(f"{where}: no turn overflowed")
    return found


def chosen_turn(
    found: Sequence[LedgerHistory], arguments: argparse.Namespace, where: str
) -> tuple[LedgerHistory, int, str | None]:
    """The turn that the options choose, and a sentence on what others there were; of overflowed turns the newest.

    Raises:
        AmbiguousError: Several fit.
        AssemblyError: None fits.
    """
    if arguments.overflowed:
        turns = [(turn, one) for one in found for turn in one.turns if _fits(turn, arguments)]
        if not turns:
            raise AssemblyError(f"{where}: that turn did not overflow")
        turns.sort(key=lambda pair: -pair[0].end_ns)
        turn, ledger = turns[0]
        others = f", the newest of {len(turns)} that overflowed" if len(turns) > 1 else ""
        return ledger, turn.number, f"turn {turn.number} of {told_of(ledger)}{others}"
    if len(found) > 1:
        raise AmbiguousError(
            f"{len(found)} ledgers are told of in {where}; choose one with --conversation, --agent, --assembler, "
            "--ledger, --trace or --overflowed",
            [str(told_of(one)) for one in found],
        )
    (ledger,) = found
    if arguments.turn is not None:
        return ledger, arguments.turn, None
    fitting = [turn for turn in ledger.turns if arguments.trace in {None, turn.trace_id}]
    if len(fitting) == 1:
        return ledger, fitting[0].number, f"turn {fitting[0].number} of {told_of(ledger)}"
    raise AmbiguousError(
        f"{len(fitting)} turns are told of in {where}; choose one with --turn or --overflowed",
        [", ".join([f"--turn {turn.number}", *_size(turn), *marks_of(turn)]) for turn in fitting],
    )


def _fits(turn: ReportedTurn, arguments: argparse.Namespace) -> bool:
    same = arguments.trace in {None, turn.trace_id} and arguments.turn in {None, turn.number}
    return same and "overflowed" in marks_of(turn)


def _size(turn: ReportedTurn) -> list[str]:
    return [f"{len(turn.kept):,} item{'s' * (len(turn.kept) != 1)}"] if turn.sent else ["nothing sent"]


def _of_transcript(ledgers: Sequence[LedgerHistory], path: str, where: str) -> list[LedgerHistory]:
    """Those of a file's conversations: by their ids, else by the sizes of what their messages say."""
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
        first = next((at for at, one in enumerate(facts) if one.kind != EventKind.SYSTEM), len(facts))
        sizes.append([sum(len(text.encode("utf-8", "surrogatepass")) for text in one.texts) for one in facts[first:]])
    named = [ledger for ledger in ledgers if told_of(ledger).conversation in ids]
    alike = {
        ledger.id: len(came)
        for ledger in ledgers
        if told_of(ledger).conversation is None
        and (came := _sizes_of(ledger))
        and any(came == one[: len(came)] for one in sizes)
    }
    # Of conversations that begin alike, those that go furthest: a file is replayed to its end.
    longest = max(alike.values(), default=0)
    fitting = named + [ledger for ledger in ledgers if alike.get(ledger.id) == longest]
    if not fitting:
        raise AssemblyError(f"{where}: no conversation is one of {path}")
    return fitting


def _sizes_of(ledger: LedgerHistory) -> list[int]:
    """The bytes of each item that came in."""
    return [ledger.items[item].bytes for item in sorted(ledger.items, key=item_key) if not item_key(item)[0]]
