"""What each thing that changes a request is told as: its name, its kind, its settings, and why messages left."""

from __future__ import annotations

import json
import sys
from typing import Any

import google.adk
import google_adk_programs as programs
import pytest
from google.adk.agents import Agent, LoopAgent
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.models import apigee_llm
from google.adk.models.google_llm import Gemini
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.genai import types
from google_adk_models import ASSEMBLY, ScriptedLlm, Stage, Talk, words
from opentelemetry import trace
from packaging.version import Version
from traced_calls import check_summarizers_calls

from otel_assembly.instrumentation import instrument

#: By the program what is told of its calls, in any of them; ``framework`` is what no hook explains.
STEPS = {
    "plain": set(),
    "parallel_tools": set(),
    "transferred": {"other_agents"},
    "in_sequence": {"other_agents"},
    "in_parallel": {"other_agents", "visible_events"},
    "newest_turn_only": {"current_turn"},
    "compacted_between_runs": {"compaction"},
    "compacted_before_calls": {"compaction"},
    "own_summariser": {"compaction"},
    "filtered": {"context_filter"},
    "filtered_by_the_program": {"context_filter"},
    "own_plugins": {"Reminds", "global_instruction"},
    "called_back": {"shortens", "before_model_callback", "framework"},  # one edits a content in place
    "answered_by_a_callback": {"answers"},
    "asks_a_model_in_a_callback": {"sums_up"},
    "own_classes_of_models": {"framework"},
    "remembered": {"preload_memory"},
    "instructed_among_the_messages": {"dynamic_instruction"},
    "runs_code": {"framework"},
    "answered_later": {"function_responses"},
    "confirmed": {"visible_events", "function_responses"},
    "delegated_as_tasks": {"visible_events", "current_turn"},
    "given_for_a_run": {"model_input_context"},
    "rewound": {"rewind"},
    "planned": {"visible_events"},
}

#: What is told of them in earlier releases, instead or beside.
EARLIER = {
    "compacted_before_calls": {"other_agents"},  # a summary is another agent's
    "delegated_as_tasks": {"task_input", "other_agents", "function_responses"},
    "in_a_graph": {"task_input"},
    "rewound": {"visible_events"},
}
#: In earlier releases a run's own summaries come later, or of other events.
as_of_now = pytest.mark.skipif(Version(google.adk.__version__) < Version("2.10"), reason="compaction goes otherwise")


def steps_of(assembly: Any) -> list[Any]:
    return [step for step in assembly.children if step.name.startswith("apply_policy")]


def name_of(step: Any) -> str:
    return str(step.attributes["assembly.policy.name"])


@pytest.mark.parametrize("name", [name for name in STEPS if getattr(programs, name) in programs.PROGRAMS])
async def test_what_changed_a_request_is_a_step_with_a_name(told, name):
    await getattr(programs, name)(Stage())
    found = {name_of(step) for assembly in told.spans_named(ASSEMBLY) for step in steps_of(assembly)}
    assert found == STEPS[name] or found - STEPS[name] <= EARLIER.get(name, set())


async def talk_of(turns: int, lines: Any = ("call:look", "Said."), **app: Any) -> tuple[Stage, Talk]:
    stage = Stage()
    agent = Agent(name="long", model=ScriptedLlm(stage, *(lines * turns)), tools=[programs.look])
    talk = Talk(agent, **app)
    for turn in range(turns):
        await talk.say(f"Question {turn}: {words(6)}")
    return stage, talk


async def test_a_filter_says_its_settings_and_that_what_left_is_outside_of_its_window(told):
    await talk_of(4, plugins=[ContextFilterPlugin(num_invocations_to_keep=2)])
    (*_, last) = told.spans_named(ASSEMBLY)
    (step,) = steps_of(last)
    assert json.loads(step.attributes["assembly.policy.config"])["num_invocations_to_keep"] == 2
    assert step.attributes["assembly.policy.kind"] == "reduction"
    assert last.attributes["assembly.dropped.count"] == 8
    assert told.metric("assembly.items.dropped", decision_reason="outside_window") > 0


async def test_a_filter_of_the_program_s_own_gives_no_reason(told):
    await talk_of(3, plugins=[ContextFilterPlugin(custom_filter=lambda contents: contents[-1:])])
    assert told.metric("assembly.items.dropped", decision_reason="policy") > 0


def summarises(stage: Stage, *lines: Any, **how: Any) -> EventsCompactionConfig:
    model = ScriptedLlm(stage, *lines, name="gpt-4o-mini", summarises=True)
    return EventsCompactionConfig(summarizer=LlmEventSummarizer(model), **how)


@as_of_now
async def test_a_summary_made_between_runs_is_an_attempt_in_the_next_call_and_stands_for_what_left(told):
    stage = Stage()
    config = summarises(stage, "They looked for x.", compaction_interval=2, overlap_size=1)
    await talk_of(3, events_compaction_config=config)
    (between,) = [span for span in told.spans_named(ASSEMBLY) if "assembly.name" in span.attributes]
    assemblies = [span for span in told.spans_named(ASSEMBLY) if "assembly.name" not in span.attributes]
    compacting = [assembly for assembly in assemblies if steps_of(assembly)]
    assert assemblies.index(compacting[0]) == 4
    (block,) = told.spans_named("compact_block summary")
    assert block.parent.parent_id == between.span_id
    assert block.attributes["assembly.compaction.compactor"] == "gpt-4o-mini"
    assert block.attributes["assembly.compaction.outcome"] == "compacted"
    assert block.attributes["assembly.tokens.in"] > 0
    assert block.attributes["assembly.tokens.out"] > 0
    step = steps_of(compacting[0])[0]
    assert json.loads(step.attributes["assembly.policy.config"]) == {"compaction_interval": 2, "overlap_size": 1}
    assert compacting[0].attributes["assembly.compacted.count"] == 8
    assert not compacting[0].attributes["assembly.dropped.count"]


async def test_a_summary_that_fails_is_an_attempt_that_failed_and_nothing_left(told, caplog):
    stage = Stage()
    config = summarises(stage, ConnectionError("gone"), token_threshold=60, event_retention_size=1, **programs.NEVER)
    try:
        await talk_of(2, events_compaction_config=config)
    except ConnectionError:
        pytest.skip("earlier releases end the run with it")
    blocks = told.spans_named("compact_block summary")
    assert {block.attributes["error.type"] for block in blocks} == {"ConnectionError"}
    assert {name_of(block.parent) for block in blocks} == {"compaction"}
    assert not any(span.attributes["assembly.compacted.count"] for span in told.spans_named(ASSEMBLY))


@pytest.fixture
def adk_traces(told, monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", told.tracer_provider)
    own = told.tracer_provider.get_tracer("gcp.vertex.agent")
    for name, module in list(sys.modules.items()):
        if name.startswith("google.adk.") and "tracer" in vars(module):
            monkeypatch.setattr(module, "tracer", own)
    return told


@as_of_now
async def test_what_is_told_of_compaction_agrees_with_what_adk_tells_itself_and_repeats_none_of_it(adk_traces):
    stage = Stage()
    config = summarises(stage, "They looked for x.", compaction_interval=2, overlap_size=0)
    await talk_of(3, events_compaction_config=config)
    (theirs,) = [span for span in adk_traces.spans if span.name.startswith("compact_events")]
    called = [span for span in adk_traces.spans_named(ASSEMBLY) if "assembly.name" not in span.attributes]
    ours = next(step for span in called for step in steps_of(span))
    assert theirs.attributes["gen_ai.compaction.event_count"] == ours.parent.attributes["assembly.compacted.count"]
    said = {name.removeprefix("gen_ai.compaction."): value for name, value in theirs.attributes.items()}
    settings = json.loads(ours.attributes["assembly.policy.config"])
    assert settings == {name: said[name] for name in ("compaction_interval", "overlap_size")}
    mine = [span for span in adk_traces.spans if span.scope == "otel_assembly"]
    assert not [name for span in mine for name in span.attributes if name.startswith("gen_ai.compaction")]
    assert len(adk_traces.spans_named("compact_block summary")) == 1


async def test_the_conversation_is_the_session(told):
    _, talk = await talk_of(2)
    assemblies = told.spans_named(ASSEMBLY)
    assert {span.attributes["gen_ai.conversation.id"] for span in assemblies} == {talk.session}
    assert {span.attributes["gen_ai.agent.name"] for span in assemblies} == {"long"}
    assert [span.attributes["assembly.turn"] for span in assemblies] == [0, 1, 2, 3]


async def test_a_callback_s_own_model_is_an_attempt_of_its_step(told):
    stage = Stage()
    await programs.asks_a_model_in_a_callback(stage)
    blocks = told.spans_named("compact_block summary")
    assert len(blocks) == len(stage.summaries) == 2
    assert {name_of(block.parent) for block in blocks} == {"sums_up"}
    assert all(block.attributes["assembly.tokens.out"] > 0 for block in blocks)


async def test_a_model_that_ends_a_request_with_a_user_s_message_is_told_to_be_given_that(told, monkeypatch):
    sent = []

    class Client:
        """Gemini's client, which writes down what it is sent."""

        vertexai = False

        class aio:  # noqa: N801  # as Gemini's client has it
            class models:  # noqa: N801
                @staticmethod
                async def generate_content(*, model: str, contents: Any, config: Any) -> Any:
                    sent.append(list(contents))
                    part = types.Part(text="Said.")
                    candidate = types.Candidate(content=types.Content(role="model", parts=[part]))
                    return types.GenerateContentResponse(candidates=[candidate])

    monkeypatch.setattr(Gemini, "api_client", Client())
    worker = Agent(name="worker", model=Gemini(model="gemini-2.5-flash"))
    await Talk(LoopAgent(name="loop", sub_agents=[worker], max_iterations=2)).say("Work")
    assert [len(message) for message in sent] == [1, 3]
    assert [span.attributes["assembly.events.out"] for span in told.spans_named(ASSEMBLY)] == [1, 3]


def test_instrumented_it_may_be_instrumented_again(told):
    assert instrument("google_adk") == ("google_adk",)


async def test_what_a_plugin_raises_is_told_of_the_plugin_alone(told):
    class Breaks(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            raise LookupError("gone")

    worker = Agent(name="worker", model=ScriptedLlm(Stage(), "Done."))
    with pytest.raises(RuntimeError, match="gone"):
        await Talk(worker, plugins=[Breaks("breaks")]).say("Work")
    (step,) = told.span(ASSEMBLY).children
    assert name_of(step) == "Breaks"
    assert step.attributes["error.type"] == "LookupError"


async def test_what_apigee_hands_to_a_client_that_is_no_model_is_told(told, monkeypatch):
    received = []

    class Answer:
        def json(self) -> Any:
            return {"choices": [{"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]}

    async def post(_: Any, __: str, payload: Any, *___: Any, **____: Any) -> Any:
        received.append(payload)
        return Answer()

    monkeypatch.setattr(apigee_llm.CompletionsHTTPClient, "_httpx_post_with_retry", post)
    model = apigee_llm.ApigeeLlm(model="apigee/openai/gpt-4o", proxy_url="http://nowhere")
    assert await Talk(Agent(name="worker", model=model)).say("Work") == ["worker: Done."]
    assembly = told.span("assemble_context")
    assert len(received) == 1
    assert assembly.attributes["assembly.events.out"] == len(received[0]["messages"]) - 1
    assert assembly.attributes["assembly.model"] == received[0]["model"]
    assert not assembly.children


@pytest.mark.parametrize(
    "program",
    [pytest.param(programs.compacted_between_runs, marks=as_of_now), programs.asks_a_model_in_a_callback],
    ids=lambda program: program.__name__,
)
async def test_a_summarizers_model_call_is_in_its_compact_block(told, program):
    await check_summarizers_calls(told, program, Stage())
