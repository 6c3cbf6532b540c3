"""How AgentScope's messages are read: a `Msg` whole, and its content in parts.

One assistant `Msg` grows through a whole reply: texts, tool calls and their results are appended to it as blocks, and
the compressor cuts between any two of them. So what the engine is given as events are parts of messages: single blocks
for the instrumentor, which sees AgentScope cut, and messages as a provider would be sent them for the plug-in, which
cuts itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, compress, count
from operator import attrgetter, is_, ne
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

from otel_assembly._internal.forks import new_lock
from otel_assembly.messages import Draft
from otel_assembly.messages.content_snapshot import contents, copied, equal, read_from
from otel_assembly.messages.describe import EventFacts, EventKind, describe
from otel_assembly.messages.replacements import result_texts, shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    #: How a message falls into parts: the blocks of each, and whether it is a message of its own.
    Split = Callable[[Msg], Iterable[tuple[tuple[Any, ...], bool]]]


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
    return _read(message.role, message.content)._replace(id=message.id)


@describe.register
def _(message: SummaryMsg) -> EventFacts:
    return _read(message.role, message.content, kind=EventKind.SUMMARY)._replace(id=message.id)


@summary_like.register(Part)
def _(event: Part, text: str, events: Sequence[Any]) -> Part:
    message = _summary_message(text)
    return part_of(message, tuple(message.content), framed=True)


@summary_like.register(Msg)
def _(event: Msg, text: str, events: Sequence[Any]) -> Msg:
    return _summary_message(text)


@result_texts.register(Part)
def _(event: Part) -> Sequence[str]:
    return _texts_of(event.blocks) if event.message is not None else ()


@result_texts.register(Msg)
def _(event: Msg) -> Sequence[str]:
    return _texts_of(event.content)


@shortened.register(Part)
def _(event: Part, texts: Sequence[str]) -> Part | None:
    return None if event.message is None else part_of(event.message, _saying(event.blocks, texts), framed=True)


@shortened.register(Msg)
def _(event: Msg, texts: Sequence[str]) -> Msg:
    return event.model_copy(update={"content": list(_saying(event.content, texts))})


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


def _texts_of(blocks: Sequence[Any]) -> list[str]:
    """The texts of those blocks that are results of tools."""
    return [text for block in blocks if (text := _said(block))]


def _said(block: Any) -> str:
    if not isinstance(block, ToolResultBlock):
        return ""
    output = block.output
    return output if isinstance(output, str) else "\n".join(one.text for one in output if isinstance(one, TextBlock))


def _saying(blocks: Sequence[Any], texts: Sequence[str]) -> tuple[Any, ...]:
    """The same blocks whose results say these texts; what else a result holds, it goes on to hold."""
    given = iter(texts)
    made: list[Any] = []
    for block in blocks:
        text = next(given) if _said(block) else ""
        if text and text != _said(block):
            files = [one for one in block.output if not isinstance(one, (str, TextBlock))]
            made.append(block.model_copy(update={"output": [TextBlock(text=text), *files] if files else text}))
        else:
            made.append(block)
    return tuple(made)


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
    draft = Draft()
    said = hinted = False
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            waits = str(getattr(block.state, "value", block.state)) in _AWAITING
            draft.call(block.id, block.name, block.input, awaiting=waits)
            said = True
        elif isinstance(block, ToolResultBlock):
            _into(draft, block.output)
            draft.result(block.id)
        else:
            _into(draft, [block])
            hinted = hinted or isinstance(block, HintBlock)
            said = said or not isinstance(block, HintBlock)
    facts = draft.facts(kind or _kind(role, said=said, hinted=hinted, closes=bool(draft.closes)), {})
    texts = [facts.text, *facts.fields] if facts.text else facts.fields
    own = _named(name, texts, facts.media_tokens) if name is not None else None
    return facts._replace(id=own, framed=framed)


def _into(draft: Draft, content: Any) -> None:
    """Read the content of a block."""
    if isinstance(content, str):
        draft.text(content)
        return
    for block in content:
        if isinstance(block, TextBlock):
            draft.text(block.text)
        elif isinstance(block, ThinkingBlock):
            draft.text(block.thinking)
        elif isinstance(block, HintBlock):
            _into(draft, block.hint)
        elif isinstance(block, DataBlock):
            draft.file()
        else:
            draft.other(str(getattr(block, "type", type(block).__name__)), getattr(block, "__dict__", None))


def _kind(role: str, *, said: bool, hinted: bool, closes: bool) -> EventKind:
    if role == "system":
        return EventKind.SYSTEM
    if role == "user":
        return EventKind.REQUEST
    if said or not (closes or hinted):
        return EventKind.RESPONSE
    # A hint is sent as a user message, but nobody asked it: it must not be taken for the newest request.
    return EventKind.TOOL_RESULT if closes else EventKind.SYSTEM


read_from(Part, "facts")
read_from(TextBlock, "text")
read_from(ThinkingBlock, "thinking")
read_from(HintBlock, "hint")
read_from(DataBlock, "source")
read_from(ToolCallBlock, "id", "name", "input", "state")
read_from(ToolResultBlock, "id", "output")

_ID: Final = attrgetter("id")
_CONTENT: Final = attrgetter("content")


class _PlacedPart(Part):
    """A part whose message and blocks are those that the conversation brought last.

    Attributes:
        key: What finds it again, in a copy of its message too.
        said: What each of its blocks said when it was read.
    """

    __slots__ = ("_at", "_messages", "_start", "_stop", "key", "said")

    def __init__(
        self, messages: list[Msg], at: int, place: tuple[int, int], key: Any, said: Sequence[Any], facts: EventFacts
    ) -> None:
        self._messages = messages
        self._at = at
        self._start, self._stop = place
        self.key = key
        self.said = said
        self.facts = facts

    def stands(self, messages: list[Msg], at: int) -> bool:
        """Whether it is a part of the message at this place of a list."""
        return self._messages is messages and self._at == at

    @property
    def message(self) -> Msg:  # type: ignore[override]  # nobody sets it
        return self._messages[self._at]

    @property
    def blocks(self) -> tuple[Any, ...]:  # type: ignore[override]  # as above
        return tuple(self.message.content[self._start : self._stop])


class Parts:
    """The parts of one conversation.

    Args:
        split: How a message falls into parts.
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        self._lock = new_lock(self._begin)
        self._begin()

    def _begin(self) -> None:
        #: The messages of the last turn; parts refer to them through this list.
        self._messages: list[Msg] = []
        self._ids: list[str] = []
        self._sizes: list[int] = []
        #: Of each block its type, and what it said.
        self._types: list[type] = []
        self._said: list[Any] = []
        self._parts: list[_PlacedPart] = []
        #: How many parts there are up to and including each message.
        self._ends: list[int] = []
        self._summary: tuple[Any, Part] | None = None

    def of(self, messages: Iterable[Msg], summary: str | Sequence[Any] = "") -> list[Part]:
        """The parts of these messages, behind the summary that is sent in front of them."""
        with self._lock:
            self._read_on(list(messages))
            return [self._summed(summary), *self._parts] if summary else list(self._parts)

    def _summed(self, summary: str | Sequence[Any]) -> Part:
        if self._summary is None or not equal(self._summary[0], summary):
            self._summary = copied(summary), summary_part(summary)
        return self._summary[1]

    def _read_on(self, messages: list[Msg]) -> None:
        """Keep the parts of messages that are what they were; look at the blocks of the others one by one."""
        blocks = list(chain.from_iterable(map(_CONTENT, messages)))
        ids, sizes = list(map(_ID, messages)), list(map(len, map(_CONTENT, messages)))
        types, said = list(map(type, blocks)), contents(blocks)
        same = min(_common(self._ids, ids), _common(self._sizes, sizes))
        ends = list(accumulate(sizes[:same]))
        alike = min(_common(self._types, types), _common(self._said, said))
        while same and ends[same - 1] > alike:
            same -= 1
        kept_parts, kept_blocks = (self._ends[same - 1], ends[same - 1]) if same else (0, 0)
        known = {part.key: part for part in self._parts[kept_parts:]}
        if same:
            self._messages[:] = messages
        else:
            self._messages = messages
        del self._parts[kept_parts:], self._ends[same:]
        del self._said[kept_blocks:]
        self._said += copied(list(said[kept_blocks:]))
        self._ids, self._sizes, self._types = ids, sizes, types
        for at in range(same, len(messages)):
            kept_blocks = self._take(at, kept_blocks, known)
            self._ends.append(len(self._parts))

    def _take(self, at: int, first: int, known: dict[Any, _PlacedPart]) -> int:
        """Put the parts of one message behind the others; where its blocks end, among those of all, is returned."""
        message, start = self._messages[at], 0
        for blocks, framed in self._split(message):
            stop = start + len(blocks)
            key = message.id, start, framed, *self._types[first + start : first + stop]
            said = self._said[first + start : first + stop]
            held = known.get(key)
            if held is None or not equal(held.said, said):
                facts = part_of(message, blocks, framed=framed).facts
                held = _PlacedPart(self._messages, at, (start, stop), key, said, facts)
            elif not held.stands(self._messages, at):
                held = _PlacedPart(self._messages, at, (start, stop), key, said, held.facts)
            self._parts.append(held)
            start = stop
        return first + start


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many both begin with."""
    shorter = min(len(one), len(other))
    if equal(one[:shorter], other[:shorter]):
        return shorter
    return next(compress(count(), map(ne, one, other)), shorter)
