"""How much of a prompt a provider finds in its cache, turn after turn at a ceiling: ours beside peers.

Recorded conversations (the airline transcripts beside the checkout; without them, seeded ones) are joined into a few
long ones, and the context of every assistant turn is assembled. Reducers see the same messages and are measured by the
same ruler, which asks none of them: the bytes of the kept messages, message by message, and their tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.harness import Size, Table
from benchmarks.workload import MODEL, counting
from benchmarks.workload import messages as seeded
from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    History,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)
from otel_assembly.messages import broken_pairs
from otel_assembly.recorder import NullRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.policies import AssemblyPolicy

CEILING = 8_000
LEAST = 400
#: How many conversations.
SIZES: dict[Size, int] = {"full": 3, "quick": 2, "tiny": 1}
TRANSCRIPTS = Path(__file__).parents[2] / "shared" / "data" / "airline_support_dev.jsonl"

_tokens = counting()
_PRIMING = 3


@dataclass
class Talk:
    """A long conversation: what each message weighs, in the ruler's own counting."""

    system: dict[str, Any]
    messages: list[dict[str, Any]]

    @cached_property
    def bytes(self) -> list[bytes]:
        return [json.dumps(message, ensure_ascii=False).encode() for message in self.messages]

    @cached_property
    def tokens(self) -> list[int]:
        return [_tokens(message) for message in self.messages]

    @cached_property
    def system_bytes(self) -> bytes:
        return json.dumps(self.system, ensure_ascii=False).encode()

    @cached_property
    def around(self) -> int:
        return _tokens(self.system) + _PRIMING

    def size(self, kept: Sequence[int]) -> int:
        """Tokens of the prompt of these messages."""
        return self.around + sum(self.tokens[index] for index in kept)

    def reuse(self, before: Sequence[int], after: Sequence[int]) -> float:
        """The share of the one prompt's bytes with which the other begins."""
        old, new = (self.system_bytes + b"".join(self.bytes[index] for index in kept) for kept in (before, after))
        same = next((at for at, (item, other) in enumerate(zip(old, new, strict=False)) if item != other), len(new))
        return min(same, len(old)) / len(old)


class Reducer(Protocol):
    """Told how many messages there are; says which of them it would send, by index."""

    async def keep(self, count: int) -> list[int]: ...


class Ours:
    """A filter and a reducer over a `History`."""

    def __init__(self, talk: Talk, reducer: AssemblyPolicy) -> None:
        self._talk = talk
        self._history = History()
        self._context = Context(agent_name="bench")
        self._assembler = Assembler([ConversationPolicy(), reducer], model=MODEL, recorder=NullRecorder())

    async def keep(self, count: int) -> list[int]:
        self._history.extend(self._talk.messages[len(self._history) : count])
        assembly = await self._assembler.assemble([self._talk.system["content"]], self._history, self._context)
        return [int(item) for item in assembly.items]


class LangChain:
    """``trim_messages`` as its documentation has it, with an exact counter that is the ruler's own."""

    def __init__(self, talk: Talk) -> None:
        from langchain_core.messages import convert_to_messages, trim_messages

        everything = [talk.system, *talk.messages]
        self._trim = trim_messages
        self._messages = [
            message.model_copy(update={"id": str(index - 1)})
            for index, message in enumerate(convert_to_messages(everything))
        ]
        self._tokens = {str(index - 1): tokens for index, tokens in enumerate([_tokens(talk.system), *talk.tokens])}

    async def keep(self, count: int) -> list[int]:
        kept = self._trim(
            self._messages[: count + 1],
            max_tokens=CEILING,
            token_counter=lambda some: _PRIMING + sum(self._tokens[str(item.id)] for item in some),
            strategy="last",
            start_on="human",
            include_system=True,
        )
        return [int(message.id) for message in kept[1:]]


class AG2:
    """A reducer of AG2, given one event a message."""

    def __init__(self, talk: Talk, reducer: Any) -> None:
        from ag2.events import ModelRequest, TextInput, ToolResultEvent, ToolResultsEvent
        from ag2.tools import ToolResult

        self._reducer = reducer
        self._events: list[Any] = []
        for message in talk.messages:
            text = message.get("content") or ""
            if message["role"] == "user":
                self._events.append(ModelRequest([TextInput(text)]))
            elif message["role"] == "tool":
                answer = ToolResultEvent(
                    parent_id=message["tool_call_id"], name=message.get("name"), result=ToolResult(text)
                )
                self._events.append(ToolResultsEvent([answer]))
            else:
                self._events.append(self._response(message, text))
        self._index = {id(event): index for index, event in enumerate(self._events)}

    @staticmethod
    def _response(message: dict[str, Any], text: str) -> Any:
        from ag2.events import ModelMessage, ModelResponse, ToolCallEvent, ToolCallsEvent

        calls = [
            ToolCallEvent(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return ModelResponse(ModelMessage(text), tool_calls=ToolCallsEvent(calls))

    async def keep(self, count: int) -> list[int]:
        _, kept = await self._reducer.apply([], self._events[:count], None)
        return [self._index[id(event)] for event in kept]


class Strands:
    """The sliding window of Strands, which takes messages out of its agent's list."""

    def __init__(self, talk: Talk, window: int) -> None:
        from strands.agent.conversation_manager import SlidingWindowConversationManager

        self._manager = SlidingWindowConversationManager(window_size=window, per_turn=True)
        self._everything = [self._message(message) for message in talk.messages]
        self._index = {id(message): index for index, message in enumerate(self._everything)}
        self._seen = 0
        self.messages: list[Any] = []

    @staticmethod
    def _message(message: dict[str, Any]) -> dict[str, Any]:
        text = message.get("content") or ""
        if message["role"] == "tool":
            result = {"toolUseId": message["tool_call_id"], "status": "success", "content": [{"text": text}]}
            return {"role": "user", "content": [{"toolResult": result}]}
        content: list[Any] = [{"text": text}] if text else []
        for call in message.get("tool_calls") or []:
            function = call["function"]
            use = {"toolUseId": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
            content.append({"toolUse": use})
        return {"role": message["role"], "content": content}

    async def keep(self, count: int) -> list[int]:
        self.messages += self._everything[self._seen : count]
        self._seen = count
        self._manager.apply_management(self)  # type: ignore[arg-type]  # of an agent it uses the list of messages
        return [self._index[id(message)] for message in self.messages]


@dataclass
class Measured:
    """What a reducer did to all conversations; a turn at the ceiling is one whose whole conversation is above it."""

    reuse: list[float] = field(default_factory=list)
    reuse_at_ceiling: list[float] = field(default_factory=list)
    sizes_at_ceiling: list[int] = field(default_factory=list)
    largest: int = 0
    orphans: int = 0

    @staticmethod
    def _steady(reuse: list[float]) -> float:
        return fmean(item >= 0.9 for item in reuse)

    @property
    def steady(self) -> float:
        """The share of turns that begin with at least 90 % of the prompt before."""
        return self._steady(self.reuse)

    @property
    def steady_at_ceiling(self) -> float:
        return self._steady(self.reuse_at_ceiling)

    @property
    def utilization(self) -> float:
        """How full the ceiling is on average, of the turns at it."""
        return fmean(self.sizes_at_ceiling) / CEILING


def talks(count: int) -> list[Talk]:
    """Long conversations, of at least `LEAST` messages each."""
    if not TRANSCRIPTS.is_file():
        system = {"role": "system", "content": "You are a support agent. " + "Follow the shop's rules. " * 200}
        return [Talk(system, seeded(LEAST, seed=seed)) for seed in range(count)]
    made: list[Talk] = []
    gathered: list[dict[str, Any]] = []
    for line in TRANSCRIPTS.read_text(encoding="utf-8").splitlines():
        system, *rest = json.loads(line)["messages"]
        gathered += rest
        if len(gathered) >= LEAST:
            made.append(Talk(system, gathered))
            gathered = []
    return made[:count]


async def measure(talks: Sequence[Talk], make: Callable[[Talk], Reducer]) -> Measured:
    """Every assistant turn of every conversation."""
    measured = Measured()
    for talk in talks:
        reducer = make(talk)
        before: list[int] | None = None
        for count, message in enumerate(talk.messages):
            if message["role"] != "assistant":
                continue
            kept = await reducer.keep(count)
            ceiling = talk.size(range(count)) > CEILING
            size = talk.size(kept)
            if before is not None:
                reuse = talk.reuse(before, kept)
                measured.reuse.append(reuse)
                if ceiling:
                    measured.reuse_at_ceiling.append(reuse)
            if ceiling:
                measured.sizes_at_ceiling.append(size)
            measured.largest = max(measured.largest, size)
            measured.orphans += len(broken_pairs([describe(talk.messages[index]) for index in kept]))
            before = kept
    return measured


def reducers(talks: Sequence[Talk]) -> dict[str, Callable[[Talk], Reducer]]:
    """Ours, and the peers that are installed."""
    # A window that counts messages knows no ceiling: it gets as many as fit on average.
    mean = fmean(tokens for talk in talks for tokens in talk.tokens)
    window = round((CEILING - fmean(talk.around for talk in talks)) / mean)
    found: dict[str, Callable[[Talk], Reducer]] = {
        "ours, BudgetPolicy": lambda talk: Ours(talk, BudgetPolicy(CEILING, 0)),
        "ours, BudgetPolicy, step_tokens=4_000": lambda talk: Ours(talk, BudgetPolicy(CEILING, 0, step_tokens=4_000)),
        "ours, BudgetPolicy, step_tokens=0": lambda talk: Ours(talk, BudgetPolicy(CEILING, 0, step_tokens=0)),
        "ours, TokenBudgetPolicy": lambda talk: Ours(talk, TokenBudgetPolicy(CEILING)),
        f"ours, SlidingWindowPolicy({window})": lambda talk: Ours(talk, SlidingWindowPolicy(window)),
        f"ours, SlidingWindowPolicy({window}, stride={window // 4})": lambda talk: Ours(
            talk, SlidingWindowPolicy(window, stride=window // 4)
        ),
    }
    try:
        import langchain_core  # noqa: F401

        found[f"LangChain {version('langchain-core')}, trim_messages, exact"] = LangChain
    except ImportError:
        pass
    try:
        from ag2.policies import SlidingWindowPolicy as TheirWindow
        from ag2.policies import TokenBudgetPolicy as TheirBudget

        ag2 = f"ag2 {version('ag2')}"
        found[f"{ag2}, TokenBudgetPolicy"] = lambda talk: AG2(talk, TheirBudget(CEILING))
        found[f"{ag2}, SlidingWindowPolicy({window})"] = lambda talk: AG2(talk, TheirWindow(window))
    except ImportError:
        pass
    try:
        import strands  # noqa: F401

        found[f"Strands {version('strands-agents')}, sliding window of {window}"] = lambda talk: Strands(talk, window)
    except ImportError:
        pass
    return found


async def report(size: Size) -> list[Table]:
    """A row for each reducer."""
    conversations = talks(SIZES[size])
    lengths = sorted(len(talk.messages) for talk in conversations)
    turns = sum(message["role"] == "assistant" for talk in conversations for message in talk.messages)
    source = "recorded" if TRANSCRIPTS.is_file() else "seeded"
    long = f"{lengths[0]} to {lengths[-1]} messages"
    table = Table(
        "prefix",
        f"prefixes at {CEILING:,} tokens: {len(conversations)} {source} conversations of {long}, {turns:,} turns",
        [
            "reducer",
            "turns that reuse ≥ 90 %",
            "at the ceiling",
            "mean reuse",
            "budget used",
            "broken pairs",
            "largest prompt",
        ],
    )
    for name, make in reducers(conversations).items():
        found = await measure(conversations, make)
        shares = (found.steady, found.steady_at_ceiling, fmean(found.reuse), found.utilization)
        table.rows[name] = [*(f"{share:.1%}" for share in shares), found.orphans, found.largest]
    return [table]
