"""What the tests check prompts with: which result answers which call, and what a prompt costs, worked out anew.

Nothing here asks the package how it reads, pairs or counts: events are read by their own attributes, pairs are found by
position, tokens with an encoding of tiktoken's own making.
"""

from __future__ import annotations

import base64
import functools
import lzma
import string
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tiktoken
import tiktoken_ext.openai_public as published

import otel_assembly.tokens
from otel_assembly import ModelRequest, ModelResponse, ToolCallEvent, ToolResultEvent
from otel_assembly.events import CompactionSummary, ToolErrorEvent, ToolResultsEvent

VOCABULARIES = Path(otel_assembly.tokens.__file__).parent / "vocabularies"


@dataclass
class Read:
    """An event as a person would read it."""

    kind: str
    texts: list[str] = field(default_factory=list)
    name: str = ""
    opens: list[str] = field(default_factory=list)
    awaiting: set[str] = field(default_factory=set)
    closes: list[str] = field(default_factory=list)
    restates: bool = False


def sent_name(name: str) -> str:
    """A tool's name with the characters and the length that providers accept."""
    plain = string.ascii_letters + string.digits + "_-"
    return "".join(letter if letter in plain else "_" for letter in name)[:64] or "unnamed"


def read(event) -> Read:
    if isinstance(event, Read):
        return event
    if isinstance(event, dict):
        return _read_message(event)
    if isinstance(event, ModelRequest):
        return Read("request", [event.content])
    if isinstance(event, ModelResponse):
        spelled = [text for call in event.tool_calls for text in (sent_name(call.name), call.arguments)]
        return Read(
            "response",
            [event.content, *spelled],
            opens=[call.id for call in event.tool_calls],
            awaiting={call.id for call in event.tool_calls if call.awaiting_approval},
        )
    if isinstance(event, ToolCallEvent):
        awaiting = {event.id} if event.awaiting_approval else set()
        return Read(
            "call", [sent_name(event.name), event.arguments], opens=[event.id], awaiting=awaiting, restates=True
        )
    if isinstance(event, ToolResultEvent):
        return Read("result", [event.content], closes=[event.parent_id], restates=True)
    if isinstance(event, ToolErrorEvent):
        return Read("result", [event.error], closes=[event.parent_id], restates=True)
    if isinstance(event, ToolResultsEvent):
        said = [getattr(result, "content", None) or getattr(result, "error", "") for result in event.results]
        return Read("result", said, closes=[result.parent_id for result in event.results], restates=True)
    if isinstance(event, CompactionSummary):
        return Read("summary", [f"[Earlier messages, summarised: details may be missing]\n{event.summary}"])
    return Read("aside")


def _read_message(message: dict) -> Read:
    role = message["role"]
    content = message.get("content")
    said = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        said = [part if isinstance(part, str) else part["text"] for part in content]
    if role == "assistant":
        calls = message.get("tool_calls") or []
        for call in calls:
            said += [sent_name(call["function"]["name"]), call["function"]["arguments"]]
        waiting = {call["id"] for call in calls if call.get("awaiting_approval")}
        return Read("response", said, opens=[call["id"] for call in calls], awaiting=waiting)
    if role == "tool":
        closes = message.get("tool_call_ids") or [message["tool_call_id"]]
        return Read("result", said, closes=list(closes))
    return Read({"user": "request", "system": "system"}[role], said)


@dataclass
class Call:
    """One call of one event."""

    id: str
    asked: int
    awaiting: bool
    answered: int | None = None


@dataclass
class Pairs:
    """Which result answers which call, by position."""

    calls: list[Call]
    #: Results without a call.
    orphans: set[int]
    #: Events that say again what others said, and where those calls were asked.
    echoes: dict[int, set[int]]
    last_response: int
    #: Answers that also restate other calls, and where those were asked.
    also: dict[int, set[int]]

    def atoms(self, length: int) -> list[set[int]]:
        """For each position, all the positions that stand or fall with it."""
        group = [{position} for position in range(length)]
        bonds = [(call.asked, call.answered) for call in self.calls if call.answered is not None]
        bonds += [(echo, asked) for echo, places in self.echoes.items() for asked in places]
        bonds += [(answer, asked) for answer, places in self.also.items() for asked in places]
        for item, other in bonds:
            if group[item] is not group[other]:
                group[item] |= group[other]
                for position in group[other]:
                    group[position] = group[item]
        return group

    def waits(self, asked: int) -> bool:
        """Whether a call of this event explicitly awaits an approval and has none yet."""
        return any(call.awaiting and call.answered is None for call in self.calls if call.asked == asked)

    def dead_calls(self) -> set[int]:
        """Events with a call that has no result and waits for none."""
        return {
            call.asked
            for call in self.calls
            if call.answered is None and call.asked < self.last_response and not self.waits(call.asked)
        }

    def unsendable(self, length: int) -> set[int]:
        """All that no prompt may have."""
        atoms = self.atoms(length)
        return set().union(*(atoms[position] for position in self.orphans | self.dead_calls()), set())


def pair(events) -> Pairs:
    """Go through the events; a result answers the nearest earlier unanswered call of its id."""
    calls: list[Call] = []
    orphans: set[int] = set()
    echoes: dict[int, set[int]] = {}
    also: dict[int, set[int]] = {}
    last_response = -1
    for position, fact in enumerate(map(read, events)):
        if fact.kind == "response":
            last_response = position
        if fact.opens:
            nearest = [_nearest(calls, name) for name in fact.opens]
            if fact.restates and all(nearest):
                echoes[position] = {call.asked for call in nearest}
                for call in nearest:
                    call.awaiting = call.awaiting or call.id in fact.awaiting
            else:
                calls += [Call(name, position, name in fact.awaiting) for name in fact.opens]
        elif fact.kind == "result" or fact.closes:
            found, again = _answers(calls, fact)
            if found is None:
                orphans.add(position)
                continue
            for call in found:
                call.answered = position
            (also if found else echoes)[position] = again
    return Pairs(calls, orphans, echoes, last_response, also)


def _nearest(calls, name, skip=()):
    return next(
        (c for c in reversed(calls) if c.id == name and c.answered is None and not any(c is s for s in skip)), None
    )


def _answers(calls, fact):
    found, again = [], set()
    for name in fact.closes:
        call = _nearest(calls, name, found)
        if call is not None:
            found.append(call)
            continue
        done = [c for c in calls if c.id == name and c.answered is not None]
        if not fact.restates or not done:
            return None, set()
        again.add(max(done, key=lambda c: c.answered).asked)
    return (found, again) if fact.closes else (None, set())


def positions_of(events, kept) -> list[int]:
    """Where the kept events stood; they must be the very objects, in their order."""
    found, at = [], 0
    for event in kept:
        while at < len(events) and events[at] is not event:
            at += 1
        assert at < len(events), f"{event!r} did not come in, or not in this order"
        found.append(at)
        at += 1
    return found


def assert_sendable(events, kept) -> None:
    """No result without its call, no call without its result except the pending ones; nothing half kept."""
    places = set(positions_of(events, kept))
    pairs = pair(events)
    broken = places & pairs.unsendable(len(events))
    assert not broken, f"kept {sorted(broken)}, which have lost their other half"
    for atom in pairs.atoms(len(events)):
        assert atom <= places or not atom & places, f"of {sorted(atom)} only {sorted(atom & places)} was kept"
    again = pair(kept)
    assert not again.orphans, f"results without a call at {sorted(again.orphans)} of the prompt"
    assert not again.dead_calls(), f"calls without a result at {sorted(again.dead_calls())} of the prompt"


def leading_systems(events) -> list[int]:
    """System messages before anything else that a model reads."""
    found = []
    for position, fact in enumerate(map(read, events)):
        if fact.kind == "aside":
            continue
        if fact.kind != "system":
            break
        found.append(position)
    return found


def newest_request(events) -> int | None:
    places = [position for position, fact in enumerate(map(read, events)) if fact.kind == "request"]
    return places[-1] if places else None


def newest_atom(events) -> set[int]:
    """The newest message with all that belongs to it; what cannot be sent is none."""
    pairs = pair(events)
    bad = pairs.unsendable(len(events))
    atoms = pairs.atoms(len(events))
    return next(
        (atoms[p] for p in reversed(range(len(events))) if p not in bad and read(events[p]).kind != "aside"), set()
    )


def awaiting(events) -> set[int]:
    """The atoms of the calls that await an approval."""
    pairs = pair(events)
    atoms = pairs.atoms(len(events))
    waiting = {position for call in pairs.calls if pairs.waits(call.asked) for position in atoms[call.asked]}
    return waiting - pairs.unsendable(len(events))


@functools.cache
def encoding(name: str) -> tiktoken.Encoding:
    """tiktoken's own constructor, fed with the bundled file."""
    lines = lzma.decompress((VOCABULARIES / f"{name}.tiktoken.xz").read_bytes()).splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published, "load_tiktoken_bpe", lambda *_, **__: ranks)
        return tiktoken.Encoding(**getattr(published, name)())


@functools.lru_cache(maxsize=4096)
def count(text: str, name: str = "o200k_base") -> int:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(encoding(name).encode(whole, disallowed_special=()))


def event_tokens(event, name: str = "o200k_base") -> int:
    """3 a message and 1 for its role; 1 beside a name; 3 around a call; every text alone."""
    one = read(event)
    if one.kind == "aside":
        return 0
    framing = 4 * max(1, len(one.closes)) + 3 * len(one.opens) + bool(one.name)
    return framing + sum(count(text, name) for text in [*one.texts, one.name] if text)


def prompt_tokens(prompts, events, tools: int = 0, name: str = "o200k_base") -> int:
    """The whole rendered prompt: prompts, tools, every message once, and 3 for the reply."""
    echoes = pair(events).echoes
    said = sum(event_tokens(event, name) for position, event in enumerate(events) if position not in echoes)
    return sum(4 + count(prompt, name) for prompt in prompts) + tools + said + 3
