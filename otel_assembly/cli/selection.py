"""Select conversations and turns by the options of ``explain`` and ``view``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from otel_assembly.cli.conversation_summary import AmbiguousError, marks_of, summary_of
from otel_assembly.cli.page_files import prompts_and_events
from otel_assembly.errors import AssemblyError, TranscriptError
from otel_assembly.messages.event_facts import describe
from otel_assembly.telemetry.span_values import item_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options with which ``explain`` and ``view`` select a conversation."""
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
    """Return whether an option selects some of the conversations that were read."""
    named = (arguments.trace, arguments.conversation, arguments.agent, arguments.assembler, arguments.ledger)
    return arguments.overflowed or arguments.transcript is not None or any(value is not None for value in named)


def select_ledgers(
    ledgers: Iterable[LedgerHistory], arguments: argparse.Namespace, source: str, only: Collection[str] | None = None
) -> list[LedgerHistory]:
    """Return the ledgers that the options select; a ledger holds the turns of one conversation with one agent.

    Args:
        ledgers: All ledgers that were read.
        arguments: The options.
        source: The file or the address that the ledgers were read from, for error messages.
        only: The ids of the ledgers to select from; None for all.

    Raises:
        AssemblyError: No ledger matches.
    """
    selected = [ledger for ledger in ledgers if only is None or ledger.id in only]
    if not selected:
        raise AssemblyError(f"{source}: no assembly found")
    criteria = {
        "id": (arguments.conversation, "conversation"),
        "agent": (arguments.agent, "agent"),
        "assembler": (arguments.assembler, "assembler"),
    }
    for what, (name, attribute) in criteria.items():
        if name is not None:
            values = {ledger.id: getattr(summary_of(ledger), attribute) for ledger in selected}
            matching = [ledger for ledger in selected if values[ledger.id] == name]
            if not matching:
                names = ", ".join(sorted({str(value) for value in values.values() if value is not None})[:5])
                raise AssemblyError(f"{source}: no conversation has the {what} {name!r}; there are: {names or 'none'}")
            selected = matching
    if arguments.ledger is not None:
        exact = [ledger for ledger in selected if ledger.id == arguments.ledger]
        selected = exact or [ledger for ledger in selected if ledger.id.startswith(arguments.ledger)]
        if not selected:
            raise AssemblyError(f"{source}: no ledger has the id {arguments.ledger!r}")
    if arguments.transcript is not None:
        selected = _ledgers_of_transcript(selected, arguments.transcript, source)
    if arguments.trace is not None:
        selected = [ledger for ledger in selected if any(turn.trace_id == arguments.trace for turn in ledger.turns)]
        if not selected:
            raise AssemblyError(f"{source}: no assembly has the trace {arguments.trace}")
    if arguments.overflowed:
        selected = [ledger for ledger in selected if any("overflowed" in marks_of(turn) for turn in ledger.turns)]
        if not selected:
            raise AssemblyError(f"{source}: no turn overflowed")
    return selected


def select_turn(
    ledgers: Sequence[LedgerHistory], arguments: argparse.Namespace, source: str
) -> tuple[LedgerHistory, int, str | None]:
    """Return the ledger and the number of the turn that the options select, and a description of this turn.

    The newest turn is selected if ``--overflowed`` matches several. The description tells the user which
    turn was selected; it is None if ``--turn`` alone selects the turn.

    Raises:
        AmbiguousError: Several turns match.
        AssemblyError: No turn matches.
    """
    if arguments.overflowed:
        turns = [(turn, ledger) for ledger in ledgers for turn in ledger.turns if _is_overflowed(turn, arguments)]
        if not turns:
            raise AssemblyError(f"{source}: that turn did not overflow")
        turns.sort(key=lambda pair: -pair[0].end_ns)
        turn, ledger = turns[0]
        others = f", the newest of {len(turns)} that overflowed" if len(turns) > 1 else ""
        return ledger, turn.number, f"turn {turn.number} of {summary_of(ledger)}{others}"
    if len(ledgers) > 1:
        raise AmbiguousError(
            f"found {len(ledgers)} conversations in {source}; select one with --conversation, --agent, --assembler, "
            "--ledger, --trace or --overflowed",
            [str(summary_of(ledger)) for ledger in ledgers],
        )
    (ledger,) = ledgers
    if arguments.turn is not None:
        return ledger, arguments.turn, None
    matching = [turn for turn in ledger.turns if arguments.trace in {None, turn.trace_id}]
    if len(matching) == 1:
        return ledger, matching[0].number, f"turn {matching[0].number} of {summary_of(ledger)}"
    raise AmbiguousError(
        f"found {len(matching)} turns in {source}; select one with --turn or --overflowed",
        [", ".join([f"--turn {turn.number}", *_size(turn), *marks_of(turn)]) for turn in matching],
    )


def _is_overflowed(turn: ReportedTurn, arguments: argparse.Namespace) -> bool:
    is_selected = arguments.trace in {None, turn.trace_id} and arguments.turn in {None, turn.number}
    return is_selected and "overflowed" in marks_of(turn)


def _size(turn: ReportedTurn) -> list[str]:
    return [f"{len(turn.kept):,} item{'s' * (len(turn.kept) != 1)}"] if turn.sent else ["nothing sent"]


def _ledgers_of_transcript(ledgers: Sequence[LedgerHistory], path: str, source: str) -> list[LedgerHistory]:
    """Return the ledgers of the conversations in a transcript file.

    A ledger and a conversation match by conversation id or, if the file has no id, by the messages' sizes in bytes.
    """
    from otel_assembly.transcripts import read_transcripts

    ids: set[str] = set()
    sizes: list[list[int]] = []
    for transcript in read_transcripts([path]):
        if isinstance(transcript, TranscriptError):
            raise transcript
        if transcript.named:
            ids.add(transcript.id)
            continue
        events = prompts_and_events(transcript, transcript.messages)[1]
        sizes.append([_bytes_of(describe(event).texts) for event in events])
    same_id = [ledger for ledger in ledgers if summary_of(ledger).conversation in ids]
    same_size = {
        ledger.id: len(items)
        for ledger in ledgers
        if summary_of(ledger).conversation is None
        and (items := _sizes_of(ledger))
        and any(items == messages[: len(items)] for messages in sizes)
    }
    # A file is replayed to its end. Of several ledgers that match its beginning, the longest ones match the file.
    longest = max(same_size.values(), default=0)
    matching = same_id + [ledger for ledger in ledgers if same_size.get(ledger.id) == longest]
    if not matching:
        raise AssemblyError(f"{source}: no conversation matches one of {path}")
    return matching


def _bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _sizes_of(ledger: LedgerHistory) -> list[int]:
    """Return the size in bytes of each input item, in order, without items that policies made."""
    return [ledger.items[item].bytes for item in sorted(ledger.items, key=item_key) if not item_key(item)[0]]
