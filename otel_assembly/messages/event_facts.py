"""``describe()``: returns the facts of a message of any framework.

Policies and the allocator never convert a message. They use its `EventFacts`: the kind, the texts that the model reads,
and the tool calls that it requests and answers. Each framework's module registers a reader per message type with
``describe``: a function that returns the facts of a message. No other code depends on these types.

`chat_row` creates the reader of chat dicts with one text. `chat` reads other dicts, and `draft` collects the facts of
messages that consist of parts.
"""

from __future__ import annotations

import json
from abc import get_cache_token
from enum import StrEnum
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, overload

from otel_assembly.errors import DescribeError, UnknownNameError
from otel_assembly.messages.provider_rules import tool_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = TypeVar("Row", bound=Callable[..., Any])

#: The most classes whose reader is cached. The limit is for programs that create classes dynamically.
_REMEMBERED: Final = 1024
_LEGACY_CALL_ID: Final = "function_call"


class EventKind(StrEnum):
    """The kind of an event or of a block, for policies and telemetry.

    Events have the kinds up to ``other``. ``system`` is a system or developer message among the events; no policy
    removes such messages at the beginning. A block is a named part of a prompt, as in `allocate`. Blocks have the kinds
    ``system``, ``summary``, and those after ``other``.
    """

    REQUEST = "request"
    RESPONSE = "response"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    SUMMARY = "summary"
    ALERT = "alert"
    SYSTEM = "system"
    OTHER = "other"
    SCHEMA = "schema"
    QUERY = "query"
    STATE = "state"
    EVIDENCE = "evidence"
    MEMORY = "memory"
    RECENT = "recent"
    OLDER = "older"


class ToolCallFacts(NamedTuple):
    """One tool call that an event requests.

    Attributes:
        id: The call's id.
        name: The tool's name.
        arguments: The arguments as JSON, or as the text that the model generated.
    """

    id: str
    name: str
    arguments: str


#: The OpenAI Agents SDK's placeholder for the id of a message without one.
NO_ID: Final = "__fake_id__"
#: The string values of the kinds of events. The other values of `EventKind` are for blocks only.
KindName: TypeAlias = Literal["request", "response", "tool_call", "tool_result", "summary", "alert", "system", "other"]


class EventFacts(NamedTuple):
    """The properties of one event that policies, token counters and telemetry use; `describe` returns them.

    Attributes:
        kind: A kind of event, or its string. `describe` raises `UnknownNameError` for any other value.
        text: The main text that the model reads.
        fields: Further texts of the message (parts, tool names, arguments). Each is tokenized separately.
        opens: Ids of the tool calls that this event requests. The texts of these calls are in `fields`.
        closes: Ids of the tool calls that this event answers.
        awaiting: Ids in `opens` that wait for an approval. Such a call is pending, however old it is.
        id: The framework's id of the event, if it has one.
        id_given: True if different ids mean different events. False if each new object gets a random id, even for an
            event that was read again.
        name: The name of the speaker that the client sends with the role; empty if it sends none, as for tool results.
        restates: True for a type that can repeat an earlier event of the stream (AG2 repeats a tool call twice). A
            repetition costs no tokens, and is kept or dropped together with the call that it repeats.
        media_tokens: Estimated tokens of images, audio, files and encrypted reasoning.
        billed_tokens: The input tokens that the provider billed for the model call of this response; None if unknown.
        output_tokens: The output tokens that the provider billed for this response; None if unknown.
        calls: The tool calls in `opens` with names and arguments, for observers. Their texts are not counted again.
        framed: True if the event is a message. False if it is part of another event's message; the tokens for the
            message's role and format then count for that event.
        unknown: The names of unknown types, of the event or its parts. A part of an unknown type is counted by its
            JSON. An `Assembler` or `History` with ``strict=True`` raises an error instead.
        is_reasoning: True if the event contains only reasoning. Providers reject reasoning without the item that
            follows it, and that item without its reasoning.
        provider: The provider (a value of `messages.provider_rules.Provider`), if the format of the message is unique
            to it.
    """

    kind: EventKind | KindName
    text: str = ""
    fields: Sequence[str] = ()
    opens: Sequence[str] = ()
    closes: Sequence[str] = ()
    awaiting: Sequence[str] = ()
    id: str | None = None
    name: str = ""
    restates: bool = False
    media_tokens: int = 0
    billed_tokens: int | None = None
    output_tokens: int | None = None
    calls: Sequence[ToolCallFacts] = ()
    framed: bool = True
    id_given: bool = True
    unknown: Sequence[str] = ()
    provider: str = ""
    is_reasoning: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that are not empty, in order."""
        if not (self.name or self.fields):
            return (self.text,) if self.text else ()
        return tuple([text for text in (self.text, self.name, *self.fields) if text])

    @property
    def rendered(self) -> bool:
        """True if the event is sent to the model. Alerts and lifecycle events are not."""
        return bool(
            self.kind in _MESSAGE_KINDS or self.text or self.fields or self.opens or self.closes or self.media_tokens
        )


_KINDS: Final = frozenset(EventKind)
_MESSAGE_KINDS: Final = _KINDS - {EventKind.ALERT, EventKind.OTHER}
#: The kind of a message by its role.
ROLES: Final[Mapping[str, EventKind]] = {
    "system": EventKind.SYSTEM,
    "developer": EventKind.SYSTEM,
    "user": EventKind.REQUEST,
    "assistant": EventKind.RESPONSE,
    "tool": EventKind.TOOL_RESULT,
    "function": EventKind.TOOL_RESULT,
}


#: Keys of the reasoning text in messages of OpenAI-compatible servers.
ThoughtKey: TypeAlias = Literal["reasoning_content", "reasoning"]
THOUGHT_KEYS: Final[tuple[ThoughtKey, ...]] = ("reasoning_content", "reasoning")


class _Describe:
    """The class of `describe`: calls the reader of an event's type, like ``functools.singledispatch``.

    If the reader raises an exception, the event is malformed, and a `DescribeError` is raised.
    """

    def __init__(self, fallback: Callable[[Any], EventFacts], doc: str) -> None:
        self.__doc__ = doc
        self._rows = singledispatch(fallback)
        self._known: dict[type, Callable[[Any], EventFacts]] = {}
        self._token = get_cache_token()

    def __call__(self, event: Any, /) -> EventFacts:
        kind = event.__class__
        # The lookup of singledispatch (a mapping of weak references) takes longer than reading a message.
        row = self._known.get(kind) if self._token == get_cache_token() else None
        if row is None:
            row = self._lookup(kind)
        try:
            facts = row(event)
        except MemoryError:
            raise
        except DescribeError as error:
            if not error.problem or issubclass(kind, error.event_type):
                raise
            raise DescribeError(kind, error.problem) from None  # raised for a part of the event
        except Exception as error:
            raise DescribeError.of_row(kind, error) from error
        if not isinstance(facts, EventFacts):
            raise DescribeError(kind, f"its reader returned a {type(facts).__name__}, expected EventFacts")
        if type(facts.kind) is not EventKind and facts.kind not in _KINDS:
            raise UnknownNameError("kind of event", str(facts.kind), [known.value for known in EventKind])
        return facts

    @overload
    def register(self, cls: type, func: None = None) -> Callable[[Row], Row]: ...
    @overload
    def register(self, cls: Row, func: None = None) -> Row: ...
    @overload
    def register(self, cls: type, func: Row) -> Row: ...
    def register(self, cls: Any, func: Any = None) -> Any:
        """Register a reader with ``@describe.register``: a function that returns the `EventFacts` of an event.

        The type is the argument, or the annotation of the reader's parameter.
        """
        if func is None and isinstance(cls, type):
            return lambda row: self.register(cls, row)
        row = self._rows.register(cls) if func is None else self._rows.register(cls, func)
        self._known = {}
        return row

    def dispatch(self, cls: type) -> Callable[[Any], EventFacts]:
        """Return the reader for events of a type."""
        return self._rows.dispatch(cls)

    @property
    def registry(self) -> Mapping[Any, Callable[[Any], EventFacts]]:
        """The readers by type."""
        return self._rows.registry

    def _lookup(self, kind: type) -> Callable[[Any], EventFacts]:
        token = get_cache_token()
        if token != self._token or len(self._known) >= _REMEMBERED:
            self._known, self._token = {}, token
        known = self._known  # read before the lookup, because `register` in another thread replaces it
        row = known[kind] = self._rows.dispatch(kind)
        return row


def _no_row(event: Any) -> EventFacts:
    raise DescribeError(type(event))


describe: Final = _Describe(
    _no_row,
    """Return the facts of one event of a registered type.

    Register a reader for your own type with ``@describe.register``. It also reads subclasses without their own reader.

    Raises:
        DescribeError: The event's type is not registered, or the event is malformed.
    """,
)


def chat_row(other: Callable[[dict[str, Any], EventKind | None], EventFacts]) -> Callable[[dict[str, Any]], EventFacts]:
    """Return the reader of dicts, with a fast path for messages with a role and one text.

    Args:
        other: Reads all other dicts. Called with the dict and the kind for its role, which is None for an unknown role.
    """

    def row(message: dict[str, Any]) -> EventFacts:
        role = message.get("role")
        kind = ROLES.get(role) if isinstance(role, str) else None
        content = message.get("content")
        if content is None and "parts" not in message and "type" not in message:
            content = ""  # the message only calls tools
        if kind is None or type(content) is not str:
            return other(message, kind)
        refusal = message.get("refusal")
        fields = [refusal] if isinstance(refusal, str) else []
        if kind is EventKind.RESPONSE:
            fields += thoughts(message)
        opens: list[str] = []
        awaiting: list[str] = []
        calls: list[ToolCallFacts] = []
        if "tool_calls" in message or "function_call" in message:
            calls = tool_calls(message, awaiting)
            for call in calls:
                opens.append(call.id)
                fields += (tool_name(call.name), call.arguments)  # providers reject a history with invalid tool names
        return EventFacts(
            kind,
            content,
            fields=fields,
            opens=opens,
            closes=answers(message) if kind is EventKind.TOOL_RESULT else (),
            awaiting=awaiting,
            id=own_id(message),
            name=speaker(message),
            calls=calls,
        )

    return row


def own_id(message: Mapping[str, Any]) -> str | None:
    """Return the id that a framework or provider gave a message; None without one, or with the placeholder `NO_ID`."""
    message_id = message.get("id")
    return message_id if isinstance(message_id, str) and message_id != NO_ID else None


def thoughts(message: Mapping[str, Any]) -> list[str]:
    """Return the reasoning text of a message from an OpenAI-compatible server, as a list of at most one text."""
    for key in THOUGHT_KEYS:
        text = message.get(key)
        if isinstance(text, str) and text:
            return [text]
    return []


def speaker(message: Mapping[str, Any]) -> str:
    """Return the name of a message's speaker; empty if there is none, and for tool results, which have a call id."""
    name = message.get("name")
    return name if isinstance(name, str) and message.get("role") != "tool" else ""


def tool_calls(message: Mapping[str, Any], awaiting: list[str]) -> list[ToolCallFacts]:
    """Return the tool calls of a message.

    Args:
        message: The message.
        awaiting: The ids of calls that wait for an approval are appended to this list.

    Raises:
        DescribeError: A call has no id or no function.
    """
    facts: list[ToolCallFacts] = []
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise DescribeError(dict, f"its 'tool_calls' is a {type(calls).__name__}, expected a list")
    for call in calls:
        function = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        call_id = call.get("id") if isinstance(function, dict) else None
        if call_id is None and isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            call_id = function.get("name")  # Ollama has no ids; the result repeats the function's name
        if not isinstance(function, dict) or not isinstance(call_id, str):
            raise DescribeError(dict, "a tool call has no 'id' or no 'function'")
        facts.append(ToolCallFacts(call_id, *_spell(function)))
        if call.get("awaiting_approval") is True:
            awaiting.append(call_id)
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        facts.append(ToolCallFacts(_LEGACY_CALL_ID, *_spell(legacy)))
    return facts


def _spell(function: Mapping[str, Any]) -> tuple[str, str]:
    """Return a called function's name and its arguments as text."""
    arguments = function.get("arguments", function.get("input", ""))
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else spelled(arguments)


def answers(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the tool calls that a message with results answers."""
    call_ids = message.get("tool_call_ids")
    if isinstance(call_ids, list):
        return [str(call_id) for call_id in call_ids]
    call_id = message.get("tool_call_id", message.get("tool_name"))  # Ollama has no ids
    if isinstance(call_id, str):
        return [call_id]
    return [_LEGACY_CALL_ID] if message.get("role") == "function" else []


def spelled(value: Any) -> str:
    """Return a value as JSON. Values that JSON does not support are converted with `str`."""
    return json.dumps(value, ensure_ascii=False, default=str)


def sendable(text: str) -> str:
    """Return the text with U+FFFD in place of each lone surrogate, which cannot be encoded as UTF-8.

    OpenTelemetry exporters drop an attribute with a lone surrogate, and some of them the whole batch.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
