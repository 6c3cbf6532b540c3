"""`CallLog`: the model calls of a trace export, each with its whole request."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.conversation import Conversation, LoggedCall, arrived_messages
from otel_assembly.transcripts.json_values import MalformedError, parse
from otel_assembly.transcripts.messages import Converter, OtherItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CallLog", "parsed"]


def parsed(value: Any) -> Any:
    """Return a value whose JSON is in a string; any other value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return parse(value)
    except MalformedError:
        return value


class CallLog:
    """Model calls by conversation.

    Equal messages of several calls of a conversation become the same object, so that each of them is one item.

    Attributes:
        skipped: The number of records and messages that were not understood, by description.
    """

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._groups: dict[tuple[str | None, str], Conversation] = {}
        self._calls: dict[tuple[str | None, str], list[LoggedCall]] = {}
        self._answers: dict[tuple[str | None, str], list[dict[str, Any]]] = {}
        self._known: dict[tuple[str | None, str], dict[str, dict[str, Any]]] = {}

    def add(
        self,
        conversation_id: str | None,
        group: str,
        call_id: str,
        messages: Iterable[Any],
        answer: Iterable[Any] = (),
        tools: list[dict[str, Any]] | None = None,
    ) -> None:
        """Add a call.

        Args:
            conversation_id: The conversation's id; None if unknown.
            group: The agent's name or, without a conversation id, the trace.
            call_id: The call's id.
            messages: The messages of the request.
            answer: The messages of the response.
            tools: The tool schemas of the request; None if unknown.
        """
        key = conversation_id, group
        unknown = ("tools",) if tools is None else ()
        conversation = self._groups.setdefault(key, Conversation(conversation_id, [], agent=group, unknown=unknown))
        conversation.tools = tools or conversation.tools
        converter, known = Converter(), self._known.setdefault(key, {})
        sent = self._converted(messages, converter, known)
        if not sent:
            self.skipped["model call without messages"] += 1
            return
        self._answers[key] = self._converted(answer, converter, known)
        self._calls.setdefault(key, []).append(LoggedCall(call_id, sent))
        self.skipped.update(converter.skipped)

    def _converted(
        self, messages: Iterable[Any], converter: Converter, known: dict[str, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        converted: list[dict[str, Any]] = []
        for message in messages:
            try:
                found = converter.convert(message)
            except MalformedError as error:
                self.skipped[f"message that cannot be read: {error}"] += 1
                found = [OtherItem(message if isinstance(message, dict) else {"value": message})]
            converted += (known.setdefault(json.dumps(each, sort_keys=True), each) for each in found)
        return converted

    def conversations(self) -> Iterator[Conversation]:
        """Yield the conversations, each with its calls in the order in which they were added.

        Raises:
            MalformedError: There is no model call.
        """
        if not self._calls:
            raise MalformedError("no model call with the messages of its request, expected at least one")
        for number, (key, calls) in enumerate(self._calls.items()):
            conversation = self._groups[key]
            conversation.messages, conversation.calls = arrived_messages(calls, self._answers[key]), calls
            conversation.skipped = Counter() if number else self.skipped
            yield conversation
