"""What is rendered of events, and in which order: what the engine counted, with each answer behind its call.

Providers take the results of a response's calls right behind it alone, and one for each call. Which result answers
which call says `history.tool_pairs`, as everywhere; what restates another event costs nothing and is not sent, and
neither is a result that answers no call.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import RenderError
from otel_assembly.events import ModelResponse, ToolCallEvent, ToolErrorEvent, ToolResultEvent, ToolResultsEvent
from otel_assembly.history.tool_pairs import ECHO, ORPHAN, Pairing
from otel_assembly.messages.event_facts import ROLES, EventFacts, EventKind, describe, sendable
from otel_assembly.runtime.rendered_parts import CallPart, ResultPart, Text, content_parts, is_chat_message, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.runtime.rendered_parts import Part

#: What is sent as the answer to a call that nobody has answered yet: no provider takes a call without one.
NO_RESULT_YET: Final = "[no result yet]"
#: How deep the JSON of a model may be nested. What is read more deeply than that on one Python is refused on another,
#: or later by the client that has to send it.
_LEVELS: Final = 100
_TOO_DEEP: Final = f"it is nested more than {_LEVELS} levels deep"
_MEND: Final = (
    "pass our events or chat messages in OpenAI's form, or in another provider's; "
    "or let the client that made it send it"
)


@dataclass(slots=True)
class Answer:
    """One call's result.

    Attributes:
        position: The index of the event that contains it.
        call_id: The call's id, as the event has it.
        parts: What the model reads.
        is_error: Whether the tool failed.
        message: The chat message that it is, whole; None if it is part of an event.
        raw: The part of a message that it is; None if it is not in one.
    """

    position: int
    call_id: str
    parts: Sequence[Part]
    is_error: bool = False
    message: dict[str, Any] | None = None
    raw: dict[str, Any] | None = None


@dataclass(slots=True)
class Call:
    """One call of a response, with its answer; None while there is none."""

    id: str
    name: str
    arguments: str
    answer: Answer | None = None


@dataclass(slots=True)
class RenderedTurn:
    """An event that is a message, with the answers to its calls.

    Attributes:
        position: The event's index.
        event: The event.
        facts: What the engine knows of it.
        parts: What it consists of if it is a message dict, results of tools excepted; of a chat message, its content.
        calls: The calls that it asks for.
        answers: Their answers, in the order in which they came.
    """

    position: int
    event: Any
    facts: EventFacts
    parts: Sequence[Part] = ()
    calls: list[Call] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def is_chat(self) -> bool:
        """Whether the event is a message of OpenAI's Chat Completions."""
        return isinstance(self.event, dict) and self.event.get("role") in ROLES and is_chat_message(self.event)

    @property
    def role(self) -> str:
        """Who says the event if it is a message dict: ``system``, ``user`` or ``assistant``."""
        kind = self.facts.kind
        if kind == EventKind.SYSTEM:
            return "system"
        if kind in (EventKind.RESPONSE, EventKind.TOOL_CALL):
            return "assistant"
        role = self.event.get("role")
        return "user" if role is None else _ROLES.get(ROLES.get(role, EventKind.RESPONSE), "user")

    def take(self, answer: Answer) -> None:
        """Put an answer to its call."""
        for call in self.calls:
            if call.answer is None and call.id == answer.call_id:
                call.answer = answer
                break
        self.answers.append(answer)

    def cannot(self, provider: str, problem: str) -> RenderError:
        """The error that says that it cannot be rendered."""
        return RenderError(type(self.event), provider, problem, self.position, _MEND)


_ROLES: Final = {EventKind.SYSTEM: "system", EventKind.RESPONSE: "assistant"}


def rendered_turns(events: Sequence[Any], provider: str) -> list[RenderedTurn]:
    """The messages that events are, in order, each with the answers to its calls.

    Args:
        events: The events, of any described type.
        provider: The name of the form that they are rendered in, for errors.

    Raises:
        DescribeError: An event that the engine cannot read.
        RenderError: An event that calls tools, or answers calls, and is none of ours and no message dict.
    """
    pairing = Pairing()
    turns: list[RenderedTurn] = []
    asked: dict[int, RenderedTurn] = {}
    for position, event in enumerate(events):
        facts = describe(event)
        asks = pairing.answered_by(facts)
        flags = pairing.append(facts)
        if flags & ECHO or not facts.rendered:
            continue
        turn = RenderedTurn(position, event, facts)
        parts = _parts(turn)
        turn.parts = [part for part in parts if not isinstance(part, ResultPart)]
        turn.calls = _calls(turn, provider)
        answers = list(_answers(turn, parts, provider))
        if not flags & ORPHAN:
            for ask, answer in zip(asks, answers, strict=True):
                if ask >= 0:  # else it restates an answer that stands there already
                    asked[ask].take(answer)
        says_more = any(isinstance(part, ResultPart) for part in parts) and turn.parts
        if facts.kind == EventKind.TOOL_RESULT and not says_more:
            continue
        turns.append(turn)
        asked[position] = turn
    return turns


def _parts(turn: RenderedTurn) -> Sequence[Part]:
    """The parts of a message dict; a call and its result in one message, which nobody else has to answer, are texts."""
    if not isinstance(turn.event, dict):
        return ()
    found: list[Part] = []
    opened, closed = list(turn.facts.opens), list(turn.facts.closes)
    for part in parts_of(turn.event):
        if isinstance(part, CallPart):
            if part.id not in opened:
                found += [Text(part.name), Text(part.arguments)]
                continue
            opened.remove(part.id)
        elif isinstance(part, ResultPart):
            if part.call_id not in closed:
                found += part.content
                continue
            closed.remove(part.call_id)
        found.append(part)
    return found


def _calls(turn: RenderedTurn, provider: str) -> list[Call]:
    event, facts = turn.event, turn.facts
    if isinstance(event, dict):
        calls = [Call(part.id, part.name, part.arguments) for part in turn.parts if isinstance(part, CallPart)]
        beside = facts.calls[sum(isinstance(part, CallPart) for part in parts_of(event)) :]
        calls += [Call(call.id, call.name, call.arguments) for call in beside]
        if len(calls) != len(facts.opens):
            raise turn.cannot(provider, "it calls tools in a form that is not known")
        return calls
    if facts.opens and not isinstance(event, (ModelResponse, ToolCallEvent)):
        raise turn.cannot(provider, "it calls tools, and only its own framework knows how")
    return [Call(call.id, call.name, call.arguments) for call in facts.calls]


def _answers(turn: RenderedTurn, parts: Sequence[Part], provider: str) -> Iterator[Answer]:
    event, position = turn.event, turn.position
    if isinstance(event, (ToolResultEvent, ToolErrorEvent)):
        yield _answer(position, event)
    elif isinstance(event, ToolResultsEvent):
        yield from (_answer(position, result) for result in event.results)
    elif isinstance(event, dict):
        results = [part for part in parts if isinstance(part, ResultPart)]
        for part in results:
            yield Answer(position, part.call_id, part.content, part.is_error, raw=part.raw)
        for index, call_id in enumerate(
            turn.facts.closes[len(results) :]
        ):  # recorders join several results to one text
            yield Answer(position, call_id, [] if index else turn.parts, message=event)
    elif turn.facts.closes:
        raise turn.cannot(provider, "it answers calls, and only its own framework knows how")


def _answer(position: int, event: ToolResultEvent | ToolErrorEvent) -> Answer:
    is_error = isinstance(event, ToolErrorEvent)
    text = event.error if isinstance(event, ToolErrorEvent) else event.content
    return Answer(position, event.parent_id, content_parts(text), is_error)


def sendable_json(value: Any) -> Any:
    """A value that is to be sent as JSON, with texts that can be sent; the very same value where they all can."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        made = {sendable_json(key): sendable_json(one) for key, one in value.items()}
        return value if all(map(is_, chain(made, made.values()), chain(value, value.values()))) else made
    if isinstance(value, (list, tuple)):
        parts = [sendable_json(one) for one in value]
        return value if all(part is one for part, one in zip(parts, value, strict=True)) else parts
    return value


def read_json(text: str) -> Any:
    """What a JSON text says, fit to be sent as JSON again.

    Raises:
        ValueError: It is no JSON, holds a number that JSON has none of, or is nested more than 100 levels deep.
    """
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > _LEVELS < _levels(value):
        raise ValueError(_TOO_DEEP)
    return sendable_json(value)


def _levels(value: Any) -> int:
    """How many objects and lists are inside one another."""
    depth, within = 0, [value]
    while within := [one for one in within if isinstance(one, (dict, list))]:
        depth += 1
        within = [part for one in within for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def _finite(number: str) -> float:
    """A number that JSON has: NaN and the infinities are none, and 1e999 is read as one."""
    if not math.isfinite(value := float(number)):
        raise ValueError(number)
    return value


def unique_ids(ids: Sequence[str]) -> list[str]:
    """The ids of one response's calls, each another: a model can write one twice, and each call needs its result."""
    made: list[str] = []
    for one in ids:
        name, again = one, 2
        while name in made or (name != one and name in ids):
            name, again = f"{one}_{again}", again + 1
        made.append(name)
    return made
