"""Events in the form in which GenAI's spans carry messages; asked for only where content is exported."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.util.genai import types

from otel_assembly.errors import DescribeError
from otel_assembly.events import Event, ToolResultsEvent
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.runtime.rendered_turns import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from otel_assembly.messages.event_facts import EventFacts

_ROLES: Final = {
    EventKind.RESPONSE: types.Role.ASSISTANT,
    EventKind.TOOL_CALL: types.Role.ASSISTANT,
    EventKind.TOOL_RESULT: types.Role.TOOL,
    EventKind.SYSTEM: types.Role.SYSTEM,
}


class Content:
    """Makes texts, messages and definitions of tools fit to leave.

    Args:
        redacted: Runs on every text.
    """

    def __init__(self, redacted: Callable[[str], str]) -> None:
        self._redacted = redacted

    def instructions(self, prompts: Iterable[str]) -> list[types.SystemInstructionPart]:
        """System prompts."""
        return [types.TextPart(self._redacted(prompt)) for prompt in prompts if prompt]

    def inputs(self, events: Iterable[Any]) -> list[types.InputMessage]:
        """What a model or an agent is given; what nothing is known of is left out."""
        return [types.InputMessage(role, parts) for role, parts in self._messages(events)]

    def outputs(self, events: Iterable[Any]) -> list[types.OutputMessage]:
        """What a model or an agent has answered."""
        return [types.OutputMessage(role, parts) for role, parts in self._messages(events)]

    def tools(self, definitions: Iterable[Mapping[str, Any]]) -> list[types.ToolDefinition]:
        """Definitions of tools in OpenAI's form."""
        functions = [one.get("function") or {} for one in definitions]
        return [
            types.FunctionToolDefinition(
                name=str(one.get("name", "")),
                description=self._redacted(str(one.get("description") or "")),
                parameters=self.arguments(json.dumps(one.get("parameters"), default=str)),
            )
            for one in functions
        ]

    def text(self, text: str) -> str:
        """A text."""
        return self._redacted(text)

    def arguments(self, arguments: str) -> Any:
        """Arguments as a model wrote them: what their JSON says, where it is one."""
        text = self._redacted(arguments)
        try:
            return read_json(text)
        except ValueError:
            return text

    def _messages(self, events: Iterable[Any]) -> Iterator[tuple[str, list[types.MessagePart]]]:
        for event in events:
            if isinstance(event, ToolResultsEvent):
                yield from self._messages(event.results)
                continue
            try:
                facts = describe({"role": "user", "content": event} if isinstance(event, str) else event)
            except DescribeError:
                continue
            if not facts.rendered:
                continue
            thoughts = [thought.text for thought in getattr(event, "thinking", ()) if thought.text]
            parts: list[types.MessagePart] = [types.ReasoningPart(self._redacted(text)) for text in thoughts]
            if facts.closes:
                parts.append(types.ToolCallResponsePart(self._redacted("\n".join(facts.texts)), facts.closes[0]))
            else:
                parts += [types.TextPart(self._redacted(text)) for text in _texts(event, facts)]
            parts += [
                types.ToolCallRequestPart(self.arguments(call.arguments), call.name, call.id) for call in facts.calls
            ]
            yield _ROLES.get(EventKind(facts.kind), types.Role.USER).value, parts


def _texts(event: Any, facts: EventFacts) -> list[str]:
    """What a message says beside its calls: one text, of ours; a chat message may have several, and a refusal."""
    texts = [facts.text]
    if not isinstance(event, Event):
        of_calls = Counter(text for call in facts.calls for text in (call.name, call.arguments))
        for text in facts.fields:
            if of_calls[text]:
                of_calls[text] -= 1
            else:
                texts.append(text)
    return [text for text in texts if text]
