"""What prepares one model call are steps of one assembly; each agent on a stream has one ledger."""

from __future__ import annotations

import pytest
from ag2_package import (
    AssemblerMiddleware,
    BaseMiddleware,
    MemoryStream,
    Model,
    ag2,
    answer,
    ask,
    history_of,
    part,
    policies,
    said,
)

from otel_assembly.telemetry import read_ledgers


def chains(telemetry):
    return [
        [step.name.removeprefix("apply_policy ") for step in span.children]
        for span in telemetry.spans_named("assemble_context")
    ]


def turns(telemetry):
    found = {}
    for span in telemetry.spans_named("assemble_context"):
        found.setdefault(span.attributes["assembly.ledger.id"], []).append(span.attributes["assembly.turn"])
    assert [problem for ledger in read_ledgers(telemetry.spans).values() for problem in ledger.problems] == []
    return sorted(found.values())


def limited(*limits, **settings):
    limiter = part("middleware.builtin.history_limiter").HistoryLimiter
    return [limiter(max_events=limit) for limit in limits]


def assembler(*chain):
    """An assembler among the middlewares, which stand around one another in order; the agent's own is innermost."""
    return ag2.Middleware(AssemblerMiddleware, policies=list(chain))


async def talk(stream, turns):
    await history_of(
        stream, *(message for turn in range(turns) for message in (ask(f"question {turn}"), answer(f"{turn}")))
    )


class Seen(Model):
    """Notes the assemblies that have ended when the model is called."""

    def __init__(self, telemetry, *turns):
        super().__init__(*turns)
        self.telemetry = telemetry
        self.ended = []

    async def _recording(self, messages, context, **rest):
        self.ended.append(len(self.telemetry.spans_named("assemble_context")))
        return await super()._recording(messages, context, **rest)


async def test_two_assemblers_and_a_limiter_before_one_call_make_one_assembly(telemetry):
    model = Seen(telemetry, "one", "two")
    agent = ag2.Agent(
        "support",
        prompt="You help.",
        config=model,
        middleware=[assembler(policies.ConversationPolicy()), *limited(5)],
        assembly=[policies.SlidingWindowPolicy(3)],
    )
    stream = MemoryStream()
    await talk(stream, 4)
    await agent.ask("first", stream=stream)
    await agent.ask("second", stream=stream)
    assert chains(telemetry) == [["conversation", "history_limiter", "sliding_window"]] * 2
    assert turns(telemetry) == [[0, 1]]
    assert model.ended == [1, 2]
    for span, sent in zip(telemetry.spans_named("assemble_context"), model.sent, strict=True):
        steps = [step.attributes for step in span.children]
        assert steps[0]["assembly.events.in"] == span.attributes["assembly.events.in"]
        assert [step["assembly.events.out"] for step in steps[:2]] == [step["assembly.events.in"] for step in steps[1:]]
        assert span.attributes["assembly.events.out"] == len(sent) == 3
        assert span.attributes["assembly.prompt.sources"] == ["caller"]


async def test_what_a_middleware_in_between_does_is_a_step_too(telemetry):
    class Reminds(BaseMiddleware):
        async def on_llm_call(self, call_next, events, context):
            return await call_next([*events, ask("Mind the time.")], context)

    model = Seen(telemetry, "one")
    agent = ag2.Agent(
        "support",
        config=model,
        middleware=[assembler(policies.ConversationPolicy()), ag2.Middleware(Reminds), *limited(3)],
    )
    await agent.ask("first")
    assert chains(telemetry) == [["conversation", "framework", "history_limiter"]]
    assert len(telemetry.span("apply_policy framework").injected) == 1
    assert said(model.sent[0]) == ["first", "Mind the time."]
    assert turns(telemetry) == [[0]]


async def test_a_middleware_in_between_that_answers_itself_or_raises_ends_it(telemetry):
    class Answers(BaseMiddleware):
        async def on_llm_call(self, call_next, events, context):
            if "raise" in said(events)[-1]:
                raise ZeroDivisionError
            return answer("cached")

    model = Seen(telemetry, "never")
    agent = ag2.Agent(
        "support",
        config=model,
        middleware=[assembler(policies.ConversationPolicy()), ag2.Middleware(Answers), *limited(3)],
    )
    stream = MemoryStream()
    await agent.ask("first", stream=stream)
    with pytest.raises(ZeroDivisionError):
        await agent.ask("now raise", stream=stream)
    assert chains(telemetry) == [["conversation"]] * 2
    assert [span.status for span in telemetry.spans_named("assemble_context")] == ["UNSET", "ERROR"]
    assert model.ended == []


async def test_a_model_that_is_tried_again_has_an_assembly_for_each_call_with_the_same_steps(telemetry):
    class Fails(Seen):
        async def _recording(self, messages, context, **rest):
            if not self.ended:
                self.ended.append(len(self.telemetry.spans_named("assemble_context")))
                raise ConnectionError
            return await super()._recording(messages, context, **rest)

    retry = part("middleware.builtin.llm_retry").RetryMiddleware(max_retries=2)
    model = Fails(telemetry, "one", "two")
    middleware = [assembler(policies.ConversationPolicy()), retry, *limited(3)]
    agent = ag2.Agent("support", config=model, middleware=middleware)
    stream = MemoryStream()
    await talk(stream, 3)
    await agent.ask("first", stream=stream)
    await agent.ask("second", stream=stream)
    assert chains(telemetry) == [["conversation", "history_limiter"]] * 3
    assert turns(telemetry) == [[0, 1, 2]]
    assert model.ended == [1, 2, 3]
    failed, tried_again, _ = telemetry.spans_named("assemble_context")
    assert failed.kept == tried_again.kept


async def test_compaction_is_a_turn_in_the_ledger_of_the_prompts(telemetry):
    """It comes after a turn, so that no model call waits for it; what it took out, the next prompt has not."""
    compact = part("compact")
    agent = ag2.Agent(
        "support",
        config=Model("one", "two"),
        middleware=[assembler(policies.ConversationPolicy()), *limited(9)],
        knowledge=part("agent").KnowledgeConfig(
            store=part("knowledge").MemoryKnowledgeStore(),
            compact=compact.TailWindowCompact(target=2),
            compact_trigger=compact.CompactTrigger(max_events=5),
        ),
    )
    stream = MemoryStream()
    await talk(stream, 3)
    await agent.ask("first", stream=stream)
    await agent.ask("second", stream=stream)
    prompts = ["conversation", "history_limiter"]
    assert [chain for chain in chains(telemetry) if chain == prompts] == [prompts] * 2
    assert chains(telemetry)[:3] == [prompts, ["compaction"], prompts]
    (numbers,) = turns(telemetry)
    assert numbers == list(range(len(numbers)))
    (ledger,) = read_ledgers(telemetry.spans).values()
    before, _, after = ledger.turns[:3]
    assert not set(before.kept) - {list(before.kept)[-1]} & set(after.kept)


async def test_two_agents_on_one_stream_go_on_each_on_its_own(telemetry):
    stream = MemoryStream()
    agents = [
        ag2.Agent(name, config=Model("1", "2"), middleware=limited(most), assembly=[policies.ConversationPolicy()])
        for name, most in (("draft", 3), ("review", 2))
    ]
    for text in ("first", "second"):
        for agent in agents:
            await agent.ask(text, stream=stream)
    assert turns(telemetry) == [[0, 1], [0, 1]]
