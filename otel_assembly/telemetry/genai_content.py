"""Convert events to the message types of the GenAI conventions; used only if content is exported."""

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
    """Redacts and converts texts, messages and tool definitions for export.

    Args:
        redacted: Redacts one text; called with every text.
    """

    def __init__(self, redacted: Callable[[str], str]) -> None:
        self._redacted = redacted

    def instructions(self, prompts: Iterable[str]) -> list[types.SystemInstructionPart]:
        """Convert system prompts."""
        return [types.TextPart(self._redacted(prompt)) for prompt in prompts if prompt]

    def inputs(self, events: Iterable[Any]) -> list[types.InputMessage]:
        """Convert the input of a model or an agent; events of unknown types are omitted."""
        return [types.InputMessage(role, parts) for role, parts in self._messages(events)]

    def outputs(self, events: Iterable[Any]) -> list[types.OutputMessage]:
        """Convert the output of a model or an agent."""
        return [types.OutputMessage(role, parts) for role, parts in self._messages(events)]

    def tools(self, definitions: Iterable[Mapping[str, Any]]) -> list[types.ToolDefinition]:
        """Convert tool definitions that have OpenAI's format."""
        functions = [definition.get("function") or {} for definition in definitions]
        return [
            types.FunctionToolDefinition(
                name=str(function.get("name", "")),
                description=self._redacted(str(function.get("description") or "")),
                parameters=self.arguments(json.dumps(function.get("parameters"), default=str)),
            )
            for function in functions
        ]

    def text(self, text: str) -> str:
        """Redact a text."""
        return self._redacted(text)

    def arguments(self, arguments: str) -> Any:
        """Redact a tool call's arguments and parse them as JSON; return the text if they are not JSON."""
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
    """Return the texts of a message, without the names and arguments of its tool calls."""
    texts = [facts.text]
    if not isinstance(event, Event):
        call_texts = Counter(text for call in facts.calls for text in (call.name, call.arguments))
        for text in facts.fields:
            if call_texts[text]:
                call_texts[text] -= 1
            else:
                texts.append(text)
    return [text for text in texts if text]
