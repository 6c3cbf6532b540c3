"""Models whose clients are called by whoever has one, and not by an agent in its turn."""

from __future__ import annotations

from ag2_package import BaseMiddleware, MemoryStream, ag2, answer, ask, history_of, part, policies, testing
from recount import prompt_tokens

compact = part("compact")


def model(*answers):
    return testing.TestConfig(*answers).create()


async def asks(client, text):
    context = part("context").ConversationContext(MemoryStream(), prompt=["You summarise."])
    return (await client([ask(text)], context, tools=[], response_schema=None, serializer=None)).content


class Summarises:
    """A policy that asks a model by itself."""

    name = "summarises"

    def __init__(self, *answers):
        self.client = model(*answers)

    async def apply(self, prompts, given, context):
        text = await asks(self.client, "\n".join(map(str, given[:-1])))
        return prompts, [compact.CompactionSummary(summary=text, event_count=len(given) - 1), given[-1]]


async def test_a_model_that_a_policy_asks_is_a_part_of_its_step(telemetry):
    stream = MemoryStream()
    await history_of(stream, ask("first"), answer("one"))
    agent = ag2.Agent("support", config=testing.TestConfig("two"), assembly=[Summarises("They talked.")])
    assert (await agent.ask("second", stream=stream)).body == "two"
    (told,) = telemetry.spans_named("assemble_context")
    block = telemetry.span("compact_block summary")
    assert block.parent.name == "apply_policy summarises"
    assert block.parent.parent.span_id == told.span_id
    assert block.attributes["assembly.compaction.compactor"] == "TestClient"
    assert told.attributes["assembly.events.out"] == 2


async def test_a_model_that_a_strategy_of_the_users_asks_is_a_part_of_its_step(telemetry):
    class Asks:
        async def compact(self, given, context, store):
            return [compact.CompactionSummary(summary=await asks(writer, str(given)), event_count=len(given))]

    writer = model("They talked.")
    config = part("agent").KnowledgeConfig(
        store=part("knowledge").MemoryKnowledgeStore(),
        compact=Asks(),
        compact_trigger=compact.CompactTrigger(max_events=1),
    )
    await ag2.Agent("support", config=testing.TestConfig("one"), knowledge=config).ask("first")
    assert telemetry.span("compact_block summary").parent.name == "apply_policy compaction"
    assert len(telemetry.spans_named("assemble_context")) == 2


async def test_a_model_that_is_asked_outside_of_any_turn_has_an_assembly(telemetry):
    assert await asks(model("fine"), "hello there") == "fine"
    told = telemetry.span("assemble_context").attributes
    assert told["assembly.events.out"] == 1
    assert told["assembly.tokens.out"] == prompt_tokens(
        ["You summarise."], [{"role": "user", "content": "hello there"}]
    )


async def test_a_model_that_a_middleware_asks_is_a_call_beside_that_of_the_turn(telemetry):
    class Guards(BaseMiddleware):
        async def on_llm_call(self, call_next, given, context):
            verdict = await asks(guard, "is it fine?")
            return await call_next([*given, ask(verdict)], context)

    guard = model("it is")
    agent = ag2.Agent(
        "support",
        config=testing.TestConfig("one"),
        middleware=[ag2.Middleware(part("assembly").AssemblerMiddleware, policies=[policies.ConversationPolicy()])],
    )
    await agent.ask("first", middleware=[ag2.Middleware(Guards)])
    guarded, told = telemetry.spans_named("assemble_context")
    assert guarded.attributes["assembly.events.in"] == guarded.attributes["assembly.events.out"] == 1
    assert [step.name for step in told.children] == ["apply_policy conversation", "apply_policy framework"]
    assert told.attributes["assembly.events.out"] == 2
    assert guarded.attributes["assembly.ledger.id"] != told.attributes["assembly.ledger.id"]
