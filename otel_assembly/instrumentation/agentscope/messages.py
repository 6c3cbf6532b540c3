"""How AgentScope's messages are read: a `Msg` whole, and its content in parts.

One assistant `Msg` grows through a whole reply: texts, tool calls and their results are appended to it as blocks, and
the compressor cuts between any two of them. So what the engine is given as events are parts of messages: single blocks,
or what a plug-in of ours makes of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agentscope.message import (
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMsg,
)

from otel_assembly.instrumentation.agentscope.message_parts import MessagePart
from otel_assembly.messages import Draft
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import ROLES, EventFacts, EventKind, describe
from otel_assembly.messages.replacements import OUR_SUMMARY, edited, register_results, register_summaries
from otel_assembly.messages.rows import answers, asks, holds, read_each, says, shows, thinks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.instrumentation.agentscope.message_parts import PartPlace
    from otel_assembly.messages.rows import Row

#: States of a tool call that waits for somebody outside: a person's confirmation, or an execution elsewhere.
_AWAITING: Final = ("asking", "submitted")
#: Who says the summary that AgentScope puts in front of the context.
_SUMMARY_NAME: Final = "user"
#: Types of blocks that a provider is sent as messages of their own.
_ALONE: Final = frozenset({"tool_result", "hint"})

read_from(TextBlock, "type", "text")
read_from(ThinkingBlock, "type", "thinking")
read_from(HintBlock, "type", "hint")
read_from(DataBlock, "type", "source")
read_from(ToolCallBlock, "id", "name", "input", "state")
read_from(ToolResultBlock, "id", "name", "output")


class Part(MessagePart):
    """Some blocks of one `Msg`; of none, the summary of what was compressed, which an agent's state holds."""

    __slots__ = ()


@describe.register
def _(message: Msg) -> EventFacts:
    kind = EventKind.SUMMARY if message.metadata.get(OUR_SUMMARY) else None
    return _read(message.role, message.content, kind)._replace(id=message.id, name=_sent_name(message, message.content))


def part_of(message: Msg | None, blocks: Sequence[Any], *, framed: bool = True) -> Part:
    """Some blocks of a message, as they are now; those of no message are the summary of what was compressed."""
    first, kind, name, role = blocks[0] if blocks else None, None, "summary", "user"
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
    """The name beside the role of the message that blocks are sent as: a tool's, or the speaker's; a hint has none."""
    first = blocks[0] if blocks and not isinstance(blocks, str) else None
    if isinstance(first, ToolResultBlock):
        return str(first.name)
    if isinstance(first, HintBlock):
        return ""
    return _SUMMARY_NAME if message is None else str(message.name)


def is_summary(message: Msg, summary: str | Sequence[Any]) -> bool:
    """Whether a message is the summary that AgentScope puts in front of the context."""
    return _texts(message.content) == _texts(summary)


def summary_blocks(summary: str | Sequence[Any]) -> Sequence[Any]:
    """What an agent's state holds as the summary of what was compressed, in blocks; none where it is empty."""
    return [TextBlock(text=summary)] if summary and isinstance(summary, str) else [*summary]


def block_parts(messages: Iterable[Msg]) -> list[PartPlace]:
    """Each block of messages; whether it begins a message as a provider is sent it."""
    found: list[PartPlace] = []
    for message in messages:
        begins = True
        for number, block in enumerate(message.content):
            alone = getattr(block, "type", None) in _ALONE
            found.append((message, number, (block,), begins or alone))
            begins = alone
    return found


def _read(role: str, blocks: Sequence[Any], kind: EventKind | None = None) -> EventFacts:
    draft = Draft()
    read_each(draft, _ROWS, "type", blocks)
    if kind is None:
        kind = ROLES[role]
        if kind is EventKind.RESPONSE and not (draft.said or draft.calls):
            # A hint is sent as a user message, but nobody asked it: it must not be taken for the newest request.
            hints = draft.texts or draft.media
            kind = EventKind.TOOL_RESULT if draft.closes else EventKind.SYSTEM if hints else kind
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
    return [content] if isinstance(content, str) else [one.text for one in content if isinstance(one, TextBlock)]


register_summaries(lambda said: UserMsg("user", said, {OUR_SUMMARY: True}), Msg)


def result_of(block: Any) -> str:
    """What a tool has returned; of any other block nothing."""
    return "\n".join(_texts(block.output)) if isinstance(block, ToolResultBlock) else ""


def with_result(block: Any, text: str) -> Any:
    """The same result with another text; what else it holds, it goes on to hold."""
    files = [one for one in block.output if not isinstance(one, (str, TextBlock))]
    return edited(block, output=[TextBlock(text=text), *files] if files else text)


register_results(Msg, "content", result_of, with_result)
