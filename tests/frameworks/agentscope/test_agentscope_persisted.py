"""Sessions that are kept and loaded again: another agent goes on with new objects of the messages, by their ids."""

from __future__ import annotations

import pytest
from agentscope.message import AssistantMsg, HintBlock, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from counting import Work, counted_texts
from scripted import ScriptedModel, agent, instrumented, talk, words

from otel_assembly import SlidingWindowPolicy
from otel_assembly.explain import Explainer
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware
from otel_assembly.telemetry import read_ledgers

ASSEMBLY = "assemble_context"


@pytest.fixture
def telemetry(assembly_telemetry):
    with instrumented(assembly_telemetry):
        yield assembly_telemetry
    assert assembly_telemetry.violations() == []


def loaded(someone, model, *, middlewares=(), **config):
    """Another agent with the state of this one, through the JSON that a session keeps."""
    state = type(someone.state).model_validate_json(someone.state.model_dump_json())
    return agent(model, middlewares=middlewares, state=state, **config)


def exchanges(count):
    for number in range(count):
        yield UserMsg("user", f"question {number}?")
        blocks = [
            ToolCallBlock(id=f"c{number}", name="look_up", input="{}"),
            ToolResultBlock(id=f"c{number}", name="look_up", output=f"result {number}", state="success"),
            TextBlock(text=f"answer {number}"),
        ]
        yield AssistantMsg("Friday", blocks)


async def test_our_policies_take_the_work_of_a_short_session_in_a_long_one():
    work = []
    for length in (10, 200):
        model, ours = ScriptedModel(), [AssemblyMiddleware([SlidingWindowPolicy(9)])]
        someone = agent(model, middlewares=ours)
        someone.state.context.extend(exchanges(length))
        for number in range(3):
            someone = loaded(someone, model, middlewares=ours)
            await talk(someone, f"warming up {number}")
        turns = []
        with counted_texts() as counted:
            for number in range(3):
                someone = loaded(someone, model, middlewares=ours)
                with Work(None, counted) as done:
                    await talk(someone, f"and at {length}, {number}?")
                turns.append(done)
        work.append([max(getattr(turn, name) for turn in turns) for name in ("counts", "calls")])
    (counts, made), (long_counts, long_made) = work
    assert long_counts <= counts <= 3
    assert long_made <= made * 1.1 + 50


async def test_what_is_said_again_and_again_is_a_message_each_time(assembly_telemetry):
    model, ours = ScriptedModel(), [AssemblyMiddleware([SlidingWindowPolicy(9)])]
    someone = agent(model, middlewares=ours)
    for _ in range(12):
        someone = loaded(someone, model, middlewares=ours)
        await talk(someone, "ok")
    spans = assembly_telemetry.spans_named(ASSEMBLY)
    assert [span.attributes["assembly.turn"] for span in spans] == list(range(12))
    assert [sorted(span.arrived) for span in spans[1:]] == [sorted(map(str, (2 * n - 1, 2 * n))) for n in range(1, 12)]
    (ledger,) = read_ledgers(assembly_telemetry.spans).values()
    outcomes = [Explainer(ledger, 11).explain(str(item)).outcome for item in range(23)]
    assert outcomes == ["dropped"] * 14 + ["kept"] * 9


async def test_what_is_compressed_stays_so_where_the_same_is_said_again(telemetry):
    model = ScriptedModel()
    someone = agent(model, reserve_ratio=0.3)
    for _ in range(16):
        someone = loaded(someone, model, reserve_ratio=0.3)
        await talk(someone, f"ok {words(400)}")
    spans = telemetry.spans_named(ASSEMBLY)
    assert len(spans) >= 2
    steps = telemetry.spans_named("apply_policy compress_context")
    left = [item for step in steps for item in (*step.compacted, *step.dropped_reasons)]
    assert len(left) == len(set(left))
    assert all(step.dropped_reasons == {} for step in steps)


async def test_a_block_that_was_changed_in_the_session_is_read_and_counted_anew(assembly_telemetry):
    model, ours = ScriptedModel(), [AssemblyMiddleware([SlidingWindowPolicy(9)])]
    someone = agent(model, middlewares=ours)
    await talk(someone, "one", "two")
    someone = loaded(someone, model, middlewares=ours)
    someone.state.context[0].content[0].text = words(100)
    await talk(someone, "three")
    two, three = assembly_telemetry.spans_named(ASSEMBLY)[1:]
    assert three.attributes["assembly.tokens.out"] - two.attributes["assembly.tokens.out"] > 90
    assert [message.get_text_content() for message in model.asked[-1]][1] == words(100)


async def test_a_result_that_was_cut_in_place_is_read_and_counted_anew(assembly_telemetry):
    model, ours = ScriptedModel(), [AssemblyMiddleware([SlidingWindowPolicy(9)])]
    someone = agent(model, middlewares=ours)
    output = [TextBlock(text="found")]
    blocks = [
        ToolCallBlock(id="c", name="look_up", input="{}"),
        ToolResultBlock(id="c", name="look_up", output=output, state="success"),
    ]
    someone.state.context += [UserMsg("user", "go"), AssistantMsg("Friday", blocks)]
    await talk(someone, "one")
    someone.state.context[1].content[1].output[0].text = words(100)
    await talk(someone, "two")
    one, two = assembly_telemetry.spans_named(ASSEMBLY)
    assert two.attributes["assembly.tokens.out"] - one.attributes["assembly.tokens.out"] > 90


async def test_what_is_sent_are_the_blocks_of_the_session_as_it_is_loaded_now():
    seen = []

    class Looking(ScriptedModel):
        async def __call__(self, messages, tools=None, tool_choice=None, **kwargs):
            seen.append(messages)
            return await super().__call__(messages, tools, tool_choice, **kwargs)

    model, ours = Looking(), [AssemblyMiddleware([SlidingWindowPolicy(50)])]
    someone = agent(model, middlewares=ours)
    await talk(someone, "one", "two")
    someone = loaded(someone, model, middlewares=ours)
    someone.state.context[-1].content.append(HintBlock(hint="a hint"))
    await talk(someone, "three")
    held = [id(block) for message in someone.state.context for block in message.content]
    sent = [id(block) for message in seen[-1][1:] for block in message.content]
    assert set(sent) <= set(held)
