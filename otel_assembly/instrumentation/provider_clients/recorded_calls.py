"""The records of model calls, by which later calls of the same conversation are recognized."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from otel_assembly.instrumentation.conversation import LedgerKey

if TYPE_CHECKING:
    from collections.abc import Hashable

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
        "__weakref__",
        "_client",
        "answer_hashes",
        "answer_messages",
        "answer_size",
        "answer_texts",
        "children",
        "conversation",
        "fingerprints",
        "has_failed",
        "index_keys",
        "is_incomplete",
        "messages",
        "model",
        "number",
        "prompts",
        "size",
        "sizes",
        "stored_conversation_id",
        "thread",
        "thread_id",
        "time",
        "tool_names",
        "trace_id",
    )

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
