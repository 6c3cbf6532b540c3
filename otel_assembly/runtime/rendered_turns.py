"""What is rendered of events, and in which order: what the engine counted, with each answer behind its call.

Providers take the results of a response's calls right behind it alone, and one for each call. Which result answers
which call says `history.tool_pairs`, as everywhere; what restates another event costs nothing and is not sent.
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
from otel_assembly.messages.describe import ROLES, EventFacts, EventKind, describe, sendable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What is sent as the answer to a call that nobody has answered yet: no provider takes a call without one.
NO_RESULT_YET: Final = "[no result yet]"
#: How deep the JSON of a model may be nested. What is read more deeply than that on one Python is refused on another,
#: or later by the client that has to send it.
_LEVELS: Final = 100
_TOO_DEEP: Final = f"it is nested more than {_LEVELS} levels deep"
_MEND: Final = "pass our events or chat messages in OpenAI's form, or let the client that made it send it"


@dataclass(slots=True)
class Answer:
    """One call's result.

    Attributes:
        position: Where the event stands that holds it.
        call_id: The call's id, as the event has it.
        content: What the model reads: a text, or the content of a chat message.
        is_error: Whether the tool failed.
        message: The chat message that it is, whole; None where it is part of an event.
    """

    position: int
    call_id: str
    content: Any
    is_error: bool = False
    message: dict[str, Any] | None = None


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
        position: Where it stands.
        event: The event.
        facts: What the engine knows of it.
        calls: The calls that it asks for.
        answers: Their answers, in the order in which they came; of a result without a call, itself.
    """

    position: int
    event: Any
    facts: EventFacts
    calls: list[Call] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

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


def rendered_turns(events: Sequence[Any], provider: str) -> list[RenderedTurn]:
    """The messages that events are, in order, each with the answers to its calls.

    Args:
        events: The events, of any described type.
        provider: Whose form they are rendered in, for errors.

    Raises:
        DescribeError: An event that the engine cannot read.
        RenderError: A tool's result that is none of ours and no chat message.
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
        if facts.kind != EventKind.TOOL_RESULT:
            if facts.closes:
                raise turn.cannot(provider, "it answers calls and is no tool message")
            turn.calls = _calls(turn, provider)
            turns.append(turn)
            asked[position] = turn
            continue
        answers = list(_answers(turn, provider))
        if flags & ORPHAN or not asks:
            turn.answers = answers
            turns.append(turn)
            continue
        for ask, answer in zip(asks, answers, strict=True):
            if ask >= 0:  # else it restates an answer that stands there already
                asked[ask].take(answer)
    return turns


def _calls(turn: RenderedTurn, provider: str) -> list[Call]:
    if isinstance(turn.event, dict):
        listed = len(turn.event.get("tool_calls") or ()) + isinstance(turn.event.get("function_call"), dict)
        if listed != len(turn.facts.opens):
            raise turn.cannot(provider, "it calls tools in another form than 'tool_calls'")
    elif turn.facts.opens and not isinstance(turn.event, (ModelResponse, ToolCallEvent)):
        raise turn.cannot(provider, "it calls tools, and only its own framework knows how")
    return [Call(call.id, call.name, call.arguments) for call in turn.facts.calls]


def _answers(turn: RenderedTurn, provider: str) -> Iterator[Answer]:
    event, position = turn.event, turn.position
    if isinstance(event, ToolResultEvent):
        yield Answer(position, event.parent_id, event.content)
    elif isinstance(event, ToolErrorEvent):
        yield Answer(position, event.parent_id, event.error, is_error=True)
    elif isinstance(event, ToolResultsEvent):
        for one in event.results:
            if isinstance(one, ToolErrorEvent):
                yield Answer(position, one.parent_id, one.error, is_error=True)
            else:
                yield Answer(position, one.parent_id, one.content)
    elif isinstance(event, dict) and ROLES.get(event.get("role", "")) is EventKind.TOOL_RESULT:
        if not turn.facts.closes:
            yield Answer(position, "", event.get("content"), message=event)
        for index, call_id in enumerate(turn.facts.closes):  # recorders join several results to one text
            yield Answer(position, call_id, "" if index else event.get("content"), message=event)
    else:
        raise turn.cannot(provider, "it answers calls in another form than a 'tool' message")


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
