"""How LangChain's messages are read, and what stands for them; importing this module imports ``langchain_core``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)

from otel_assembly.messages import ROLES, Draft, read_content
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import register_summaries, result_texts, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What LangChain's own summaries are marked with, in ``additional_kwargs``.
SUMMARY_SOURCE: Final = {"lc_source": "summarization"}

#: What LangChain calls otherwise than providers do.
_ROLES: Final = {"human": "user", "ai": "assistant"}
#: Calls of the form that came before tool calls have no id.
_LEGACY_CALL_ID: Final = "function_call"
_CALL_LISTS: Final = ("tool_calls", "invalid_tool_calls")
#: Content blocks that may repeat a tool call which the message holds in ``tool_calls``.
_CALLS: Final = frozenset({"tool_use", "tool_call", "function_call", "custom_tool_call", "invalid_tool_call"})
#: Content blocks of a call that was streamed; what came of it stands in ``tool_calls``.
_PIECES: Final = frozenset({"tool_call_chunk", "server_tool_call_chunk", "input_json_delta"})


@describe.register(BaseMessage)
def _(message: BaseMessage) -> EventFacts:
    calls = [call for name in _CALL_LISTS for call in getattr(message, name, None) or ()]
    extra = message.additional_kwargs
    usage: Mapping[str, Any] = getattr(message, "usage_metadata", None) or {}
    billed, made = usage.get("input_tokens") or None, usage.get("output_tokens") or None
    name = "" if isinstance(message, ToolMessage) else message.name or ""
    kind, own, closes = _kind(message), message.id or None, _closes(message)
    content: Any = message.content
    if isinstance(content, str) and not (calls or extra.get("refusal") or extra.get("function_call")):
        # By far the most messages are of one text: nothing has to be collected for them.
        return EventFacts(kind, content, closes=closes, id=own, name=name, billed_tokens=billed, output_tokens=made)
    draft = Draft()
    read_content(draft, _unrepeated(content, calls) if isinstance(content, list) else content)
    draft.text(extra.get("refusal"))
    if kind is EventKind.REQUEST and draft.results and not draft.said:
        kind = EventKind.TOOL_RESULT  # Anthropic's results, in blocks
    for call in calls:  # behind the texts; one that is invalid may have no id
        draft.call(call.get("id"), call.get("name"), call.get("args"))
    legacy = extra.get("function_call")
    if isinstance(legacy, dict) and not draft.opens:
        draft.call(_LEGACY_CALL_ID, legacy.get("name"), legacy.get("arguments"))
    facts = draft.facts(kind, {"id": own}, name, billed_tokens=billed, output_tokens=made)
    return facts._replace(fields=tuple(facts.fields), closes=(*facts.closes, *closes))


_READ: Final = ("id", "content", "name", "additional_kwargs")
read_from(BaseMessage, *_READ)
read_from(AIMessage, *_READ, *_CALL_LISTS, "usage_metadata")
read_from(ToolMessage, *_READ, "tool_call_id")
read_from(ChatMessage, *_READ, "role")


@describe.register(RemoveMessage)
def _(_: RemoveMessage) -> EventFacts:
    return EventFacts(EventKind.OTHER)


# A summary is a user's message, as LangChain's own are: several providers take system messages only in front.
register_summaries(lambda said: HumanMessage(said, additional_kwargs=dict(SUMMARY_SOURCE)), BaseMessage)


@result_texts.register(BaseMessage)
def _(message: BaseMessage) -> Sequence[str]:
    return result_texts(_as_dict(message)) or ()


@shortened.register(BaseMessage)
def _(message: BaseMessage, texts: Sequence[str]) -> BaseMessage:
    return message.model_copy(update={"content": shortened(_as_dict(message), texts)["content"]})


def _as_dict(message: BaseMessage) -> dict[str, Any]:
    """The same as a dict, as far as the results of tools in it go."""
    answers = isinstance(message, (ToolMessage, FunctionMessage))
    return {"role": "tool" if answers else "user", "content": message.content}


def _kind(message: BaseMessage) -> EventKind:
    if message.additional_kwargs.get("lc_source") == SUMMARY_SOURCE["lc_source"]:
        return EventKind.SUMMARY
    name = message.type.removesuffix("MessageChunk").lower()  # the type of a chunk is the class's name
    return ROLES.get(getattr(message, "role", "") if name == "chat" else _ROLES.get(name, name), EventKind.OTHER)


def _unrepeated(content: Sequence[Any], calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The blocks of a content without the calls that the message also holds in ``tool_calls``."""
    held = [call.get("id") for call in calls if call.get("id")]
    return [block for block in content if not isinstance(block, dict) or not _repeats(block, held)]


def _repeats(block: Mapping[str, Any], held: Sequence[Any]) -> bool:
    kind, call = block.get("type"), block.get("call_id") or block.get("id")
    return kind in _PIECES or (kind in _CALLS and (not call or call in held))


def _closes(message: BaseMessage) -> tuple[str, ...]:
    answered = getattr(message, "tool_call_id", None)
    if isinstance(answered, str):
        return (answered,)
    return (_LEGACY_CALL_ID,) if isinstance(message, FunctionMessage) else ()
