"""How LlamaIndex's messages are read, and what stands for them; imported once ``llama_index.core`` is."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from otel_assembly.instrumentation.conversation import ByIdentity
from otel_assembly.instrumentation.offered_tools import ToolSchemas
from otel_assembly.messages import ROLES, edited, register_results, register_summaries
from otel_assembly.messages.describe import EventKind
from otel_assembly.messages.rows import asks, holds, is_silent, register_parts, says, shows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: The messages of which it is known that they are summaries; nothing in them says so, and all that is in them is sent.
SUMMARIES: Final[ByIdentity[bool]] = ByIdentity()
#: Roles of models beside those that all frameworks have.
_ROLES: Final = {**ROLES, "chatbot": EventKind.RESPONSE, "model": EventKind.RESPONSE}
#: What of a message's keywords is read; others are for stores and for the program.
_KEYWORDS: Final = ("tool_calls", "function_call", "tool_call_id", "name")
_SIGNED: Final = attrgetter("additional_information")
_BLOCKS: Final[dict[str, Row]] = {
    "text": says("text"),
    **dict.fromkeys(("image", "audio", "video", "document"), shows),
    "cache": is_silent,
    "thinking": says("content", sealed=lambda block: _SIGNED(block).get("signature")),
    "tool_call": asks("tool_call_id", "tool_name", "tool_kwargs"),
}


def _cited(draft: Draft, block: Any) -> None:
    """A source that is sent with its title, of which a model may cite."""
    for text in (block.title, block.source):
        draft.text(text)
    _content(draft, block)


_content: Final = holds("content", _BLOCKS, "block_type")
_BLOCKS["citable"] = _cited
_BLOCKS["citation"] = holds("cited_content", _BLOCKS, "block_type")


def _kind(message: ChatMessage, draft: Draft) -> EventKind:
    for call in _calls(message.additional_kwargs):
        if call[0] not in draft.opens:  # one that stands in a block as well is one
            draft.call(*call)
    kind = _ROLES.get(_role(message), EventKind.OTHER)
    if kind is EventKind.TOOL_RESULT:
        draft.result(message.additional_kwargs.get("tool_call_id"))
    return EventKind.SUMMARY if SUMMARIES.get(message) else kind


def _calls(keywords: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """The calls that a model's class has kept beside the blocks: as its provider has them, or as LlamaIndex selects."""
    calls, legacy = keywords.get("tool_calls"), keywords.get("function_call")
    for call in calls if isinstance(calls, list | tuple) else ():
        asked = _get(call, "function") or call
        name = _get(asked, "name") or _get(asked, "tool_name")
        arguments = next((held for key in _ARGUMENTS if (held := _get(asked, key)) is not None), None)
        yield _get(call, "id") or _get(call, "tool_id"), name, arguments
    if legacy:
        yield None, _get(legacy, "name"), _get(legacy, "arguments")


_ARGUMENTS: Final = ("arguments", "tool_kwargs", "input")


def _get(held: Any, name: str) -> Any:
    return held.get(name) if isinstance(held, Mapping) else getattr(held, name, None)


def _role(message: ChatMessage) -> str:
    return str(getattr(message.role, "value", message.role))


def _name(message: ChatMessage) -> str:
    name = message.additional_kwargs.get("name")
    return name if isinstance(name, str) and _role(message) not in {"tool", "function"} else ""


def _read(message: ChatMessage) -> Any:
    keywords = message.additional_kwargs
    return _role(message), [keywords.get(name) for name in _KEYWORDS], SUMMARIES.get(message)


register_parts(ChatMessage, "blocks", "block_type", _BLOCKS, _kind, lambda one: {"name": _name(one)}, _read)


def summary(text: str) -> ChatMessage:
    """A summary is a user's message: it means the same to every provider."""
    made = ChatMessage(role="user", content=text)
    SUMMARIES.put(made, True)  # noqa: FBT003  # what is known of it
    return made


register_summaries(summary, ChatMessage)


def _result(message: ChatMessage) -> Sequence[Any]:
    return message.blocks if _role(message) in {"tool", "function"} else ()


register_results(
    ChatMessage,
    _result,
    lambda block: block.text if isinstance(block, TextBlock) else "",
    "text",
    lambda message, blocks: edited(message, blocks=blocks),
)


def prompt_of(message: Any) -> str | None:
    """What a system prompt says; None of any other message, and of one that is more than text."""
    system = isinstance(message, ChatMessage) and _ROLES.get(_role(message)) is EventKind.SYSTEM
    said = system and all(isinstance(block, TextBlock) for block in message.blocks)
    return message.content or "" if said else None


#: The schemas of the tools that a model is offered, as its class has them or as LlamaIndex's own.
schemas_of: Final = ToolSchemas(lambda tool: tool.metadata.to_openai_tool()).of
