"""What a message is to the engine: ``describe()``, the one question that it asks of an event of any framework.

Policies and the allocator never convert a message. What they need to know of it (what it is, the texts that the model
would read, the tool calls it opens and closes) is an `EventFacts`, and ``describe`` is how each type of message gives
it. A framework's module registers a row per type; nothing else in the engine knows that the type exists.

A chat dict with one text is read here too (`chat_row`). Any other form of dicts is read in `chat`; what is made of
parts, whoever's it is, with `draft`.
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

#: Classes whose row is remembered; a program that makes classes without end makes us look up some of them again.
_REMEMBERED: Final = 1024
_LEGACY_CALL_ID: Final = "function_call"


class EventKind(StrEnum):
    """What an item is, for policies and for telemetry; a closed set.

    Of events: up to ``other``. ``system`` is a system or developer message that stands among the events; the leading
    ones are prompts that the caller chose to pass there, and no policy removes them. Of what blocks hold: ``system``,
    ``summary``, and what follows ``other``.
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
    """One tool call that an event asks for.

    Attributes:
        id: The call's id.
        name: The tool's name.
        arguments: Its arguments as JSON, or as whatever text the model wrote.
    """

    id: str
    name: str
    arguments: str


#: What the OpenAI Agents SDK writes for the id of every message that its provider gave none.
NO_ID: Final = "__fake_id__"
#: An event's kind as its string. What blocks hold beside these is for blocks alone.
KindName: TypeAlias = Literal["request", "response", "tool_call", "tool_result", "summary", "alert", "system", "other"]


class EventFacts(NamedTuple):
    """What the engine knows of one event.

    Attributes:
        kind: One of `EventKind`, or its string; of any other, `describe` raises `UnknownNameError`.
        text: The main text that the model would read.
        fields: Further texts of the same message (parts, tool names, arguments); each is tokenised alone.
        opens: Ids of the tool calls that this event asks for; also those that `fields` spell out.
        closes: Ids of the tool calls that this event answers.
        awaiting: Those of `opens` that explicitly wait for an approval: they stay pending however old they are.
        id: The framework's own id of the event, if it has one.
        id_given: Whether it was given that id. False where every object is made with an id of its own, so that another
            id does not make another event of it.
        name: The name of the speaker that the provider renders beside the role; none where the client sends none, as
            with a tool's result.
        restates: True for a type that may say again what an earlier event of the stream said (AG2 carries a tool call
            three times): where it does, it costs nothing and belongs to the atom that it echoes.
        media_tokens: Tokens of images, audio, files and encrypted reasoning, by estimate.
        billed_tokens: The input tokens the provider billed for the call that this response answers, if it says so.
        output_tokens: The output tokens it billed for this response.
        calls: The calls of `opens`, with what they call; for observers, and for nothing that is counted or cut.
        framed: Whether it is a message of its own; False for a text that is part of one, whose marks are counted there.
        unknown: Types that its row does not know, of its parts or its own: each is counted by its JSON, and an
            `Assembler` or a `History` that is strict refuses it.
        is_reasoning: Whether it is nothing but what a model thought. Providers refuse it without the item that answers
            behind it, and refuse that item without it.
        provider: The provider whose message form it has, if no other provider has that form; a value of
            `messages.provider_rules.Provider`.
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
        """Every text field that is not empty, in order."""
        if not (self.name or self.fields):
            return (self.text,) if self.text else ()
        return tuple([text for text in (self.text, self.name, *self.fields) if text])

    @property
    def rendered(self) -> bool:
        """Whether the model sees this event as a message at all; alerts and lifecycle notes are not sent."""
        return bool(
            self.kind in _MESSAGE_KINDS or self.text or self.fields or self.opens or self.closes or self.media_tokens
        )


_KINDS: Final = frozenset(EventKind)
_MESSAGE_KINDS: Final = _KINDS - {EventKind.ALERT, EventKind.OTHER}
ROLES: Final[Mapping[str, EventKind]] = {
    "system": EventKind.SYSTEM,
    "developer": EventKind.SYSTEM,
    "user": EventKind.REQUEST,
    "assistant": EventKind.RESPONSE,
    "tool": EventKind.TOOL_RESULT,
    "function": EventKind.TOOL_RESULT,
}


#: Under which servers of OpenAI's form say what a model thought, and are given it back.
ThoughtKey: TypeAlias = Literal["reasoning_content", "reasoning"]
THOUGHT_KEYS: Final[tuple[ThoughtKey, ...]] = ("reasoning_content", "reasoning")


class _Describe:
    """``describe``: finds the row of an event's type and reads the event with it, as ``functools.singledispatch`` does.

    Whatever goes wrong inside a row is a `DescribeError`, for an event that a framework, a log or a person has put
    together wrongly must not look like a fault of ours.
    """

    def __init__(self, fallback: Callable[[Any], EventFacts], doc: str) -> None:
        self.__doc__ = doc
        self._rows = singledispatch(fallback)
        self._known: dict[type, Callable[[Any], EventFacts]] = {}
        self._token = get_cache_token()

    def __call__(self, event: Any, /) -> EventFacts:
        kind = event.__class__
        # singledispatch looks classes up in a mapping of weak references, which takes longer than to read a message.
        row = self._known.get(kind) if self._token == get_cache_token() else None
        if row is None:
            row = self._find(kind)
        try:
            facts = row(event)
        except MemoryError:
            raise
        except DescribeError as error:
            if not error.problem or issubclass(kind, error.event_type):
                raise
            raise DescribeError(kind, error.problem) from None  # a row that reads parts of several frameworks' messages
        except Exception as error:
            raise DescribeError.of_row(kind, error) from error
        if not isinstance(facts, EventFacts):
            raise DescribeError(kind, f"its row returned a {type(facts).__name__}, expected EventFacts")
        if type(facts.kind) is not EventKind and facts.kind not in _KINDS:
            raise UnknownNameError("kind of event", str(facts.kind), [one.value for one in EventKind])
        return facts

    @overload
    def register(self, cls: type, func: None = None) -> Callable[[Row], Row]: ...
    @overload
    def register(self, cls: Row, func: None = None) -> Row: ...
    @overload
    def register(self, cls: type, func: Row) -> Row: ...
    def register(self, cls: Any, func: Any = None) -> Any:
        """Register a row: ``@describe.register``, with the type as the argument's annotation or in parentheses."""
        if func is None and isinstance(cls, type):
            return lambda row: self.register(cls, row)
        row = self._rows.register(cls) if func is None else self._rows.register(cls, func)
        self._known = {}
        return row

    def dispatch(self, cls: type) -> Callable[[Any], EventFacts]:
        """The row that reads events of a type."""
        return self._rows.dispatch(cls)

    @property
    def registry(self) -> Mapping[Any, Callable[[Any], EventFacts]]:
        """The rows by type."""
        return self._rows.registry

    def _find(self, kind: type) -> Callable[[Any], EventFacts]:
        token = get_cache_token()
        if token != self._token or len(self._known) >= _REMEMBERED:
            self._known, self._token = {}, token
        known = self._known  # before looking up: what is registered meanwhile begins with an empty one
        row = known[kind] = self._rows.dispatch(kind)
        return row


def _no_row(event: Any) -> EventFacts:
    raise DescribeError(type(event))


describe: Final = _Describe(
    _no_row,
    """Read one event of any registered type.

    Register a type of your own with ``@describe.register``; a subclass is read by its nearest registered base.

    Raises:
        DescribeError: No row covers the event's type, or the event is not a message of the form its row reads.
    """,
)


def chat_row(other: Callable[[dict[str, Any], EventKind | None], EventFacts]) -> Callable[[dict[str, Any]], EventFacts]:
    """The row of plain dicts: by far the most have a role and one text, for which nothing has to be collected.

    Args:
        other: Reads any other form, given what its role is; None where it has none that is known.
    """

    def row(message: dict[str, Any]) -> EventFacts:
        role = message.get("role")
        kind = ROLES.get(role) if isinstance(role, str) else None
        content = message.get("content")
        if content is None and "parts" not in message and "type" not in message:
            content = ""  # it does no more than call tools
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
                fields += (tool_name(call.name), call.arguments)  # a history with any other name is refused
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
    """The id that a message has from its framework or its provider; one that stands for none is none."""
    own = message.get("id")
    return own if isinstance(own, str) and own != NO_ID else None


def thoughts(message: Mapping[str, Any]) -> list[str]:
    """What a model thought, where a server of OpenAI's form says it beside the content; of two names one is read."""
    for key in THOUGHT_KEYS:
        text = message.get(key)
        if isinstance(text, str) and text:
            return [text]
    return []


def speaker(message: Mapping[str, Any]) -> str:
    """Who speaks; the result of a tool is sent with the call's id, and has no name to send."""
    name = message.get("name")
    return name if isinstance(name, str) and message.get("role") != "tool" else ""


def tool_calls(message: Mapping[str, Any], awaiting: list[str]) -> list[ToolCallFacts]:
    """The calls that a message has beside its content; those that wait for an approval are put into `awaiting`."""
    made: list[ToolCallFacts] = []
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise DescribeError(dict, f"its 'tool_calls' is a {type(calls).__name__}, expected a list")
    for call in calls:
        function = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise DescribeError(dict, "a tool call has no 'id' or no 'function'")
        made.append(ToolCallFacts(call["id"], *_spell(function)))
        if call.get("awaiting_approval") is True:
            awaiting.append(call["id"])
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        made.append(ToolCallFacts(_LEGACY_CALL_ID, *_spell(legacy)))
    return made


def _spell(function: Mapping[str, Any]) -> tuple[str, str]:
    arguments = function.get("arguments", function.get("input", ""))
    return str(function.get("name", "")), arguments if isinstance(arguments, str) else spelled(arguments)


def answers(message: Mapping[str, Any]) -> list[str]:
    """The calls a tool message answers; some recorders join parallel results and write ``tool_call_ids``."""
    several = message.get("tool_call_ids")
    if isinstance(several, list):
        return [str(one) for one in several]
    one = message.get("tool_call_id")
    if isinstance(one, str):
        return [one]
    return [_LEGACY_CALL_ID] if message.get("role") == "function" else []


def spelled(value: Any) -> str:
    """A value as JSON; what JSON has no form for is written as Python would print it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def sendable(text: str) -> str:
    """The text with U+FFFD in the place of each half of a surrogate pair.

    Exporters refuse the attribute that holds one, for it has no UTF-8 form, and some of them refuse its whole batch.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
