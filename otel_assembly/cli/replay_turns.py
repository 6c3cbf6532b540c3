"""The turns of a transcript: the input of each model call, and the reductions that a log records between calls."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from operator import is_
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_assembly.assembler import Assembler
from otel_assembly.cli.page_files import prompts_and_events
from otel_assembly.decision import Compaction, DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.history import History
from otel_assembly.ledger.ledger import Ledger, Ledgers
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.transcripts import LoggedCall, LoggedReduction, Transcript

__all__ = ["ReplayAssembler", "TurnInput", "turn_inputs"]


@dataclass(slots=True)
class TurnInput:
    """The input of one turn.

    Attributes:
        prompts: The system prompts.
        events: The messages: a `History` that later turns extend, or, if a log states the messages of each call, a list
            of them.
        starts_run: True if a new user request begins with this turn.
        reduction: The reduction that the log records directly before the call; None if there was none.
        edits: The edits that the provider made to the request, according to the log.
    """

    prompts: Sequence[str]
    events: History | list[dict[str, Any]]
    starts_run: bool
    reduction: ReplayedReduction | None = None
    edits: Sequence[ReplayedEdit] = ()


def turn_inputs(transcript: Transcript, first: int = 0) -> Iterator[TurnInput]:
    """Yield the inputs of a transcript's turns in order; the events are valid until the next one is requested.

    Args:
        transcript: The transcript.
        first: The number of the first of these turns.
    """
    if transcript.calls is None:
        yield from islice(_inputs_of_messages(transcript), first, None)
    else:
        yield from _inputs_of_calls(transcript, transcript.calls, first)


def _inputs_of_messages(transcript: Transcript) -> Iterator[TurnInput]:
    prompts, messages = prompts_and_events(transcript, transcript.messages)
    history = History()
    starts_run, has_answer, is_answer = True, False, False
    for message in messages:
        kind = describe(message).kind
        was_answer, is_answer = is_answer, kind in _ANSWERS
        if kind == EventKind.REQUEST and has_answer:
            starts_run, has_answer = True, False
        # A chat message is a whole response. Items of the Responses API have a type and can share one.
        if is_answer and not (was_answer and "type" in message):
            yield TurnInput(prompts, history, starts_run)
            starts_run = False
        has_answer = has_answer or is_answer
        history.append(message)
    if transcript.is_request and not is_answer:
        yield TurnInput(prompts, history, starts_run)


#: The kinds of messages that a model writes: a response, or an item that is a tool call.
_ANSWERS: Final = (EventKind.RESPONSE, EventKind.TOOL_CALL)


def _inputs_of_calls(transcript: Transcript, calls: Sequence[LoggedCall], first: int) -> Iterator[TurnInput]:
    earlier = prompts_and_events(transcript, calls[first - 1].messages)[1] if first else []
    for number, call in enumerate(islice(calls, first, None), first):
        prompts, messages = prompts_and_events(transcript, call.messages)
        reduction, events = None, messages
        if call.reduction is not None:
            before = prompts_and_events(transcript, call.reduction.before)[1]
            reduction = ReplayedReduction(call.reduction, before, messages)
            events = reduction.input_messages()
        edits = [ReplayedEdit(name, numbers) for name, numbers in call.edits.items()]
        yield TurnInput(prompts, events, not number or _has_new_request(messages, earlier), reduction, edits)
        earlier = messages


def _has_new_request(messages: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> bool:
    """Return whether the user's newest request is another one than in the earlier messages."""
    # Most calls repeat the messages of the call before. Describing them each time took 13 of 45 seconds.
    if len(earlier) <= len(messages) and all(map(is_, earlier, messages)):
        return _newest_request(messages[len(earlier) :]) is not None
    return _newest_request(messages) is not _newest_request(earlier)


def _newest_request(messages: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((message for message in reversed(messages) if describe(message).kind == EventKind.REQUEST), None)


class ReplayedReduction:
    """A policy that repeats a reduction of a log: its output is the messages that the model received.

    Args:
        reduction: The reduction.
        before: The messages before the reduction, without system prompts.
        messages: The messages that the model received directly after it, without system prompts.
    """

    kind = "reduction"

    def __init__(
        self, reduction: LoggedReduction, before: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]
    ) -> None:
        self.name = reduction.policy
        self.config = dict(reduction.settings)
        self._reduction = reduction
        self._before = list(before)
        self._messages = list(messages)

    def input_messages(self) -> list[dict[str, Any]]:
        """Return the messages before the reduction, with those that arrived after it."""
        known = {*map(id, self._before), *map(id, self._reduction.created)}
        return [*self._before, *(message for message in self._messages if id(message) not in known)]

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the messages that the model received, with the messages that the summary replaces."""
        kept = set(map(id, self._messages))
        removed = [event for event in events if id(event) not in kept]
        created = [message for message in self._reduction.created if id(message) in kept]
        if created and not self._reduction.is_summary and len(created) == len(removed):
            return Outcome(prompts, self._messages)  # each of them replaces one message in its place
        if not created or not self._reduction.is_summary:
            verdict = Verdict(removed, DecisionOutcome.DROPPED, DecisionReason.POLICY)
            return Outcome(prompts, self._messages, [verdict])
        verdict = Verdict(removed, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, created[0])
        return Outcome(prompts, self._messages, [verdict], compactions=[Compaction(removed, created[0])])

    async def apply(self, prompts: list[str], events: list[Any], context: Context) -> tuple[list[str], list[Any]]:
        """Return the messages that the model received."""
        return prompts, self._messages


class ReplayedEdit:
    """A policy that stands for an edit of the provider, such as the clearing of old tool results by Anthropic.

    A log has only the numbers of an edit, not the edited messages. The policy therefore changes nothing; its step has
    these numbers as settings.

    Args:
        name: The type of the edit.
        numbers: The numbers in the log, by name.
    """

    kind = "reduction"

    def __init__(self, name: str, numbers: Mapping[str, int]) -> None:
        self.name = name
        self.config = dict(numbers)

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the input."""
        return Outcome(prompts, events)

    async def apply(self, prompts: list[str], events: list[Any], context: Context) -> tuple[list[str], list[Any]]:
        """Return the input."""
        return prompts, events


class ReplayAssembler(Assembler):
    """An assembler whose input may be the output of the previous turn, as in a log with compactions.

    Lists of messages get a ledger that recognizes the summaries of earlier turns in the input, and their provenance.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._ledgers = _LoggedLedgers()

    def without_policies(self) -> ReplayAssembler:
        """Return a copy of this assembler with an empty chain; both use the same ledgers."""
        return self._with(())


class _LoggedLedgers(Ledgers):
    """The ledgers of lists of messages, one for each `Context`, and those of a `History`."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: WeakKeyDictionary[Context, Ledger] = WeakKeyDictionary()

    def of(self, events: Sequence[Any], context: Context, identity: tuple[object, ...], recorder: object) -> Ledger:
        if isinstance(events, History):
            return super().of(events, context, identity, recorder)
        return self._logged.setdefault(context, Ledger(observed=True))
