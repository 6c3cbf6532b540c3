"""How AgentScope's messages are read: a `Msg` whole, and its content in parts.

One assistant `Msg` grows through a whole reply: texts, tool calls and their results are appended to it as blocks, and
the compressor cuts between any two of them. So what the engine is given as events are parts of messages: single blocks
for the instrumentor, which sees AgentScope cut, and messages as a provider would be sent them for the plug-in, which
cuts itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_
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

from otel_assembly.chat import MEDIA_TOKENS
from otel_assembly.facts import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.stand_ins import shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: States of a tool call that waits for somebody outside: a person's confirmation, or an execution elsewhere.
_AWAITING: Final = frozenset({"asking", "submitted"})
#: Blocks that a provider is sent as messages of their own.
_ALONE: Final = (ToolResultBlock, HintBlock)


class SummaryMsg(Msg):
    """A user message that says what earlier messages said; a `Msg` like any other to whoever sends it."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Part:
    """Some blocks of one message, as they were when they were read.

    Attributes:
        message: The message; None for a text that stands in none, such as a compressed summary.
        blocks: The message's own blocks.
        facts: What the engine knows of them, by its reading at that time: blocks can be changed in place.
    """

    message: Msg | None
    blocks: tuple[Any, ...]
    facts: EventFacts


@describe.register
def _(part: Part) -> EventFacts:
    return part.facts


@describe.register
def _(message: Msg) -> EventFacts:
    return replace(_read(message.role, message.content), id=message.id)


@describe.register
def _(message: SummaryMsg) -> EventFacts:
    return replace(_read(message.role, message.content, kind=EventKind.SUMMARY), id=message.id)


@summary_like.register(Part)
def _(event: Part, text: str, events: Sequence[Any]) -> Part:
    message = _summary_message(text)
    return part_of(message, tuple(message.content), framed=True)


@summary_like.register(Msg)
def _(event: Msg, text: str, events: Sequence[Any]) -> Msg:
    return _summary_message(text)


@shortened.register(Part)
def _(event: Part, text: str) -> Part | None:
    result = _only_result(event.blocks)
    if event.message is None or result is None:
        return None
    return part_of(event.message, (result.model_copy(update={"output": text}),), framed=True)


@shortened.register(Msg)
def _(event: Msg, text: str) -> Msg | None:
    result = _only_result(event.content)
    if result is None:
        return None
    return event.model_copy(update={"content": [result.model_copy(update={"output": text})]})


def summary_part(summary: str | Sequence[Any]) -> Part:
    """The summary that an agent's state holds, which is sent in front of its context."""
    blocks = (TextBlock(text=summary),) if isinstance(summary, str) else tuple(summary)
    return Part(None, blocks, _read("user", blocks, "summary", kind=EventKind.SUMMARY))


def block_parts(message: Msg) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Each block of a message, and whether it begins a message as a provider is sent it."""
    before: Any = None
    for block in message.content:
        yield (block,), _starts(before, block)
        before = block


def sent_parts(message: Msg) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """A message as a provider is sent it: what the model said at once, with its calls, is one; each result is one."""
    if message.role != "assistant":
        yield tuple(message.content), True
        return
    blocks: list[Any] = []
    for block in message.content:
        if blocks and _starts(blocks[-1], block):
            yield tuple(blocks), True
            blocks = []
        blocks.append(block)
    if blocks:
        yield tuple(blocks), True


def block_part(message: Msg, block: Any) -> Part:
    """One block as it is now, as if it stood in this message."""
    return part_of(message, (block,), framed=True)


def as_summary(part: Part) -> Part:
    """A message that says what an agent's state holds as the summary of what was compressed."""
    return Part(part.message, part.blocks, _read("user", part.blocks, "summary", kind=EventKind.SUMMARY))


def messages_of(parts: Iterable[Part]) -> list[Msg]:
    """The messages that parts stand for: the very objects where all blocks are there, copies of them where some are."""
    found: list[Msg] = []
    blocks: list[Any] = []
    current: Msg | None = None

    def close() -> None:
        if current is not None:
            same = len(blocks) == len(current.content) and all(map(is_, blocks, current.content))
            found.append(current if same else current.model_copy(update={"content": list(blocks)}))

    for part in parts:
        if part.message is not current:
            close()
            current, blocks = part.message, []
        blocks.extend(part.blocks)
    close()
    return found


def _starts(before: Any, block: Any) -> bool:
    """Whether a block begins a message of its own, as a provider is sent it, where `before` stands in front of it."""
    return before is None or isinstance(block, _ALONE) or isinstance(before, _ALONE)


def _summary_message(text: str) -> SummaryMsg:
    content = f"[Earlier messages, summarised: details may be missing]\n{text}"
    return SummaryMsg(name="user", role="user", content=UserMsg("user", content).content)


def _only_result(blocks: Sequence[Any]) -> ToolResultBlock | None:
    """The one tool result that these blocks are, if it holds one text."""
    if len(blocks) != 1 or not isinstance(blocks[0], ToolResultBlock):
        return None
    output = blocks[0].output
    one_text = isinstance(output, str) or (len(output) == 1 and isinstance(output[0], TextBlock))
    return blocks[0] if one_text else None


def part_of(message: Msg, blocks: tuple[Any, ...], *, framed: bool) -> Part:
    """Some blocks of a message, as they are now."""
    first = blocks[0] if blocks else None
    kind = None
    if isinstance(message, SummaryMsg):
        kind = EventKind.SUMMARY
    elif len(blocks) == 1 and isinstance(first, ToolCallBlock):
        kind = EventKind.TOOL_CALL
    name = f"{message.id}/{getattr(first, 'type', '')}/{getattr(first, 'id', '')}"
    return Part(message, blocks, _read(message.role, blocks, name, kind=kind, framed=framed))


def _named(name: str, texts: Sequence[str], media: int) -> str:
    """An id that tells readings apart: a block can be changed in place, and then it is another item."""
    return f"{name}/{hash((*texts, media)) & 0xFFFFFFFFFFFFFFFF:x}"


def _read(
    role: str, blocks: Sequence[Any], name: str | None = None, *, kind: EventKind | None = None, framed: bool = True
) -> EventFacts:
    texts: list[str] = []
    media = 0
    opens: list[str] = []
    calls: list[ToolCallFacts] = []
    closes: list[str] = []
    awaiting: list[str] = []
    said = hinted = False
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            opens.append(block.id)
            calls.append(ToolCallFacts(block.id, block.name, block.input))
            texts += (block.name, block.input)
            said = True
            if str(getattr(block.state, "value", block.state)) in _AWAITING:
                awaiting.append(block.id)
        elif isinstance(block, ToolResultBlock):
            media += _into(texts, block.output)
            if block.id in opens:
                opens.remove(block.id)
            else:
                closes.append(block.id)
        else:
            media += _into(texts, [block])
            hinted = hinted or isinstance(block, HintBlock)
            said = said or not isinstance(block, HintBlock)
    main = texts[0] if texts and not opens else ""
    return EventFacts(
        kind or _kind(role, said=said, hinted=hinted, closes=bool(closes)),
        main,
        fields=texts[1:] if main else texts,
        opens=opens,
        closes=closes,
        awaiting=awaiting,
        id=_named(name, texts, media) if name is not None else None,
        media_tokens=media,
        framed=framed,
        calls=calls,
    )


def _into(texts: list[str], content: Any) -> int:
    """Put the texts of a block's content behind `texts`; the tokens of its media are returned."""
    if isinstance(content, str):
        texts.append(content)
        return 0
    media = 0
    for block in content:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            texts.append(block.thinking)
        elif isinstance(block, HintBlock):
            media += _into(texts, block.hint)
        elif isinstance(block, DataBlock):
            media += MEDIA_TOKENS
    return media


def _kind(role: str, *, said: bool, hinted: bool, closes: bool) -> EventKind:
    if role == "system":
        return EventKind.SYSTEM
    if role == "user":
        return EventKind.REQUEST
    if said or not (closes or hinted):
        return EventKind.RESPONSE
    # A hint is sent as a user message, but nobody asked it: it must not be taken for the newest request.
    return EventKind.TOOL_RESULT if closes else EventKind.SYSTEM
