"""Conversations, chains, reducers and blocks drawn from a seed: the same on every machine and with every release."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from counting import WordCounter
from telemetry.random_runs import DropAnswers, Flaky, Newest, Remind, Shorten, Summarise

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Block,
    BlockItem,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextAssembler,
    ContextOverflowError,
    ConversationPolicy,
    EpisodicMemoryPolicy,
    History,
    ModelResponse,
    SlidingWindowPolicy,
    Task,
    TokenBudgetPolicy,
    WorkingMemoryPolicy,
    allocate,
)
from otel_assembly.budget import Compactors
from otel_assembly.context_assembler import Candidate
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.observe import ObservedAssembler
from otel_assembly.testing import conversation

#: Transcripts that may not be handed on, and so lie beside the checkout, where they lie at all.
TRANSCRIPTS = Path(__file__).parents[3] / "shared" / "data" / "airline_support_dev.jsonl"
TEXTS = ("yes", "where is order 9981", "the refund", "é and ü, 日本", "alpha beta gamma delta " * 6, "go on " * 20)


def script(r):
    """Turns, each a list of words of `conversation`."""
    turns, unanswered, calls = [], [], 0
    for _ in range(r.randint(3, 14)):
        turn = []
        for _ in range(r.choice((1, 1, 2, 2, 3, 5, 12))):
            kind, text = r.random(), r.choice(TEXTS)
            if kind < 0.3:
                turn.append(f"ask: {text}")
            elif kind < 0.5:
                turn.append(f"answer: {text}")
            elif kind < 0.65:
                asked = [f"c{calls + n if r.random() < 0.9 else 0}" for n in range(r.choice((1, 1, 2)))]
                calls += len(asked)
                unanswered += asked
                turn.append(f"call {' '.join(dict.fromkeys(asked))}: {text}")
            elif kind < 0.85 and unanswered:
                answered = unanswered.pop(r.randrange(len(unanswered))) if r.random() < 0.93 else "stray"
                turn.append(f"{r.choice(('result', 'result', 'error'))} {answered}: {text}")
            else:
                turn.append(r.choice((f"summary: {text}", f"alert: {text}", "note", f"system: {text}", "ask")))
        turns.append(turn)
    return turns


def as_chat(event, words):
    """The same event as a chat dict, where there is one."""
    head, _, text = words.partition(": ")
    what, *ids = head.split()
    match what:
        case "ask":
            return {"role": "user", "content": text}
        case "answer":
            return {"role": "assistant", "content": [{"type": "text", "text": text}]}
        case "call":
            spelled = [{"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in ids]
            return {"role": "assistant", "content": None, "tool_calls": spelled}
        case "result":
            return {"role": "tool", "tool_call_id": ids[0], "content": text}
    return event


def turns_of(r):
    """The events of each turn."""
    chat = r.random() < 0.4
    for turn in script(r):
        events = conversation(*turn)
        yield [as_chat(event, words) for event, words in zip(events, turn, strict=True)] if chat else events


class Wrong:
    name = "wrong"

    async def apply(self, prompts, events, context):
        return (prompts, None) if len(events) % 4 == 0 else (prompts, events)


def first_words(text, target_tokens):
    return " ".join(text.split()[: max(1, target_tokens // 2)])


def whims(text, target_tokens):
    """A compactor that now fails, and now makes more or less of what it is given."""
    return " ".join(text.split()[: target_tokens * 7 % 11])


def fails(text, target_tokens):
    raise RuntimeError("down")


COMPACT = (None, None, Compactors(first_words, fallback=None), Compactors(whims, fallback=None), Compactors(fails))


def policy(r, budget):
    on_overflow = r.choice(("raise", "drop"))
    return r.choice(
        (
            lambda: ConversationPolicy(),
            lambda: SlidingWindowPolicy(r.randint(1, 8), transparent=r.random() < 0.5),
            lambda: SlidingWindowPolicy(r.randint(2, 8), stride=2),
            lambda: TokenBudgetPolicy(budget, on_overflow=on_overflow, transparent=r.random() < 0.3),
            lambda: TokenBudgetPolicy(budget, on_overflow=on_overflow, step_tokens=20),
            lambda: BudgetPolicy(window=budget, output_reserve=9, on_overflow=on_overflow, compact=r.choice(COMPACT)),
            lambda: BudgetPolicy(window=budget, output_reserve=0, on_overflow=on_overflow, step_tokens=25),
            lambda: AlertPolicy(),
            lambda: r.choice((DropAnswers, Summarise, Shorten, Remind, Newest, Flaky, Wrong))(),
        )
    )()


def changed(r, events):
    """A list as a caller might rearrange it between two turns."""
    how = r.random()
    if how < 0.1 and len(events) > 1:
        return [*events[1:2], *events[:1], *events[2:]]
    if how < 0.2 and len(events) > 2:
        return events[1:]
    if how < 0.4:
        return [dict(e) if isinstance(e, dict) else e.model_copy() for e in events]
    return list(events)


async def memory(r):
    store = MemoryKnowledgeStore()
    await store.write("/memory/working.md", r.choice(TEXTS))
    for number in range(r.randint(0, 4)):
        await store.write(f"/memory/conversations/{number}.md", r.choice(TEXTS))
    return store


def answer_of(assembly):
    """All that an assembly says of itself, but for its random ids."""
    return (
        assembly.turn,
        assembly.items,
        [str(getattr(event, "id", event)) for event in assembly.events],
        assembly.prompts,
        [(d.item, d.kind, d.tokens, str(d.outcome), str(d.reason), d.policy, d.index) for d in assembly.decisions],
        repr(assembly.totals),
        repr(assembly.kinds),
        repr(assembly.prefix),
    )


async def assembled(seed, telemetry):
    """A conversation through a chain of policies, turn by turn: what each assembly answers."""
    r = random.Random(f"assembled {seed}")
    budget = r.choice((40, 90, 200, 900, 5_000))
    chain = [policy(r, budget) for _ in range(r.randint(1, 3))]
    context = Context(agent_name=r.choice((None, "desk")))
    if r.random() < 0.15:
        chain.insert(0, WorkingMemoryPolicy())
        chain.insert(0, EpisodicMemoryPolicy())
        context = Context(agent_name="desk", dependencies={KnowledgeStore: await memory(r)})
    kind = r.choice(("history", "history", "list", "changed"))
    counter = WordCounter() if r.random() < 0.7 else None
    try:
        assembler = Assembler(
            chain,
            recorder=telemetry.recorder,
            counter=counter,
            on_policy_error=r.choice(("raise", "skip")),
            strict=False,
        )
    except ConfigurationError as refused:
        return [str(refused)]
    return await played(r, assembler, context, kind)


async def played(r, assembler, context, kind):
    answers, events, history = [], [], History()
    prompts = ["be kind"]
    for turn in turns_of(r):
        events += turn
        history.extend(turn)
        if r.random() < 0.1:
            prompts = [*prompts, "and short"]
        given = history if kind == "history" else events if kind == "list" else changed(r, events)
        try:
            answer = answer_of(await assembler.assemble(prompts, given, context))
        except AssemblyError as error:
            answer = (type(error).__name__, str(error))
        answers.append(answer if r.random() < 0.7 else "not looked at")
    return answers


REDUCERS = {
    "window": lambda r, made, events, n: events[-n:],
    "every_other": lambda r, made, events, n: events[n % 2 :: 2],
    "copies": lambda r, made, events, n: [dict(e) if isinstance(e, dict) else e.model_copy() for e in events],
    "head_and_tail": lambda r, made, events, n: events if len(events) <= 2 * n else events[:n] + events[-n:],
    "summarises": lambda r, made, events, n: events if len(events) <= n + 1 else [made(), *events[-n:]],
    "newest_first": lambda r, made, events, n: [*events[-1:], *events[:-1]],
    "reminds": lambda r, made, events, n: [*events, made()],
    "nothing": lambda r, made, events, n: list(events),
    "rewrites": lambda r, made, events, n: [made() if r.random() < 0.1 else e for e in events],
}


async def observed(seed, telemetry):
    """A conversation that somebody else's reducers cut, turn by turn."""
    r = random.Random(f"observed {seed}")
    counter = WordCounter() if r.random() < 0.7 else None
    assembler = ObservedAssembler("peer", recorder=telemetry.recorder, counter=counter)
    chain = [(r.choice(sorted(REDUCERS)), r.randint(1, 6)) for _ in range(r.randint(1, 3))]
    stored, unknown = r.random() < 0.4, r.random() < 0.08
    state, number = [], 0

    def made():
        nonlocal number
        number += 1
        return {"role": "user", "content": f"made {number % 3}", "id": f"made{number}"}

    for turn in turns_of(r):
        state = [dict(e) if isinstance(e, dict) else e.model_copy() for e in state] if stored else state
        state = [*state, *turn]
        events, prompts = list(state), ["be kind"]
        assembly = assembler.begin(
            "thread", events, prompts=prompts, agent_name="desk", conversation_id="thread", unknown_input=unknown
        )
        assert assembly is not None
        for name, n in chain:
            out = REDUCERS[name](r, made, events, n)
            fixed = r.random() < 0.1
            with assembly.step(name, config={"n": n}) as step:
                if r.random() < 0.05:
                    step.failed(RuntimeError("no luck"))
                else:
                    step.out(out, prompts=[*prompts, "more"] if fixed else None)
                    events, prompts = out, [*prompts, "more"] if fixed else prompts
        assembly.end()
        state = events if r.random() < 0.2 else state
    return []


SAYINGS = ("a b c d e f", "one. two. three. four. five. six. " * 6, "{[(<>)]}", "\n\n\n x", *TEXTS)


def block(r, name):
    item = lambda: BlockItem(  # noqa: E731
        r.choice(SAYINGS),
        rank=r.choice((None, 1, 2)),
        score=r.choice((None, 0, 1, 2)),
        profile=r.random() < 0.3,
        group=r.choice((None, None, "g", "h")),
        current=r.random() < 0.8,
    )
    content = r.choice(
        (
            lambda: r.choice(SAYINGS),
            lambda: [item() for _ in range(r.randint(1, 7))],
            lambda: [event for turn in turns_of(r) for event in turn][: r.randint(1, 12)],
        )
    )()
    return Block(
        name,
        r.randint(1, 9),
        content,
        cuttable=r.random() < 0.8,
        min_tokens=r.choice((0, 0, 5, 12, 30)),
        rank=r.choice((None, 1, 2)),
        separator=r.choice(("\n\n", "\n", "", " ")),
        restated=r.choice(("", "", "Answer in one line.")),
    )


async def allocated(seed, telemetry):
    """Blocks into a budget."""
    r = random.Random(f"allocated {seed}")
    blocks = [block(r, name) for name in r.sample("abcdefgh", r.randint(1, 6))]
    count = r.choice((None, lambda text: len(text.split())))
    try:
        with telemetry.as_default():
            allocation = allocate(blocks, r.randint(60, 600), 40, count, r.choice(COMPACT))
    except ContextOverflowError as error:
        return [str(error)]
    items = [(item.block, item.index, str(item.outcome), str(item.reason), item.tokens) for item in allocation.items]
    return [
        allocation.used,
        allocation.fixed,
        [(block.name, [str(getattr(i.content, "id", i.content)) for i in block.items]) for block in allocation],
        items,
    ]


class Passages:
    name = "docs"

    def __init__(self, r):
        self.r = r

    async def search(self, query, *, scopes, k):
        numbers = self.r.sample(range(20), self.r.randint(0, 8))
        return [Candidate(f"doc-{n}", f"Passage {n}: {self.r.choice(TEXTS)}", "public") for n in numbers]


async def gathered(seed, telemetry):
    """Questions to an assembler of contexts."""
    r = random.Random(f"gathered {seed}")
    assembler = ContextAssembler(
        system="You are the support desk of a shop.",
        window=r.choice((300, 900, 4_000)),
        output_reserve=100,
        scopes=lambda user, task: {"public"},
        retrievers=[Passages(r)],
        order=r.choice(("attention", "cache")),
    )
    answers, history, context = [], [], Context(agent_name="desk")
    with telemetry.as_default():
        for turn in turns_of(r):
            try:
                given = await assembler.assemble(Task(r.choice(TEXTS), recent=turn, older=history), "u", context)
            except AssemblyError as error:
                answers.append((type(error).__name__, str(error)))
            else:
                answers.append([str(getattr(message, "id", message)) for message in given.messages])
            history += turn
    return answers


def long_conversation(r):
    """A few hundred events, then a few more at a time; some calls await an approval, and some are repeated alone."""
    size, bulk, turns = r.randint(120, 400), [], []
    chat = r.random() < 0.4
    while len(bulk) < size or len(turns) < 6:
        for words in script(r):
            made = []
            for event, word in zip(conversation(*words), words, strict=True):
                if isinstance(event, ModelResponse) and event.tool_calls and r.random() < 0.1:
                    waiting = [call.model_copy(update={"awaiting_approval": True}) for call in event.tool_calls]
                    event = event.model_copy(update={"tool_calls": tuple(waiting)})
                made.append(as_chat(event, word) if chat else event)
                if not chat and isinstance(event, ModelResponse) and event.tool_calls and r.random() < 0.2:
                    made.append(event.tool_calls[0])
            if len(bulk) < size:
                bulk += made
            elif len(turns) < 6:
                turns.append(made)
    return [bulk, *turns]


async def gathered_long(seed, telemetry):
    """Questions over a long conversation of which little fits, with the decision on every item."""
    r = random.Random(f"gathered long {seed}")
    assembler = ContextAssembler(
        system="You are the support desk of a shop.",
        window=r.choice((300, 450, 900, 4_000)),
        output_reserve=100,
        scopes=lambda user, task: {"public"},
        retrievers=[Passages(r)] if r.random() < 0.5 else (),
        state=(lambda task, scopes: r.choice(TEXTS)) if r.random() < 0.4 else None,
        examples=r.choice((None, None, "One example.", conversation("ask: like this?", "answer: like this"))),
        compact=r.choice(COMPACT),
        floors=r.choice(({}, {"recent": 60}, {"recent": 150, "older": 40}, {"older": 200, "evidence": 40})),
        order=r.choice(("attention", "cache", "cache")),
        step_tokens=r.choice((0, 20, 60, 1_000)),
        counter=WordCounter() if r.random() < 0.5 else None,
    )
    context = Context(agent_name="desk", provider=r.choice((None, None, "anthropic")))
    form, summary = r.choice(("history", "history", "older history", "list", "split")), r.choice((None, "so far"))
    answers, events, history = [], [], History()
    with telemetry.as_default():
        for turn in long_conversation(r):
            events += turn
            history.extend(turn)
            if r.random() < 0.1:
                summary = r.choice(TEXTS)
            border = r.randint(0, len(events))
            recent, older = {
                "history": (history, ()),
                "older history": ((), history),
                "list": (events, ()),
                "split": (events[border:], events[:border]),
            }[form]
            task = Task(r.choice(TEXTS), recent=recent, older=older, summary=summary)
            try:
                given = await assembler.assemble(task, "u", context)
            except AssemblyError as error:
                answers.append((type(error).__name__, str(error)))
                continue
            answers.append([str(getattr(message, "id", message)) for message in given.messages])
            if r.random() < 0.6:
                decided = [
                    (i.block, i.index, i.kind, i.tokens, i.bytes, i.atom, str(i.outcome), str(i.reason))
                    for i in given.allocation.items
                ]
                blocks = [
                    (d.block.name, len(d.block.items), str(d.outcome), str(d.reason), d.room, d.tokens_in, d.tokens_out)
                    for d in given.allocation.decisions
                ]
                answers.append((blocks, decided, answer_of(given.assembly), given.prompt.breakpoints))
    return answers


@cache
def transcripts():
    lines = TRANSCRIPTS.read_text(encoding="utf-8").splitlines() if TRANSCRIPTS.exists() else ()
    return [json.loads(line)["messages"] for line in lines]


async def recorded(number, telemetry):
    """A recorded conversation between a customer and an agent, at three budgets; each answer was a turn."""
    messages = transcripts()[number]
    prompt, answers = messages[0]["content"], []
    for window in (2_500, 4_000, 8_000):
        policies = [ConversationPolicy(), BudgetPolicy(window, 500, on_overflow="drop")]
        assembler, context, history = Assembler(policies, recorder=telemetry.recorder), Context(), History()
        for message in messages[1:]:
            if message["role"] == "assistant":
                answers.append(answer_of(await assembler.assemble([prompt], history, context)))
            history.append(message)
    return answers


FAMILIES = {
    "recorded": recorded,
    "assembled": assembled,
    "observed": observed,
    "allocated": allocated,
    "gathered": gathered,
    "gathered_long": gathered_long,
}
