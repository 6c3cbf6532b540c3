"""Readers for AgentScope's messages: a `Msg` as a whole, or in parts.

One assistant `Msg` grows during a whole reply. AgentScope appends texts, tool calls and results to it as blocks, and
its context compression can cut between any two blocks. Therefore an event is a part of a message: one block, or the
group of blocks that the provider receives as one message.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from agentscope.message import (
    DataBlock,
    HintBlock,
    Msg,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMsg,
)

from otel_assembly.instrumentation.agentscope.message_parts import MessagePart
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.messages import Draft, summary_like
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import ROLES, EventFacts, EventKind, describe
from otel_assembly.messages.replacements import OUR_SUMMARY, edited, register_results, register_summaries
from otel_assembly.messages.rows import answers, asks, holds, read_each, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.instrumentation.agentscope.message_parts import PartPlace
    from otel_assembly.messages.rows import Row

#: The states of a tool call that waits for a person's confirmation or for an external execution.
_AWAITING: Final = ("asking", "submitted")
#: The speaker's name in the summary message that precedes the context.
_SUMMARY_NAME: Final = "user"
#: The types of blocks that the provider receives as separate messages.
_SEPARATE_TYPES: Final = frozenset({"tool_result", "hint"})

read_from(TextBlock, "type", "text")
read_from(ThinkingBlock, "type", "thinking")
read_from(HintBlock, "type", "hint")
read_from(DataBlock, "type", "source")
read_from(ToolCallBlock, "id", "name", "input", "state")
read_from(ToolResultBlock, "id", "name", "output")


class Part(MessagePart):
    """A group of blocks of one `Msg`, or the summary of compressed messages, which has no `Msg` in the context."""

    __slots__ = ()


@describe.register
def _(message: Msg) -> EventFacts:
    kind = EventKind.SUMMARY if message.metadata.get(OUR_SUMMARY) else None
    return _read(message.role, message.content, kind)._replace(id=message.id, name=_sent_name(message, message.content))


def part_of(message: Msg | None, blocks: Sequence[Any], *, framed: bool = True) -> Part:
    """Return a part with the current content of blocks; without a message, of the summary of compressed messages."""
    first = blocks[0] if blocks else None
    kind, name, role = None, "summary", "user"
    if message is not None:
        name = f"{message.id}/{getattr(first, 'type', '')}/{getattr(first, 'id', '')}"
        role = message.role
    if message is None or message.metadata.get(OUR_SUMMARY):
        kind = EventKind.SUMMARY
    elif len(blocks) == 1 and isinstance(first, ToolCallBlock):
        kind = EventKind.TOOL_CALL
    facts = _read(role, blocks, kind)
    if framed:
        facts = facts._replace(name=_sent_name(message, blocks))
    return Part.named(name, message, blocks, facts, framed=framed)


def _sent_name(message: Msg | None, blocks: Sequence[Any]) -> str:
    """Return the name that the provider receives with the role."""
    first = blocks[0] if blocks and not isinstance(blocks, str) else None
    if isinstance(first, ToolResultBlock):
        return str(first.name)
    if isinstance(first, HintBlock):
        return ""
    return _SUMMARY_NAME if message is None else str(message.name)


def is_summary(message: Msg, summary: str | Sequence[Any]) -> bool:
    return _texts(message.content) == _texts(summary)


def summary_blocks(summary: str | Sequence[Any]) -> Sequence[Any]:
    return [TextBlock(text=summary)] if summary and isinstance(summary, str) else [*summary]


def block_parts(messages: Iterable[Msg]) -> list[PartPlace]:
    """Return one place per block. A place is framed if a message to the provider begins with its block."""
    places: list[PartPlace] = []
    for message in messages:
        begins_message = True
        for number, block in enumerate(message.content):
            is_separate = getattr(block, "type", None) in _SEPARATE_TYPES
            places.append((message, number, (block,), begins_message or is_separate))
            begins_message = is_separate
    return places


def _read(role: str, blocks: Sequence[Any], kind: EventKind | None = None) -> EventFacts:
    """Return the facts of blocks; without a kind, it follows from the role and, for a response, from the blocks."""
    draft = Draft()
    read_each(draft, _ROWS, "type", blocks)
    if kind is None:
        kind = ROLES[role]
        if kind is EventKind.RESPONSE and not (draft.said or draft.calls):
            if draft.closes:
                kind = EventKind.TOOL_RESULT
            elif draft.texts or draft.media:
                # Hints have the role user, but are not the user's: a request would be protected as the newest one.
                kind = EventKind.SYSTEM
    return draft.facts(kind, {})


_ROWS: Final[dict[str, Row]] = {
    "text": says("text"),
    "thinking": thinks("thinking"),
    "data": shows,
    "tool_call": asks("id", "name", "input", awaiting=lambda block: block.state in _AWAITING),
}
_ROWS["hint"] = answers(None, held=holds("hint", _ROWS, "type"))
_ROWS["tool_result"] = answers("id", held=holds("output", _ROWS, "type"))


def _texts(content: str | Sequence[Any]) -> list[str]:
    return [content] if isinstance(content, str) else [block.text for block in content if isinstance(block, TextBlock)]


register_summaries(lambda text: UserMsg("user", text, {OUR_SUMMARY: True}), Msg)


def result_of(block: Any) -> str:
    return "\n".join(_texts(block.output)) if isinstance(block, ToolResultBlock) else ""


def with_result(block: Any, text: str) -> Any:
    """Return a copy of a tool result with another text. Its files and images are kept."""
    files = [item for item in block.output if not isinstance(item, (str, TextBlock))]
    return edited(block, output=[TextBlock(text=text), *files] if files else text)


register_results(Msg, "content", result_of, with_result)


def provider_parts(messages: Iterable[Msg]) -> list[PartPlace]:
    """Return one place per message that the provider receives: a model answer with its tool calls, or one result."""
    places: list[PartPlace] = []
    for message, number, blocks, framed in block_parts(messages):
        begins_message = number == 0 or (framed and message.role == "assistant")
        if begins_message:
            places.append((message, number, blocks, True))
        else:
            _, first_number, earlier_blocks, _ = places.pop()
            places.append((message, first_number, (*earlier_blocks, *blocks), True))
    return places


@summary_like.register(Part)
def _(event: Part, text: str, events: Sequence[Any]) -> Part:
    message = summary_like(event.message, text, events)
    return part_of(message, message.content)


register_results(Part, "blocks", result_of, with_result, lambda part, blocks: part_of(part.message, blocks))


def split_prompts(messages: Sequence[Msg]) -> tuple[list[str], Sequence[Msg]]:
    """Return the text of a leading system message, if there is one, and the messages after it."""
    if not messages or messages[0].role != "system":
        return [], messages
    text = messages[0].get_text_content()
    return [text] if text else [], messages[1:]


def with_output(messages: Sequence[Msg], parts: Iterable[Part], prompts: Sequence[str] | None) -> list[Any]:
    """Return messages that are replaced by parts and, unless `prompts` is None, by a system message of these texts."""
    output: list[Any] = [message for message in messages[:1] if message.role == "system"]
    if prompts is not None:
        output = [SystemMsg("system", [TextBlock(text=prompt) for prompt in prompts])] if prompts else []
    for _, group in groupby(parts, lambda part: id(part.message)):
        message_parts = list(group)
        message: Any = message_parts[0].message
        blocks = [block for part in message_parts for block in part.blocks]
        # The original message if all its blocks are kept, otherwise a shortened copy.
        output.append(message if same_objects(blocks, message.content) else edited(message, content=blocks))
    return output
