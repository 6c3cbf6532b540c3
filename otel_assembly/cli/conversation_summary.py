"""One-line summaries of conversations: names, turns, overflows, halts and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import integer, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.telemetry.jaeger import FoundAssembly
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn


class AmbiguousError(ConfigurationError):
    """An error for options that match several conversations, turns or items.

    Attributes:
        choices: A line of text for each match, which the command prints below the message.
    """

    def __init__(self, what: str, choices: Sequence[str]) -> None:
        self.choices = choices
        super().__init__(what)


@dataclass(slots=True)
class ConversationSummary:
    """The summary of one ledger, which holds the turns of one conversation with one agent.

    Attributes:
        ledger: The ledger's id.
        conversation: The conversation's id; None if it has none.
        agent: The agent's name.
        assembler: The assembler's name.
        marks: For each turn number a list of ``overflowed``, ``halted`` and ``error …``; empty if none applies.
    """

    ledger: str
    conversation: str | None = None
    agent: str | None = None
    assembler: str | None = None
    marks: dict[int, list[str]] = field(default_factory=dict)

    def add(self, turn: int, attributes: Mapping[str, Any], marks: list[str]) -> None:
        """Add a turn with its marks; missing names are taken from the turn's span attributes."""
        self.conversation = self.conversation or _text(attributes, names.GEN_AI_CONVERSATION_ID)
        self.agent = self.agent or _text(attributes, names.GEN_AI_AGENT_NAME)
        self.assembler = self.assembler or _text(attributes, names.NAME)
        self.marks[turn] = marks

    def __str__(self) -> str:
        parts = [f"--ledger {self.ledger[:12]}"]
        named = {"conversation": self.conversation, "agent": self.agent, "assembler": self.assembler}
        parts += [f"{what} {name}" for what, name in named.items() if name is not None]
        first, last = min(self.marks, default=None), max(self.marks, default=None)
        turns = "no turn" if first is None else f"turn {first}" if first == last else f"turns {first} to {last}"
        by_mark: dict[str, list[str]] = {}
        for turn in sorted(self.marks):
            for mark in self.marks[turn]:
                by_mark.setdefault(mark, []).append(str(turn))
        marks = "; ".join(f"{mark} {', '.join(ranges_of(turns))}" for mark, turns in by_mark.items())
        return ", ".join([*parts, turns]) + (f": {marks}" if marks else "")


def summary_of(ledger: LedgerHistory) -> ConversationSummary:
    """Return the summary of a ledger that was read from spans."""
    summary = ConversationSummary(ledger.id)
    for turn in ledger.turns:
        summary.add(turn.number, turn.attributes, marks_of(turn))
    return summary


def summaries_of_assemblies(assemblies: Iterable[FoundAssembly]) -> list[ConversationSummary]:
    """Group assemblies that a search in Jaeger found by their ledger, and return a summary of each ledger."""
    summaries: dict[str, ConversationSummary] = {}
    for assembly in assemblies:
        attributes = assembly.attributes
        turn = integer(attributes.get(names.TURN))
        if assembly.ledger and turn is not None:
            summary = summaries.setdefault(assembly.ledger, ConversationSummary(assembly.ledger))
            summary.add(turn, attributes, _marks(attributes))
    return list(summaries.values())


def marks_of(turn: ReportedTurn) -> list[str]:
    """Return the marks of a turn in a summary: ``overflowed``, ``halted``, and ``error …`` for each error type."""
    step_errors = (step.attributes.get(names.ERROR_TYPE) for step in turn.steps)
    return _marks(turn.attributes, [str(error) for error in step_errors if error is not None], halted=bool(turn.halts))


def _marks(attributes: Mapping[str, Any], step_errors: Iterable[str] = (), *, halted: bool = False) -> list[str]:
    errors = dict.fromkeys([*map(str, filter(None, [attributes.get(names.ERROR_TYPE)])), *step_errors])
    halted |= names.ERROR_ASSEMBLY_HALT in errors or bool(integer(attributes.get(names.HALTS_EMITTED)))
    other_marks = {names.ERROR_ASSEMBLY_HALT, names.ERROR_CONTEXT_OVERFLOW}
    return [
        *(["overflowed"] if attributes.get(names.OVERFLOWED) is True else []),
        *(["halted"] if halted else []),
        *(f"error {error}" for error in errors if error not in other_marks),
    ]


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name)
    return None if value is None else str(value)
