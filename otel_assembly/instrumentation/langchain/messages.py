"""Register how LangChain's messages are read, and how summaries and shortened messages of its types are created.

Importing this module imports ``langchain_core``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from otel_assembly.messages import ROLES, Draft, read_content
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import register_summaries, result_texts, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The mark of LangChain's own summaries in ``additional_kwargs``.
SUMMARY_SOURCE: Final = {"lc_source": "summarization"}

#: Roles for which LangChain has another name than providers.
_ROLES: Final = {"human": "user", "ai": "assistant"}
#: Replaces the id of a legacy function call, which has none.
_LEGACY_CALL_ID: Final = "function_call"
_CALL_LISTS: Final = ("tool_calls", "invalid_tool_calls")
#: Types of content blocks that may repeat a tool call of the message's ``tool_calls``.
_CALL_BLOCKS: Final = frozenset({"tool_use", "tool_call", "function_call", "custom_tool_call", "invalid_tool_call"})
#: Types of content blocks with a fragment of a streamed tool call; ``tool_calls`` contains the whole call.
_FRAGMENT_BLOCKS: Final = frozenset({"tool_call_chunk", "server_tool_call_chunk", "input_json_delta"})


@describe.register(BaseMessage)
def _(message: BaseMessage) -> EventFacts:
    calls = [call for name in _CALL_LISTS for call in getattr(message, name, None) or ()]
    extra = message.additional_kwargs
    usage: Mapping[str, Any] = getattr(message, "usage_metadata", None) or {}
    billed, generated = usage.get("input_tokens") or None, usage.get("output_tokens") or None
    name = "" if isinstance(message, ToolMessage) else message.name or ""
    kind, message_id, closes = _kind(message), message.id or None, _answered_calls(message)
    content: Any = message.content
    if isinstance(content, str) and not (calls or extra.get("refusal") or extra.get("function_call")):
        # The fast path: most messages consist of one text.
        return EventFacts(
            kind, content, closes=closes, id=message_id, name=name, billed_tokens=billed, output_tokens=generated
        )
    draft = Draft()
    read_content(draft, _without_repeated_calls(content, calls) if isinstance(content, list) else content)
    draft.text(extra.get("refusal"))
    if kind is EventKind.REQUEST and draft.results and not draft.said:
        kind = EventKind.TOOL_RESULT  # a user message with Anthropic's tool results, as blocks
    for call in calls:  # after the texts; an invalid call may have no id
        draft.call(call.get("id"), call.get("name"), call.get("args"))
    legacy = extra.get("function_call")
    if isinstance(legacy, dict) and not draft.opens:
        draft.call(_LEGACY_CALL_ID, legacy.get("name"), legacy.get("arguments"))
    facts = draft.facts(kind, {"id": message_id}, name, billed_tokens=billed, output_tokens=generated)
    return facts._replace(fields=tuple(facts.fields), closes=(*facts.closes, *closes))


_READ: Final = ("id", "content", "name", "additional_kwargs")
read_from(BaseMessage, *_READ)
read_from(AIMessage, *_READ, *_CALL_LISTS, "usage_metadata")
read_from(ToolMessage, *_READ, "tool_call_id")
read_from(ChatMessage, *_READ, "role")


@describe.register(RemoveMessage)
def _(_: RemoveMessage) -> EventFacts:
    return EventFacts(EventKind.OTHER)


# A summary is a user message, like LangChain's own: several providers accept system messages only at the start.
register_summaries(lambda text: HumanMessage(text, additional_kwargs=dict(SUMMARY_SOURCE)), BaseMessage)


@result_texts.register(BaseMessage)
def _(message: BaseMessage) -> Sequence[str]:
    return result_texts(_as_dict(message)) or ()


@shortened.register(BaseMessage)
def _(message: BaseMessage, texts: Sequence[str]) -> BaseMessage:
    return message.model_copy(update={"content": shortened(_as_dict(message), texts)["content"]})


def _as_dict(message: BaseMessage) -> dict[str, Any]:
    """Return the message as an OpenAI-style dict that has enough fields to read and shorten its tool results."""
    is_result = isinstance(message, (ToolMessage, FunctionMessage))
    return {"role": "tool" if is_result else "user", "content": message.content}


def _kind(message: BaseMessage) -> EventKind:
    if message.additional_kwargs.get("lc_source") == SUMMARY_SOURCE["lc_source"]:
        return EventKind.SUMMARY
    name = message.type.removesuffix("MessageChunk").lower()  # the type of a chunk is the class's name
    return ROLES.get(getattr(message, "role", "") if name == "chat" else _ROLES.get(name, name), EventKind.OTHER)


def _without_repeated_calls(content: Sequence[Any], calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the blocks of a content, except for tool calls that the message's ``tool_calls`` contains as well."""
    call_ids = [call.get("id") for call in calls if call.get("id")]
    return [block for block in content if not isinstance(block, dict) or not _repeats_call(block, call_ids)]


def _repeats_call(block: Mapping[str, Any], call_ids: Sequence[Any]) -> bool:
    kind, call_id = block.get("type"), block.get("call_id") or block.get("id")
    return kind in _FRAGMENT_BLOCKS or (kind in _CALL_BLOCKS and (not call_id or call_id in call_ids))


def _answered_calls(message: BaseMessage) -> tuple[str, ...]:
    call_id = getattr(message, "tool_call_id", None)
    if isinstance(call_id, str):
        return (call_id,)
    return (_LEGACY_CALL_ID,) if isinstance(message, FunctionMessage) else ()


def response_messages(response: Any) -> Sequence[Any]:
    """Return the messages in a handler's result: an `AIMessage`, a `ModelResponse` or an extended response."""
    if isinstance(response, BaseMessage):
        return [response]
    messages: Sequence[Any] = getattr(getattr(response, "model_response", response), "result", ())
    return messages


def state_messages(state: Any) -> Sequence[Any]:
    messages: Sequence[Any] = state.get("messages", ()) if isinstance(state, dict) else getattr(state, "messages", ())
    return messages


def system_prompt(request: Any, before: list[str], after: list[str]) -> dict[str, Any]:
    """Return the arguments of ``request.override`` that change the system prompt from `before` to `after`."""
    text = "\n\n".join(after)
    if not hasattr(request, "system_message"):  # LangChain 1.0
        return {"system_prompt": text or None}
    message = request.system_message
    # If prompts were only added, the content blocks of the system message stay as they are.
    if message is not None and isinstance(message.content, list) and after[: len(before)] == before:
        added = {"type": "text", "text": "\n\n".join(after[len(before) :])}
        return {"system_message": message.model_copy(update={"content": [*message.content, added]})}
    return {"system_message": SystemMessage(text) if text else None}
