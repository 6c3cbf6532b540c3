"""Hypothesis strategies: random conversations, as our events or as OpenAI-style chat messages.

A conversation is drawn as a *script*, one `Line` an event, and then said in one vocabulary or the other. Ids come from
a handful, so that they repeat; results come at once, late, joined, twice, or never.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import strategies as st

from otel_assembly import ModelRequest, ModelResponse, ObserverAlert, ToolCallEvent, ToolResultEvent
from otel_assembly.events import CompactionSummary, ToolErrorEvent, ToolResultsEvent, TurnStarted, Usage, UsageEvent

CALL_IDS = ("a", "b", "c", "d")
TEXTS = (
    "",
    "ok",
    "Where is my bag?",
    "The flight was moved to gate 14, boarding begins at 17:40. " * 2,
    "수하물이 어디에 있습니까? 탑승은 17시 40분에 시작합니다.",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    '{"from":"ICN","to":"JFK","seats":[1,2,3],"class":null}',
    "<|endoftext|> is text, <|im_start|> too",
    "half a pair: \ud83d, and a whole one: 😀",
    "lorem ipsum dolor sit amet " * 12,
)
TOOL_NAMES = ("search", "book", "")

texts = st.sampled_from(TEXTS)
call_ids = st.sampled_from(CALL_IDS)


@dataclass
class Line:
    """One event to be."""

    what: str
    text: str = ""
    ids: tuple[str, ...] = ()
    awaiting: frozenset[str] = frozenset()
    names: tuple[str, ...] = field(default=())


@st.composite
def scripts(draw, max_blocks=10, echoes=True, systems=True, asides=True, max_pool=4):
    """Lines in order; see the module."""
    pool = st.sampled_from(CALL_IDS[:max_pool])
    timeline: list[tuple[int, int, Line]] = []
    clock = 0

    def at(time, line):
        timeline.append((time, len(timeline), line))

    if systems:
        for _ in range(draw(st.integers(0, 2))):
            at(clock, Line("system", draw(texts)))
    kinds = ["user", "say", "tools", "tools", "tools", "summary", "stray_result", "stray_call", "late_system"]
    if asides:
        kinds += ["alert", "note", "usage"]
    for _ in range(draw(st.integers(0, max_blocks))):
        clock += 1
        kind = draw(st.sampled_from(kinds))
        if kind == "tools":
            clock = _tool_block(draw, pool, clock, at, echoes)
        elif kind == "stray_result":
            ids = tuple(draw(st.lists(pool, min_size=1, max_size=2)))
            at(clock, Line(draw(st.sampled_from(["result", "results"])), draw(texts), ids, names=("",)))
        elif kind == "stray_call":
            at(clock, Line("call_event", ids=(draw(pool),), names=(draw(st.sampled_from(TOOL_NAMES)),)))
        else:
            at(clock, Line(kind, draw(texts)))
    return [line for _, _, line in sorted(timeline, key=lambda entry: entry[:2])]


def _tool_block(draw, pool, clock, at, echoes):
    ids = draw(st.lists(pool, min_size=1, max_size=3))
    awaiting = frozenset(draw(st.sets(st.sampled_from(ids), max_size=1))) if draw(st.integers(0, 5)) == 0 else ()
    names = tuple(draw(st.sampled_from(TOOL_NAMES)) for _ in ids)
    echo = echoes and draw(st.booleans())
    at(clock, Line("call", draw(texts), tuple(ids), frozenset(awaiting), names))
    if echo:
        for item_id, name in zip(ids, names, strict=True):
            at(clock, Line("call_event", ids=(item_id,), awaiting=frozenset({item_id} & set(awaiting)), names=(name,)))
    answered = [item for item in ids if draw(st.integers(0, 6))]
    if draw(st.booleans()):
        answered.reverse()
    joined = len(answered) > 1 and draw(st.integers(0, 3)) == 0
    delay = 0
    if joined:
        at(clock, Line("results", draw(texts), tuple(answered), names=names))
    else:
        for item_id in answered:
            delay = draw(st.sampled_from([0, 0, 0, 0, 1, 3]))
            at(
                clock + delay,
                Line(draw(st.sampled_from(["result", "result", "error"])), draw(texts), (item_id,), names=("",)),
            )
    if echo and answered and not joined:
        at(clock + delay, Line("results", draw(texts), tuple(answered), names=names))
    return clock


def as_events(script):
    """The script in our own vocabulary."""
    return [_event(line) for line in script]


def _event(line):
    if line.what == "user":
        return ModelRequest(content=line.text)
    if line.what in {"system", "late_system"}:
        return {"role": "system", "content": line.text}
    if line.what == "say":
        return ModelResponse(content=line.text)
    if line.what == "call":
        return ModelResponse(content=line.text, tool_calls=tuple(_calls(line)))
    if line.what == "call_event":
        return next(_calls(line))
    if line.what == "result":
        return ToolResultEvent(parent_id=line.ids[0], name=line.names[0], content=line.text)
    if line.what == "error":
        return ToolErrorEvent(parent_id=line.ids[0], name=line.names[0], error=line.text)
    if line.what == "results":
        return ToolResultsEvent(
            results=tuple(ToolResultEvent(parent_id=item_id, content=line.text) for item_id in line.ids)
        )
    if line.what == "summary":
        return CompactionSummary(summary=line.text)
    return _aside(line)


def _calls(line):
    for item_id, name in zip(line.ids, line.names, strict=True):
        yield ToolCallEvent(
            id=item_id, name=name, arguments=json.dumps({"q": line.text}), awaiting_approval=item_id in line.awaiting
        )


def _aside(line):
    if line.what == "alert":
        return ObserverAlert(source="watch", severity="warning", message=line.text)
    if line.what == "note":
        return TurnStarted(turn=1)
    return UsageEvent(usage=Usage(input_tokens=10))


def as_messages(script):
    """The script as OpenAI-style chat messages; alerts and notes, which have no such form, stay our events."""
    return [_message(line) for line in script]


def _message(line):
    if line.what == "user":
        return {"role": "user", "content": [{"type": "text", "text": line.text}, "and more"]}
    if line.what in {"system", "late_system"}:
        return {"role": "system", "content": line.text}
    if line.what in {"say", "summary"}:
        return {"role": "assistant", "content": line.text}
    if line.what in {"call", "call_event"}:
        calls = []
        for item_id, name in zip(line.ids, line.names, strict=True):
            call = {"id": item_id, "type": "function", "function": {"name": name, "arguments": line.text}}
            calls.append({**call, "awaiting_approval": True} if item_id in line.awaiting else call)
        return {"role": "assistant", "content": line.text or None, "tool_calls": calls}
    if line.what in {"result", "error"}:
        return {"role": "tool", "tool_call_id": line.ids[0], "name": "search", "content": line.text}
    if line.what == "results":
        return {"role": "tool", "tool_call_ids": list(line.ids), "content": line.text}
    return _aside(line)


def conversations(**settings):
    """Random conversations in either vocabulary."""
    return st.one_of(scripts(**settings).map(as_events), scripts(**{**settings, "echoes": False}).map(as_messages))


prompt_lists = st.lists(texts, max_size=2)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search flights.",
            "parameters": {"type": "object", "properties": {"to": {"type": "string", "description": "a code"}}},
        },
    },
)
