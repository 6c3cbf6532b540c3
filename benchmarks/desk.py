"""How much of a `ContextAssembler`'s prompt a provider finds in its cache, turn after turn, in each of its orders.

A support desk's chat: a profile that stays, passages and memories that are others for each question, a state that
changes now and then, turns that only become more. Measured is what is sent, message by message as JSON: what of the
last prompt's bytes stands in messages that the next one begins with.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table
from otel_assembly import Context, ContextAssembler, Task
from otel_assembly.context_assembler import Candidate
from otel_assembly.recorder import NullRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

TURNS = 60
SIZES: dict[Size, tuple[int, ...]] = {"full": (4_000, 8_000, 32_000), "quick": (4_000, 8_000), "tiny": (8_000,)}
_RESERVE = 500
_RECENT = 12
_WORDS = """
    the of a to in is it you for on we by or at as an be if do no so my us, not has can was are, our will 14 1042, 7
    order refund invoice parcel depot delivery customer account charge policy window return label address email
    monthly annual plan upgrade support agent ticket review confirm within working days before please
""".split()  # noqa: SIM905  # a list of literals is a screen long


def prose(rng: random.Random, words: int) -> str:
    """A text of so many words, with some five bytes a token, as in English."""
    return " ".join(rng.choice(_WORDS) for _ in range(words)).capitalize() + "."


@dataclass
class Chat:
    """What a chat brings to each of its turns."""

    #: Passages for each question, and their words.
    passages: int
    words: int = 100
    #: Whether each question finds others.
    fresh: bool = True
    #: After so many turns the state says something else; 0 for never.
    state_every: int = 10
    #: How many tool calls the model makes for each question before it answers.
    calls: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(11))

    def __post_init__(self) -> None:
        rng = self.rng
        self.system = prose(rng, 450)
        self.schema = {"type": "object", "required": ["answer", "sources"], "description": prose(rng, 60)}
        self.examples = [prose(rng, 80) for _ in range(3)]
        self.profile = [Candidate(f"p{at}", prose(rng, 25), "s", profile=True, score=1.0) for at in range(4)]
        self.turn = 0
        self._same = self._pages("same")

    def _pages(self, name: str) -> list[Candidate]:
        rng = self.rng
        return [
            Candidate(f"{name}-{at}", prose(rng, max(10, round(rng.gauss(self.words, self.words / 4)))), "s")
            for at in range(self.passages)
        ]

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> list[Candidate]:
        return self._found

    async def recall(self, query: str, *, user: Any, scopes: Collection[str], k: int) -> list[Candidate]:
        return [*self.profile, *self._memories]

    def begin(self, turn: int) -> None:
        """Another question: what it finds, which is the same for all model calls that it takes."""
        self.turn = turn
        self._found = self._pages(f"turn-{turn}") if self.fresh else self._same
        self._memories = [Candidate(f"m{turn}-{at}", prose(self.rng, 25), "s", score=0.5) for at in range(2)]

    def state(self, task: Task, scopes: Collection[str]) -> dict[str, Any]:
        changed = self.turn // self.state_every if self.state_every else 0
        return {"plan": "pro", "open_cases": [f"C-{changed}"], "since": "2024-03-01"}


@dataclass
class Reused:
    """What the prompts of a chat share with the one before each.

    Attributes:
        reuse: The share of the previous prompt's bytes with which each begins.
        most: The share of the previous prompt that stands in front of all that its question brought.
        used: How full the budget was, where it could not hold everything.
    """

    reuse: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)


def _size(messages: Iterable[Any]) -> int:
    return sum(len(json.dumps(message, ensure_ascii=False).encode()) for message in messages)


async def measure(chat: Chat, window: int, order: Any) -> Reused:
    """A whole chat in one order."""
    assembler = ContextAssembler(
        system=chat.system,
        window=window,
        output_reserve=_RESERVE,
        scopes=lambda user, task: {"s"},
        retrievers=[chat],
        recall=chat,
        state=chat.state,
        examples=chat.examples,
        order=order,
        recorder=NullRecorder(),
    )
    found, context = Reused(), Context(agent_name="bench")
    turns: list[dict[str, Any]] = []
    before: list[Any] = []
    stays = 0
    for turn in range(TURNS):
        chat.begin(turn)
        question = prose(chat.rng, 30)
        said: list[dict[str, Any]] = []
        for call in range(chat.calls + 1):
            held = [*turns, *said]
            task = Task(question, output_schema=chat.schema, older=held[:-_RECENT], recent=held[-_RECENT:])
            made = await assembler.assemble(task, user="ada", context=context)
            after = made.messages
            if before:
                same = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
                found.reuse.append(_size(item for item, _ in same) / _size(before))
                found.most.append(stays / _size(before))
            if made.allocation.dropped:
                found.used.append(made.allocation.utilization)
            before, stays = after, _size(after[: made.prompt.breakpoints[-1] + 1])
            if call < chat.calls:
                said += _call(chat.rng, f"{turn}-{call}")
        turns += [{"role": "user", "content": question}, *said, {"role": "assistant", "content": prose(chat.rng, 110)}]
    return found


def _call(rng: random.Random, name: str) -> list[dict[str, Any]]:
    call = {"id": name, "type": "function", "function": {"name": "look_up", "arguments": '{"order": 1042}'}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": prose(rng, 80)},
    ]


CHATS: dict[str, Callable[[], Chat]] = {
    "6 passages of 100 words, others each turn": lambda: Chat(6),
    "12 passages of 100 words, others each turn": lambda: Chat(12),
    "no passages": lambda: Chat(0),
    "6 passages, the same on all turns": lambda: Chat(6, fresh=False),
    "6 passages, two tool calls a question": lambda: Chat(6, calls=2),
}


async def report(size: Size) -> list[Table]:
    """A row for each chat and window."""
    table = Table(
        "desk",
        f"prompts of a ContextAssembler, {TURNS} turns: mean share of the previous prompt at the start of the next one",
        [
            "chat",
            "order=attention",
            "order=cache",
            "what a chat keeps",
            "turns that reach it",
            "budget used where cut, attention",
            "cache",
        ],
    )
    for name, chat in CHATS.items():
        for window in SIZES[size]:
            attention, cache = [await measure(chat(), window, order) for order in ("attention", "cache")]
            reach = fmean(item >= 0.98 * most for item, most in zip(cache.reuse, cache.most, strict=True))
            shares = (fmean(attention.reuse), fmean(cache.reuse), fmean(cache.most), reach)
            table.rows[f"{name}, window of {window:,}"] = [
                *(f"{share:.0%}" for share in shares),
                _used(attention),
                _used(cache),
            ]
    return [table]


def _used(reused: Reused) -> str | None:
    return f"{fmean(reused.used):.0%}" if reused.used else None
