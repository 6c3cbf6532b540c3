"""The records of model calls, and their index: it finds calls that may be the parent of another one, by keys."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from otel_assembly.instrumentation.conversation import LedgerKey
from otel_assembly.instrumentation.provider_clients.fingerprints import (
    answer_text,
    item_key,
    message_keys,
    normalized,
    text_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest


class Evidence(StrEnum):
    """Why a call is taken for a continuation of its parent; from the strongest to the weakest kind."""

    RESPONSE_ID = "response_id"
    STORED_CONVERSATION = "stored_conversation"
    ANSWER = "answer"
    RETRY = "retry"
    EDITED_ANSWER = "edited_answer"
    NONE = "none"

    @property
    def is_stored(self) -> bool:
        """True if the provider stores the parent's messages, so that the request contains the new ones only."""
        return self in (Evidence.RESPONSE_ID, Evidence.STORED_CONVERSATION)


class CallPosition(NamedTuple):
    """Where a call is made.

    Attributes:
        conversation: The name of the conversation; None if the program did not name it.
        trace_id: The id of the current trace; None if there is none.
        client: The client object; None if there is none.
    """

    conversation: Hashable | None = None
    trace_id: int | None = None
    thread_id: int = 0
    client: object | None = None


class CallThread(LedgerKey):
    """A line of calls of one agent in one conversation; as a `LedgerKey`, it identifies the line's ledger."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest: ref[RecordedCall] | None = None


class RecordedCall:
    """A model call that later calls may continue.

    Attributes:
        messages: Copies of the messages that the model read. Those that equal a message of the parent are the same
            objects as the parent's.
        answer_texts: The texts of the answer, stripped.
        answer_hashes: The hashes of the keys (`AnswerKey.hash`) under which the answer is found.
        thread: The line of calls that this call belongs to.
        conversation: The name that the program gave the conversation, as in `CallPosition`; None if it gave none. Only
            calls with an equal name are searched for the parent of a call with a name.
        is_incomplete: True if the provider stores messages in front of these, which are unknown.
    """

    __slots__ = (
        "__weakref__", "_client", "answer_hashes", "answer_messages", "answer_size", "answer_texts", "children",
        "conversation", "fingerprints", "has_failed", "index_keys", "is_incomplete", "messages", "model", "number",
        "prompts", "shared_size", "size", "sizes", "stored_conversation_id", "thread", "thread_id", "time",
        "tool_names", "trace_id",
    )  # fmt: skip

    def __init__(self, request: ProviderRequest, thread: CallThread, position: CallPosition) -> None:
        self.messages: list[Any] = []
        self.prompts = list(request.prompts)
        self.model = request.model
        self.answer_messages: list[Any] = []
        self.answer_texts: list[str] = []
        self.thread = thread
        self.has_failed = False
        self.is_incomplete = False
        #: One fingerprint and one size per message.
        self.fingerprints: list[int] = []
        self.sizes: list[int] = []
        self.answer_hashes: set[int] = set()
        self.conversation = position.conversation
        self.trace_id = position.trace_id
        self.thread_id = position.thread_id
        self.tool_names = tool_names(request)
        self.stored_conversation_id = request.conversation_id
        self._client = _weak(position.client)
        #: The keys of the index under which the call is found.
        self.index_keys: list[int] = []
        self.children: list[RecordedCall] = []
        self.number = 0
        self.time = 0.0
        #: The size of what this call alone keeps in memory, and of its answer in it.
        self.size = self.answer_size = 0
        #: The size of the messages that the parent keeps in memory, too.
        self.shared_size = 0

    def parent_forgotten(self) -> int:
        """Count the messages of the forgotten parent in this call's size; return by how much the size has grown."""
        shared_size, self.shared_size = self.shared_size, 0
        self.size += shared_size
        return shared_size

    def share_messages(self, parent: RecordedCall) -> None:
        """Begin with all messages of the parent, as the same objects."""
        self.messages = parent.messages.copy()
        self.fingerprints = parent.fingerprints.copy()
        self.sizes = parent.sizes.copy()

    @property
    def client(self) -> object | None:
        """The client object; None if it no longer exists or does not support weak references."""
        return None if self._client is None else self._client()


class ParentMatch(NamedTuple):
    """The parent of a call.

    Attributes:
        parent: The parent; None if the call starts a conversation, or if its parent is unknown.
        answer_index: The index of the parent's answer in the request's messages; -1 if the answer is not among them.
        is_unknown: True if the request continues a conversation, but it is unknown which.
    """

    parent: RecordedCall | None = None
    evidence: Evidence = Evidence.NONE
    answer_index: int = -1
    is_unknown: bool = False


def tool_names(request: ProviderRequest) -> frozenset[str]:
    return frozenset(filter(None, map(_tool_name, request.tools)))


def _tool_name(schema: Any) -> str:
    """Return the name of a tool: in its schema, or one level deeper as in ``{"function": {"name": …}}``."""
    if not isinstance(schema, dict):
        return ""
    for value in (schema, *schema.values()):
        name = value.get("name") if isinstance(value, dict) else None
        if isinstance(name, str):
            return name
    return ""


def _weak(client: object | None) -> ref[Any] | None:
    try:
        return None if client is None else ref(client)
    except TypeError:
        return None


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
        """Add a call under a key, among all calls and among those of its named conversation."""
        for conversation in dict.fromkeys((None, call.conversation)):
            hashed = hash((conversation, *key))
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
        # A request can name an item of OpenAI's Responses API by its id only.
        items = [item for item in messages if isinstance(item, dict) and isinstance(item.get("type"), str)]
        keys += [item_key(item["id"]).hash for item in items if isinstance(item.get("id"), str)]
        texts = [message.text for message in all_keys if message.text]
        if len(texts) > 1:  # a program may join the parts of an answer
            keys.append(text_key(normalized(" ".join(texts))).hash)
        for key in keys:
            self.add(call, ("answer", key))
            if call.fingerprints:
                self.add(call, ("answer", key, call.fingerprints[-1]))
        prefill = message_keys(call.messages[-1]).text if call.messages else ""
        if prefill and texts:  # the request ended with the beginning of the answer, and the program joins both
            joined_key = text_key(normalized(answer_text(call.messages[-1]) + answer_text(messages[0]))).hash
            keys.append(joined_key)
            self.add(call, ("answer", joined_key))
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
