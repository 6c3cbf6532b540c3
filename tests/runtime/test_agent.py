"""An agent answers, runs tools and bounds what it sends; and nothing that happened is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest
from spoken_agents import calls, said, transfer

from otel_assembly import (
    Agent,
    BudgetPolicy,
    ConfigurationError,
    Context,
    ContextOverflowError,
    MiddlewareBase,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    Tool,
    ToolCallEvent,
    WorkingMemoryPolicy,
)
from otel_assembly.errors import ModelCallError, ModelContextLengthError, SessionError
from otel_assembly.events import AggregationCompleted, CompactionSummary, ResponseChunk
from otel_assembly.knowledge import AggregateTrigger, MemoryKnowledgeStore, WorkingMemoryAggregate
from otel_assembly.runtime import AggregateObserver
from otel_assembly.testing import ScriptedModel


async def test_it_answers_and_remembers():
    model = ScriptedModel("Hello.", "Ada.")
    agent = Agent("helper", "Be brief.", model)
    assert (await agent.ask("I am Ada.")).content == "Hello."
    assert (await agent.reply("Who am I?")).content == "Ada."
    assert said(agent.session) == ["ask I am Ada.", "say Hello.", "ask Who am I?", "say Ada."]
    assert model.received[1].prompts == ("Be brief.",)
    assert agent.session.turns == 2


async def test_tools_run_at_once_and_their_results_go_back():
    running = asyncio.Barrier(2)

    async def weather(city: str, days: int = 1) -> dict[str, int]:
        """The weather."""
        await running.wait()
        return {city: days}

    async def news() -> str:
        await running.wait()
        return "none"

    response = ModelResponse(
        tool_calls=(
            ToolCallEvent(id="a", name="weather", arguments='{"city": "Bonn", "days": 3}'),
            ToolCallEvent(id="b", name="news"),
        )
    )
    model = ScriptedModel(response, "Sunny.")
    agent = Agent("helper", "Be brief.", model, [weather, news])
    assert (await agent.ask("Weather?")).content == "Sunny."
    assert sorted(said(agent.session)[2:4]) == ["result news: none", 'result weather: {"Bonn":3}']
    (definition, _) = model.received[0].tools
    assert definition["function"]["name"] == "weather"
    assert definition["function"]["description"] == "The weather."
    assert definition["function"]["parameters"]["properties"] == {
        "city": {"type": "string"},
        "days": {"type": "integer", "default": 1},
    }
    assert definition["function"]["parameters"]["required"] == ["city"]


async def test_a_synchronous_tool_runs_in_a_thread_and_may_ask_for_the_context():
    seen = []

    def where(context: Context, copy: str = "x") -> str:
        seen.append((threading.current_thread() is threading.main_thread(), context.agent_name, copy))
        return "there"

    agent = Agent("helper", "", ScriptedModel(calls("where", arguments='{"copy": "y"}'), "Done."), [where])
    await agent.ask("Go.")
    assert seen == [(False, "helper", "y")]
    assert "context" not in agent.tools["where"].parameters["properties"]


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("raises", "{}", "ValueError: no such thing"),
        ("unknown", "{}", "tool 'unknown' is not known; the tools are raises, odd, slow, adds"),
        ("odd", "{}", "tool 'odd' returned a object, which has no JSON form; return a text"),
        ("slow", "{}", "tool 'slow' took more than 0.05 s"),
        ("adds", "{nonsense", "tool 'adds' cannot take these arguments: arguments: Invalid JSON"),
        ("adds", '{"a": "x"}', "tool 'adds' cannot take these arguments: a: Input should be a valid integer"),
        ("adds", '{"a": 1, "b": 2}', "tool 'adds' cannot take these arguments: b: Extra inputs are not permitted"),
        ("adds", "[1]", "tool 'adds' cannot take these arguments: arguments: Input should be an object"),
    ],
)
async def test_what_goes_wrong_in_a_tool_the_model_reads_and_the_agent_goes_on(tool, arguments, error):
    def raises() -> str:
        raise ValueError("no such thing")

    def odd() -> object:
        return object()

    async def slow() -> str:
        await asyncio.sleep(30)
        return ""

    def adds(a: int) -> int:
        return a

    agent = Agent(
        "helper",
        "",
        ScriptedModel(calls(tool, arguments=arguments), "I see."),
        [raises, odd, Tool(slow, timeout=0.05), adds],
    )
    assert (await agent.ask("Go.")).content == "I see."
    assert said(agent.session)[2].startswith(f"error {tool}: {error}")


async def test_two_calls_of_one_id_are_two_calls():
    def echo(text: str) -> str:
        return text

    twice = ModelResponse(
        tool_calls=tuple(ToolCallEvent(id="same", name="echo", arguments=f'{{"text": "{text}"}}') for text in "ab")
    )
    model = ScriptedModel(twice, "Done.")
    agent = Agent("helper", "", model, [echo])
    await agent.ask("Go.")
    assert sorted(said(agent.session)[2:4]) == ["result echo: a", "result echo: b"]
    ids = [
        call.id for event in model.received[1].events if isinstance(event, ModelResponse) for call in event.tool_calls
    ]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("ids", [["same", "same", "same-2"], ["same-2", "same", "same"], ["", "", "-2"]])
async def test_an_id_that_is_made_up_is_none_that_the_model_gave(ids):
    def echo(text: str) -> str:
        return text

    given = (ToolCallEvent(id=item_id, name="echo", arguments=f'{{"text": "{at}"}}') for at, item_id in enumerate(ids))
    model = ScriptedModel(ModelResponse(tool_calls=tuple(given)), "Done.")
    agent = Agent("helper", "", model, [echo])
    await agent.ask("Go.")
    (response,) = [event for event in agent.session.history if isinstance(event, ModelResponse) and event.tool_calls]
    assert len({call.id for call in response.tool_calls}) == 3
    assert sorted(said(agent.session)[2:5]) == ["result echo: 0", "result echo: 1", "result echo: 2"]


async def test_a_model_that_never_stops_calling_is_stopped():
    def more() -> str:
        return "more"

    agent = Agent("helper", "", ScriptedModel(*[calls("more")] * 3, "At last."), [more], max_rounds=3)
    assert (await agent.ask("Go.")).content == "STOPPED: no answer after 3 calls of the model"
    assert said(agent.session)[-2:] == ["call ['more']", "error more: not run: the ask ended before it"]
    assert (await agent.ask()).content == "At last."


async def test_a_streamed_answer_comes_in_pieces_and_is_kept_whole():
    agent = Agent("helper", "", ScriptedModel(["Hel", "lo."]))
    got = [event async for event in agent.stream("Hi.")]
    assert [event.content for event in got if isinstance(event, ResponseChunk)] == ["Hel", "lo."]
    assert got[-1].content == "Hello."
    assert said(agent.session) == ["ask Hi.", "say Hello."]


async def test_a_provider_that_fails_raises_and_the_next_ask_tries_again():
    failure = ModelCallError("it is away", provider="acme", model="scripted", status=503, retryable=True)
    agent = Agent("helper", "", ScriptedModel(failure, "Back."))
    with pytest.raises(ModelCallError):
        await agent.ask("Hi.")
    assert (await agent.ask()).content == "Back."
    assert said(agent.session) == ["ask Hi.", "say Back."]


# The chain


async def test_a_chain_bounds_what_is_sent_and_the_conversation_stays_whole():
    model = ScriptedModel("One.", "Two.", "Three.")
    agent = Agent("helper", "Be brief.", model, assembly=[SlidingWindowPolicy(1)])
    for text in "123":
        await agent.ask(text)
    assert [event.content for event in model.received[2].events] == ["3"]
    assert len(said(agent.session)) == 6


async def test_a_prompt_that_cannot_fit_is_an_error_and_nothing_is_sent():
    model = ScriptedModel("Never.")
    agent = Agent("helper", "Be brief. " * 50, model, assembly=[TokenBudgetPolicy(20)])
    with pytest.raises(ContextOverflowError):
        await agent.ask("Hi.")
    assert not model.received


async def test_a_prompt_that_the_provider_finds_too_long_is_assembled_once_more_with_less():
    refused = ModelContextLengthError(provider="acme", model="scripted", window=100, tokens=120)
    history = [f"Line {n} of what was said before, at some length." for n in range(30)]
    model = ScriptedModel(*["Yes."] * 30, refused, "Better.")
    agent = Agent("helper", "Be brief.", model, assembly=[TokenBudgetPolicy(200)])
    for line in history:
        await agent.ask(line)
    assert (await agent.ask("And now?")).content == "Better."
    assert len(model.received[-1].events) < len(model.received[-2].events)


async def test_a_prompt_that_is_refused_twice_is_the_providers_error():
    refused = ModelContextLengthError(provider="acme", model="scripted", window=100, tokens=120)
    model = ScriptedModel("Yes.", refused, refused, "Never.")
    agent = Agent("helper", "", model, assembly=[BudgetPolicy(500, 10)])
    await agent.ask("A long question. " * 20)
    with pytest.raises(ModelContextLengthError):
        await agent.ask("Hi.")
    assert len(model.received) == 3


async def test_a_prompt_that_is_refused_and_cannot_be_made_smaller_is_the_providers_error():
    refused = ModelContextLengthError(provider="acme", model="scripted", window=100, tokens=120)
    agent = Agent("helper", "", ScriptedModel(refused, "Never."), assembly=[BudgetPolicy(500, 10)])
    with pytest.raises(ModelContextLengthError):
        await agent.ask("Hi.")


async def test_what_compacts_runs_ahead_of_need_and_from_then_on_the_budget_is_that_much_smaller():
    asked = []

    class Watches(MiddlewareBase):
        async def on_compress_context(self, agent, input_kwargs, next_handler):
            before = agent.session.context.budget_ratio
            await next_handler()
            asked.append((before, agent.session.context.budget_ratio))

    chain = [BudgetPolicy(400, 10, step_tokens=0, compact="extractive", summary_tokens=60)]
    # A model whose tokenizer is known: what other tests were billed for calibrates no count of its.
    model = ScriptedModel(*["Yes, I have understood all of what you have said."] * 12, model="gpt-4o")
    agent = Agent("helper", "Be brief.", model, assembly=chain, middlewares=[Watches()])
    for number in range(12):
        await agent.ask(f"Fact {number}: the train number {number} leaves at {number} o'clock from track {number}.")
    ratios = [after for _, after in asked]
    assert ratios[0] == 1
    assert ratios[-1] == 0.8
    assert any(isinstance(event, CompactionSummary) for event in model.received[-1].events)
    first = next(index for index, ratio in enumerate(ratios) if ratio < 1)
    assert not any(isinstance(event, CompactionSummary) for event in model.received[first - 1].events)


async def test_without_a_policy_that_compacts_nothing_is_compressed():
    agent = Agent("helper", "", ScriptedModel("Hi."), assembly=[SlidingWindowPolicy(3)])
    await agent.ask("Hi.")
    await agent.compress_context()
    assert agent.session.context.budget_ratio == 1


async def test_an_agents_knowledge_is_brought_up_to_date_after_a_turn_and_read_in_the_next_conversation():
    store = MemoryKnowledgeStore()
    memory = AggregateObserver(
        WorkingMemoryAggregate(lambda prompt: "Ada likes trains."), AggregateTrigger(on_end=True)
    )
    model = ScriptedModel("Noted.", "Trains.")
    chain = [WorkingMemoryPolicy(), SlidingWindowPolicy(5)]
    agent = Agent("helper", "", model, assembly=chain, observers=[memory], knowledge=store)
    async with agent.open_session() as first:
        await first.ask("I am Ada, and I like trains.")
    assert any(isinstance(event, AggregationCompleted) for event in first.session.history)
    await agent.open_session().ask("What do I like?")
    assert "Ada likes trains." in "".join(model.received[1].prompts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": object()},
        {"tools": [3]},
        {"tools": [transfer, transfer]},
        {"tools": [lambda *all_of_them: 1]},
        {"max_rounds": 0},
        {"compress_at": 0},
        {"tool_timeout": 0},
        {"middlewares": [object()]},
        {"observers": [object()]},
    ],
)
def test_what_cannot_work_is_refused_when_the_agent_is_made(wrong):
    settings = {"model": ScriptedModel(), **wrong}
    with pytest.raises(ConfigurationError):
        Agent("helper", "Be brief.", **settings)


@pytest.mark.parametrize("inputs", [3, [], ["a", 3], {"role": "user"}])
async def test_what_is_no_question_is_refused(inputs):
    with pytest.raises(SessionError, match="an agent is asked with"):
        await Agent("helper", "", ScriptedModel("Hi.")).ask(inputs)
