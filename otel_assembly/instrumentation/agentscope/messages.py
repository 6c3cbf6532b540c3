"""How AgentScope's messages are read: a `Msg` whole, and its content in parts.

One assistant `Msg` grows through a whole reply: texts, tool calls and their results are appended to it as blocks, and
the compressor cuts between any two of them. So what the engine is given as events are parts of messages: single blocks,
or what a plug-in of ours makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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

from otel_assembly.messages import Draft
from otel_assembly.messages.content_snapshot import contents, copied, read_from
from otel_assembly.messages.describe import ROLES, EventFacts, EventKind, describe
from otel_assembly.messages.replacements import register_results, summary_like, summary_text
from otel_assembly.messages.rows import read_part, says, shows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.messages.rows import Row

    #: Of a part its message, if any, the number of its first block, its blocks, and whether it is a message of its own.
    Place: TypeAlias = tuple[Any, int, tuple[Any, ...], bool]

#: Marks our own summaries, in a message's metadata, which is never sent to a model.
_SUMMARY: Final = "otel_assembly_summary"
#: States of a tool call that waits for somebody outside: a person's confirmation, or an execution elsewhere.
_AWAITING: Final = ("asking", "submitted")
#: Types of blocks that a provider is sent as messages of their own.
_ALONE: Final = frozenset({"tool_result", "hint"})

read_from(TextBlock, "type", "text")
read_from(ThinkingBlock, "type", "thinking")
read_from(HintBlock, "type", "hint")
read_from(DataBlock, "type", "source")
read_from(ToolCallBlock, "id", "name", "input", "state")
read_from(ToolResultBlock, "id", "output")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Part:
    """Some blocks of one message.

    Attributes:
        message: The message; None for the summary of what was compressed, which an agent's state holds.
        blocks: The message's own blocks.
        facts: What the engine knows of them, by its reading at that time: blocks can be changed in place.
    """

    message: Msg | None
    blocks: tuple[Any, ...]
    facts: EventFacts


read_from(Part, "facts")


@describe.register
def _(part: Part) -> EventFacts:
    return part.facts


@describe.register
def _(message: Msg) -> EventFacts:
    kind = EventKind.SUMMARY if message.metadata.get(_SUMMARY) else None
    return _read(message.role, message.content, kind)._replace(id=message.id)


def part_of(message: Msg | None, blocks: Sequence[Any], *, framed: bool = True) -> Part:
    """Some blocks of a message, as they are now; those of no message are the summary of what was compressed."""
    first, kind, name, role = blocks[0] if blocks else None, None, "summary", "user"
    if message is not None:
        name = f"{message.id}/{getattr(first, 'type', '')}/{getattr(first, 'id', '')}"
        role = message.role
    if message is None or message.metadata.get(_SUMMARY):
        kind = EventKind.SUMMARY
    elif len(blocks) == 1 and isinstance(first, ToolCallBlock):
        kind = EventKind.TOOL_CALL
    facts = _read(role, blocks, kind)
    # A block can be changed in place, and then it is another item.
    said = hash((*facts.texts, facts.media_tokens)) & 0xFFFFFFFFFFFFFFFF
    return Part(message, tuple(blocks), facts._replace(id=f"{name}/{said:x}", framed=framed))


def is_summary(message: Msg, summary: str | Sequence[Any]) -> bool:
    """Whether a message is the summary that AgentScope puts in front of the context."""
    return _texts(message.content) == _texts(_blocks(summary))


def block_parts(messages: Iterable[Msg]) -> list[Place]:
    """Each block of messages; whether it begins a message as a provider is sent it."""
    found: list[Place] = []
    for message in messages:
        begins = True
        for number, block in enumerate(message.content):
            alone = getattr(block, "type", None) in _ALONE
            found.append((message, number, (block,), begins or alone))
            begins = alone
    return found


def with_blocks(message: Msg, blocks: Sequence[Any]) -> Msg:
    """The same message with these blocks."""
    return message.model_copy(update={"content": blocks})


class Parts:
    """The parts of one conversation: what says what it said is the part that it was, also in a copy of its message.

    Args:
        split: How messages fall into parts.
    """

    def __init__(self, split: Callable[[Iterable[Msg]], list[Place]]) -> None:
        self._split = split
        #: By the place of each: the part, and what its blocks said.
        self._known: dict[tuple[Any, ...], tuple[Part, Sequence[Any]]] = {}

    def of(self, messages: Iterable[Msg], summary: str | Sequence[Any] = "", *, forgets: bool = True) -> list[Part]:
        """The parts of messages, behind the summary that is sent in front of them; any other may be forgotten."""
        in_front: list[Place] = [(None, 0, tuple(_blocks(summary)), True)] if summary else []
        places = in_front + self._split(messages)
        all_said = contents([block for _, _, blocks, _ in places for block in blocks])
        known: dict[tuple[Any, ...], tuple[Part, Sequence[Any]]] = {}
        end = 0
        for message, number, blocks, framed in places:  # most are as they were: nothing of ours is called for them
            key: tuple[Any, ...] = (None if message is None else message.id, number, framed)
            while key in known:
                key = (*key, "again")
            start, end = end, end + len(blocks)
            said, held = all_said[start:end], self._known.get(key)
            if held is None or held[1] != said:
                held = part_of(message, blocks, framed=framed), copied(said)
            held[0].message, held[0].blocks = message, blocks
            known[key] = held
        if forgets:
            self._known = known
        return [part for part, _ in known.values()]


def _read(role: str, blocks: Sequence[Any], kind: EventKind | None = None) -> EventFacts:
    draft = Draft()
    _read_each(draft, blocks)
    if kind is None:
        kind = ROLES[role]
        if kind is EventKind.RESPONSE and not (draft.said or draft.calls):
            # A hint is sent as a user message, but nobody asked it: it must not be taken for the newest request.
            hints = draft.texts or draft.media
            kind = EventKind.TOOL_RESULT if draft.closes else EventKind.SYSTEM if hints else kind
    return draft.facts(kind, {})


def _read_each(draft: Draft, content: str | Sequence[Any]) -> None:
    if isinstance(content, str):
        draft.text(content)
        return
    for block in content:
        read_part(draft, _ROWS, getattr(block, "type", None), block)


def _call(draft: Draft, block: ToolCallBlock) -> None:
    draft.call(block.id, block.name, block.input, awaiting=block.state in _AWAITING)


def _aside(draft: Draft, content: str | Sequence[Any]) -> None:
    """What stands in a message that nobody says."""
    said = draft.said
    _read_each(draft, content)
    draft.said = said


def _answer(draft: Draft, block: ToolResultBlock) -> None:
    _aside(draft, block.output)
    draft.result(block.id)


_ROWS: Final[dict[str, Row]] = {
    "text": says("text"),
    "thinking": says("thinking"),
    "data": shows,
    "tool_call": _call,
    "hint": lambda draft, block: _aside(draft, block.hint),
    "tool_result": _answer,
}


def _blocks(said: str | Sequence[Any]) -> Sequence[Any]:
    return [TextBlock(text=said)] if isinstance(said, str) else said


def _texts(content: str | Sequence[Any]) -> list[str]:
    return [content] if isinstance(content, str) else [one.text for one in content if isinstance(one, TextBlock)]


def _summary(event: Any, text: str, events: Sequence[Any]) -> Msg:
    return UserMsg("user", summary_text(text), {_SUMMARY: True})


def result_of(block: Any) -> str:
    """What a tool has returned; of any other block nothing."""
    return "\n".join(_texts(block.output)) if isinstance(block, ToolResultBlock) else ""


def with_result(block: Any, text: str) -> Any:
    """The same result with another text; what else it holds, it goes on to hold."""
    files = [one for one in block.output if not isinstance(one, (str, TextBlock))]
    return block.model_copy(update={"output": [TextBlock(text=text), *files] if files else text})


summary_like.register(Msg, _summary)
register_results(Msg, attrgetter("content"), result_of, with_result, with_blocks)
