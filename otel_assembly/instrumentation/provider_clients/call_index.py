"""The index of recorded calls: finds the calls that may be the parent of another one, by keys of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.provider_clients.fingerprints import (
    answer_text,
    item_key,
    message_keys,
    normalized,
    text_key,
)
from otel_assembly.instrumentation.provider_clients.recorded_calls import tool_names

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from otel_assembly.instrumentation.provider_clients.recorded_calls import CallPosition, RecordedCall
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The most calls that are found under one key.
_BUCKET: Final = 64

#: Properties that separate candidates with equal evidence: whether a call has the same as a request.
PROPERTIES: Final[dict[str, Callable[[RecordedCall, ProviderRequest, CallPosition], bool]]] = {
    "prompts": lambda call, request, _: call.prompts == request.prompts,
    "tools": lambda call, request, _: call.tool_names == tool_names(request),
    "model": lambda call, request, _: call.model == request.model,
    "client": lambda call, _, position: position.client is not None and call.client is position.client,
}


class CallIndex:
    """The calls under each key, and what their messages have shown about the program.

    Attributes:
        has_foreign_answers: True if a request contained an answer that no call of this process has given.
        constant_properties: The names of the `PROPERTIES` in which no call has differed from its parent. Only these
            count as evidence: a router changes the model, a date changes the prompt.
    """

    def __init__(self) -> None:
        self.has_foreign_answers = False
        self.constant_properties = set(PROPERTIES)
        self._calls: dict[int, list[RecordedCall]] = {}
        #: The keys under which calls were forgotten, because too many calls have them.
        self._full: set[int] = set()

    def calls_under(self, key: tuple[Any, ...], conversation: Hashable | None) -> Sequence[RecordedCall]:
        """Return the calls with a key, oldest first: all of them, or those of a named conversation."""
        return self._calls.get(hash((conversation, *key)), ())

    def is_full(self, key: tuple[Any, ...], conversation: Hashable | None) -> bool:
        """Return True if calls with this key were forgotten because too many calls have it."""
        return hash((conversation, *key)) in self._full

    def add(self, call: RecordedCall, key: tuple[Any, ...]) -> None:
        """Add a call under a key; in its named conversation, too."""
        for scope in dict.fromkeys((None, call.conversation)):
            hashed = hash((scope, *key))
            bucket = self._calls.setdefault(hashed, [])
            if call in bucket:
                continue
            bucket.append(call)
            call.index_keys.append(hashed)
            if len(bucket) > _BUCKET:
                del bucket[0]
                self._full.add(hashed)

    def add_answer(self, call: RecordedCall, messages: Sequence[Any]) -> None:
        """Add a call under the keys of an answer, alone and together with the message in front of the answer."""
        all_keys = [*map(message_keys, messages)]
        keys = [key.hash for message in all_keys for key in message.answer_keys]
        keys += [item_key(item["id"]).hash for item in messages if isinstance(item, dict) and _is_item_with_id(item)]
        texts = [message.text for message in all_keys if message.text]
        if len(texts) > 1:  # a program may join the parts of an answer
            keys.append(text_key(normalized(" ".join(texts))).hash)
        for key in keys:
            self.add(call, ("answer", key))
            if call.fingerprints:
                self.add(call, ("answer", key, call.fingerprints[-1]))
        prefill = message_keys(call.messages[-1]).text if call.messages else ""
        if prefill and texts:  # the request ended with the beginning of the answer, and the program joins both
            joined = normalized(answer_text(call.messages[-1]) + answer_text(messages[0]))
            keys.append(text_key(joined).hash)
            self.add(call, ("answer", keys[-1]))
        call.answer_hashes.update(keys)

    def add_link(self, parent: RecordedCall, request: ProviderRequest, position: CallPosition) -> None:
        """Learn from a request and its parent which properties change within a conversation."""
        for name in [*self.constant_properties]:
            if not PROPERTIES[name](parent, request, position):
                self.constant_properties.remove(name)

    def remove(self, call: RecordedCall) -> None:
        for key in call.index_keys:
            bucket = self._calls.get(key, [])
            if call in bucket:
                bucket.remove(call)
            if not bucket:
                self._calls.pop(key, None)
                self._full.discard(key)


def _is_item_with_id(item: dict[str, Any]) -> bool:
    """Return True for an item of OpenAI's Responses API, which requests can name by its id."""
    return isinstance(item.get("id"), str) and isinstance(item.get("type"), str)
