"""Programs of the OpenAI Agents SDK as its users write them; each is given a stage, and returns what it came to."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    Model,
    ModelRetrySettings,
    ModelSettings,
    OpenAIResponsesCompactionSession,
    RunConfig,
    Runner,
    RunState,
    SessionSettings,
    SQLiteSession,
    function_tool,
    handoff,
)
from agents.extensions import handoff_filters
from agents.extensions.tool_output_trimmer import ToolOutputTrimmer
from agents.run import CallModelData, ModelInputData
from openai.types.responses import ResponseOutputMessage
from openai_agents_models import ScriptedModel, ScriptedProvider, Stage, history, words
from pydantic import BaseModel


@function_tool
def look(q: str = "x") -> str:
    """Look something up.

    Args:
        q: What to look for.
    """
    return f"found {q}: {words(10)}"


@function_tool
def fail(q: str = "x") -> str:
    """Find nothing."""
    raise ValueError(f"nothing is known of {q}")


class Answer(BaseModel):
    city: str
    price: int


async def read_all(result: Any) -> list[str]:
    return [event.type async for event in result.stream_events()]


async def plain(stage: Stage) -> Any:
    agent = Agent("greeter", instructions="You greet.", model=ScriptedModel(stage, "Hello."))
    stage.runs = 2
    first = await Runner.run(agent, "Hi")
    second = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "Again"}])
    return first.final_output, second.final_output


async def without_instructions(stage: Stage) -> Any:
    agent = Agent("bare", model=ScriptedModel(stage, "Hello."))
    held: Any = [{"role": "developer", "content": "Be kind."}, *history(2), {"role": "user", "content": [
        {"type": "input_text", "text": "And this?"}]}]  # fmt: skip
    return (await Runner.run(agent, held)).final_output


async def parallel_tools(stage: Stage) -> Any:
    model = ScriptedModel(stage, ['call:look {"q": "a"}', 'call:look {"q": "b"}', "call:fail"], "call:look", "Done.")
    agent = Agent("looker", instructions="Look.", model=model, tools=[look, fail])
    return (await Runner.run(agent, "Find a and b")).final_output


async def streamed(stage: Stage) -> Any:
    agent = Agent("streamer", model=ScriptedModel(stage, "call:look", "It is here."), tools=[look])
    result = Runner.run_streamed(agent, "Where?")
    return await read_all(result), result.final_output


async def stream_left(stage: Stage) -> Any:
    agent = Agent("streamer", model=ScriptedModel(stage, "call:look", "It is here."), tools=[look])
    result = Runner.run_streamed(agent, "Where?")
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            result.cancel()
    return len(stage.received)


async def stream_ends_after_a_turn(stage: Stage) -> Any:
    agent = Agent("streamer", model=ScriptedModel(stage, "call:look", "It is here."), tools=[look])
    result = Runner.run_streamed(agent, "Where?")
    async for _ in result.stream_events():
        result.cancel(mode="after_turn")
    return len(stage.received)


async def handed_off(stage: Stage) -> Any:
    second = Agent("second", instructions="You finish.", model=ScriptedModel(stage, "call:look", "Done."), tools=[look])
    first = Agent(
        "first",
        instructions="You pass on.",
        model=ScriptedModel(stage, "call:look", "call:transfer_to_second"),
        tools=[look],
        handoffs=[second],
    )
    return (await Runner.run(first, "Do it")).last_agent.name


async def handed_off_streaming(stage: Stage) -> Any:
    second = Agent("second", model=ScriptedModel(stage, "Done."))
    first = Agent("first", model=ScriptedModel(stage, "call:transfer_to_second"), handoffs=[second])
    result = Runner.run_streamed(first, "Do it")
    return await read_all(result), result.last_agent.name


async def handed_off_filtered(stage: Stage) -> Any:
    second = Agent("second", model=ScriptedModel(stage, "call:look", "Done."), tools=[look])
    passes = handoff(second, input_filter=handoff_filters.remove_all_tools)
    model = ScriptedModel(stage, ["call:look", "call:look"], "call:transfer_to_second")
    first = Agent("first", model=model, tools=[look], handoffs=[passes])
    return (await Runner.run(first, [*history(2), {"role": "user", "content": "Do it"}])).final_output


async def handed_off_nested(stage: Stage) -> Any:
    third = Agent("third", model=ScriptedModel(stage, "Done."))
    second = Agent("second", model=ScriptedModel(stage, "call:look", "call:transfer_to_third"), tools=[look],
                   handoffs=[third])  # fmt: skip
    model = ScriptedModel(stage, "call:look", "call:transfer_to_second")
    first = Agent("first", instructions="Pass on.", model=model, tools=[look], handoffs=[second])
    return (await Runner.run(first, "Do it", run_config=RunConfig(nest_handoff_history=True))).final_output


async def agent_as_tool(stage: Stage) -> Any:
    helper = Agent("helper", instructions="Help.", model=ScriptedModel(stage, "call:look", "It helps."), tools=[look])
    boss = Agent(
        "boss",
        model=ScriptedModel(stage, ['call:ask {"input": "Help me"}', "call:look"], "Done."),
        tools=[look, helper.as_tool("ask", "Ask the helper.")],
    )
    return (await Runner.run(boss, "Do it")).final_output


async def guarded(stage: Stage) -> Any:
    checker = Agent("checker", model=ScriptedModel(stage, "Fine."), instructions="Check.")

    async def check(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        said = (await Runner.run(checker, given, context=ctx.context)).final_output
        return GuardrailFunctionOutput(output_info=said, tripwire_triggered=said != "Fine.")

    agent = Agent(
        "guarded",
        model=ScriptedModel(stage, "Done."),
        input_guardrails=[InputGuardrail(check, run_in_parallel=False)],
    )
    return (await Runner.run(agent, "Do it")).final_output


async def guard_trips(stage: Stage) -> Any:
    checker = Agent("checker", model=ScriptedModel(stage, "Bad."), instructions="Check.")

    async def check(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        said = (await Runner.run(checker, given, context=ctx.context)).final_output
        return GuardrailFunctionOutput(output_info=said, tripwire_triggered=said != "Fine.")

    agent = Agent(
        "guarded",
        model=ScriptedModel(stage, "Done."),
        input_guardrails=[InputGuardrail(check, run_in_parallel=False)],
    )
    try:
        return (await Runner.run(agent, "Do it")).final_output
    except InputGuardrailTripwireTriggered:
        return "tripped"


async def structured(stage: Stage) -> Any:
    model = ScriptedModel(stage, "call:look", '{"city": "Bonn", "price": 3}')
    agent = Agent("structured", model=model, output_type=Answer, tools=[look])
    return (await Runner.run(agent, "Which?")).final_output


async def too_many_turns(stage: Stage) -> Any:
    agent = Agent("endless", model=ScriptedModel(stage, "call:look"), tools=[look])
    try:
        return (await Runner.run(agent, "Go", max_turns=3)).final_output
    except MaxTurnsExceeded:
        return "too many"


async def retried(stage: Stage) -> Any:
    settings = ModelSettings(
        retry=ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0.0}, policy=lambda _: True)
    )
    model = ScriptedModel(stage, ConnectionError("gone"), "call:look", TimeoutError("late"), "Done.")
    agent = Agent("patient", model=model, tools=[look], model_settings=settings)
    try:
        return (await Runner.run(agent, "Go", run_config=RunConfig(call_model_input_filter=newest))).final_output
    except (ConnectionError, TimeoutError):
        return "given up"


def newest(call: CallModelData[Any]) -> ModelInputData:
    held = call.model_data.input
    return ModelInputData(held[-3:], call.model_data.instructions)


async def filtered(stage: Stage) -> Any:
    agent = Agent("short", instructions="Be short.", model=ScriptedModel(stage, "Said."))
    held: Any = [*history(4), {"role": "user", "content": "And now?"}]
    return (await Runner.run(agent, held, run_config=RunConfig(call_model_input_filter=newest))).final_output


async def filtered_streaming(stage: Stage) -> Any:
    async def reminds(call: CallModelData[Any]) -> ModelInputData:
        await asyncio.sleep(0)
        said = {"role": "system", "content": "Remember."}
        return ModelInputData([*call.model_data.input[-2:], said], f"{call.model_data.instructions} At once!")

    agent = Agent("short", instructions="Be short.", model=ScriptedModel(stage, "call:look", "Said."), tools=[look])
    result = Runner.run_streamed(agent, history(3), run_config=RunConfig(call_model_input_filter=reminds))
    return await read_all(result)


async def filter_summarises(stage: Stage) -> Any:
    model = ScriptedModel(stage, "They asked and answered.", name="gpt-4o-mini", summarises=True)
    summariser = Agent("summariser", instructions="Sum up.", model=model)

    async def sums_up(call: CallModelData[Any]) -> ModelInputData:
        held = call.model_data.input
        if len(held) < 6:
            return call.model_data
        said = (await Runner.run(summariser, held[:-1])).final_output
        return ModelInputData([{"role": "user", "content": said}, held[-1]], call.model_data.instructions)

    agent = Agent("summed", instructions="Go on.", model=ScriptedModel(stage, "Said."))
    held: Any = [*history(4), {"role": "user", "content": "And now?"}]
    return (await Runner.run(agent, held, run_config=RunConfig(call_model_input_filter=sums_up))).final_output


async def trimmed_outputs(stage: Stage) -> Any:
    @function_tool
    def read() -> str:
        """Read it all."""
        return words(90)

    trimmer = ToolOutputTrimmer(recent_turns=1, max_output_chars=100, preview_chars=20)
    agent = Agent("trimmed", model=ScriptedModel(stage, "call:read", "Done.", "call:read", "Done."), tools=[read])
    session = SQLiteSession("trimmed")
    stage.runs = 3
    config = RunConfig(call_model_input_filter=trimmer)
    return [(await Runner.run(agent, f"Go {n}", session=session, run_config=config)).final_output for n in range(3)]


async def filter_answers_with_objects(stage: Stage) -> Any:
    held: list[Any] = []

    def keeps(call: CallModelData[Any]) -> ModelInputData:
        return ModelInputData([*held, *call.model_data.input[-1:]], None)

    agent = Agent("objects", model=ScriptedModel(stage, "One."))
    first = await Runner.run(agent, "First")
    held.extend(message.raw_item for message in first.new_items if isinstance(message.raw_item, ResponseOutputMessage))
    stage.runs = 2
    config = RunConfig(call_model_input_filter=keeps)
    return (await Runner.run(agent, "Second", run_config=config)).final_output


async def in_a_session(stage: Stage) -> Any:
    model = ScriptedModel(stage, "call:look", "Said.", ["call:look", "call:look"], "Said.")
    agent = Agent("sitting", instructions="Remember.", model=model, tools=[look])
    session = SQLiteSession("sitting")
    stage.runs = 3
    return [(await Runner.run(agent, f"Question {turn}", session=session)).final_output for turn in range(3)]


async def in_a_limited_session(stage: Stage) -> Any:
    model = ScriptedModel(stage, "call:look", "Said.", "Said again.")
    agent = Agent("limited", instructions="Remember.", model=model, tools=[look])
    session = SQLiteSession("limited", session_settings=SessionSettings(limit=2))
    stage.runs = 4
    said = []
    for turn in range(4):
        result = Runner.run_streamed(agent, f"Question {turn}", session=session)
        await read_all(result)
        said.append(result.final_output)
    return said


async def session_callback(stage: Stage) -> Any:
    def newest_four(held: list[Any], new: list[Any]) -> list[Any]:
        return [*held[-4:], *new]

    model = ScriptedModel(stage, "call:look", "Said.", "call:look", "Said.")
    agent = Agent("calling", instructions="Remember.", model=model, tools=[look])
    session = SQLiteSession("calling")
    stage.runs = 4
    config = RunConfig(session_input_callback=newest_four)
    return [
        (await Runner.run(agent, f"Question {turn}", session=session, run_config=config)).final_output
        for turn in range(4)
    ]


async def session_callback_summarises(stage: Stage) -> Any:
    summariser = Agent("summariser", model=ScriptedModel(stage, "They talked.", name="gpt-4o-mini", summarises=True))

    async def sums_up(held: list[Any], new: list[Any]) -> list[Any]:
        if not held:
            return new
        said = (await Runner.run(summariser, held)).final_output
        return [{"role": "user", "content": said}, *new]

    agent = Agent("calling", instructions="Remember.", model=ScriptedModel(stage, "Said."))
    session = SQLiteSession("summing")
    stage.runs = 3
    config = RunConfig(session_input_callback=sums_up)
    return [
        (await Runner.run(agent, f"Question {turn}", session=session, run_config=config)).final_output
        for turn in range(3)
    ]


class _Compacts:
    """A client of OpenAI's, as far as it compacts."""

    def __init__(self) -> None:
        self.responses = self

    async def compact(self, **given: Any) -> Any:
        users = [item for item in given.get("input", ()) if item.get("role") == "user"]
        return SimpleNamespace(
            output=[*users, {"type": "compaction", "id": "cmp_1", "encrypted_content": ""}], usage=None
        )


async def compacted_session(stage: Stage) -> Any:
    agent = Agent("compacted", instructions="Remember.", model=ScriptedModel(stage, "call:look", "Said."), tools=[look])
    client: Any = _Compacts()
    session = OpenAIResponsesCompactionSession(
        "compacted", SQLiteSession("compacted"), client=client, compaction_mode="input",
        should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 3,
    )  # fmt: skip
    stage.runs = 3
    return [(await Runner.run(agent, f"Question {turn}", session=session)).final_output for turn in range(3)]


async def held_by_the_provider(stage: Stage) -> Any:
    agent = Agent("chained", instructions="Go on.", model=ScriptedModel(stage, "call:look", "Done."), tools=[look])
    stage.runs = 3
    first = await Runner.run(agent, "Go", auto_previous_response_id=True)
    second = await Runner.run(agent, "Go on", previous_response_id=first.last_response_id)
    third = Runner.run_streamed(agent, "And on", conversation_id="conv_1")
    await read_all(third)
    return first.final_output, second.final_output, third.final_output


async def approved_later(stage: Stage) -> Any:
    @function_tool(needs_approval=True)
    def erase() -> str:
        """Erase everything."""
        return "erased"

    agent = Agent("eraser", model=ScriptedModel(stage, ["call:erase", "call:look"], "Erased."), tools=[look, erase])
    stage.runs = 2
    asked = await Runner.run(agent, "Erase")
    state = await RunState.from_string(agent, asked.to_state().to_string())
    for interruption in state.get_interruptions():
        state.approve(interruption)
    return (await Runner.run(agent, state)).final_output


async def approved_later_streaming(stage: Stage) -> Any:
    @function_tool(needs_approval=True)
    def erase() -> str:
        """Erase everything."""
        return "erased"

    agent = Agent("eraser", model=ScriptedModel(stage, "call:erase", "Erased."), tools=[erase])
    session = SQLiteSession("approved")
    stage.runs = 2
    asked = Runner.run_streamed(agent, "Erase", session=session)
    await read_all(asked)
    state = asked.to_state()
    for interruption in state.get_interruptions():
        state.reject(interruption)
    again = Runner.run_streamed(agent, state, session=session)
    await read_all(again)
    return again.final_output


async def wrapped(stage: Stage) -> Any:
    class Loud(Model):
        def __init__(self, inner: Model) -> None:
            self.inner = inner

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **given: Any) -> Any:  # noqa: A002
            return await self.inner.get_response(system_instructions, [*input[:-1], _loud], *args, **given)

        def stream_response(self, *args: Any, **given: Any) -> Any:
            return self.inner.stream_response(*args, **given)

    agent = Agent("loud", model=Loud(ScriptedModel(stage, "Heard.", "Heard as well.")), instructions="Listen.")
    held: Any = [*history(2), {"role": "user", "content": "And now?"}]
    stage.runs = 2
    first = await Runner.run(agent, held)
    second = Runner.run_streamed(agent, held)
    await read_all(second)
    return first.final_output, second.final_output


_loud = {"role": "user", "content": "LOUD"}


async def falls_back(stage: Stage) -> Any:
    class Fallback(Model):
        def __init__(self, *models: Model) -> None:
            self.models = models

        async def get_response(self, *args: Any, **given: Any) -> Any:
            for model in self.models[:-1]:
                try:
                    return await model.get_response(*args, **given)
                except ConnectionError:
                    continue
            return await self.models[-1].get_response(*args, **given)

        def stream_response(self, *args: Any, **given: Any) -> Any:
            raise NotImplementedError

    broken = ScriptedModel(stage, ConnectionError("gone"), name="gpt-4o-mini")
    agent = Agent("faller", model=Fallback(broken, ScriptedModel(stage, "call:look", "Second.")), tools=[look])
    return (await Runner.run(agent, "Go")).final_output


async def subclassed_model(stage: Stage) -> Any:
    class Own(ScriptedModel):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **given: Any) -> Any:  # noqa: A002
            if "input" in given:
                return await super().get_response(system_instructions, *args, **given)
            return await super().get_response(system_instructions, input[-2:], *args, **given)

    agent = Agent("own", model=Own(stage, "call:look", "Done."), tools=[look])
    return (await Runner.run(agent, [*history(2), {"role": "user", "content": "Go"}])).final_output


async def by_provider(stage: Stage) -> Any:
    provider = ScriptedProvider(default=ScriptedModel(stage, "Done."), small=ScriptedModel(stage, "S.", name="gpt-4.1"))
    config = RunConfig(model_provider=provider)
    stage.runs = 2
    first = await Runner.run(Agent("one", model="default"), "Go", run_config=config)
    second = await Runner.run(Agent("two", model="small"), "Go", run_config=config)
    return first.final_output, second.final_output


async def at_once(stage: Stage) -> Any:
    agent = Agent("many", model=ScriptedModel(stage, "Done."), instructions="Be quick.")
    stage.runs = 3
    return [message.final_output for message in await asyncio.gather(*(Runner.run(agent, "Go") for _ in range(3)))]


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent("waiting", model=ScriptedModel(stage, "call:wait", "Never."), tools=[wait])
    running = asyncio.create_task(Runner.run(agent, "Wait"))
    await started.wait()
    running.cancel()
    return len(await asyncio.gather(running, return_exceptions=True)), len(stage.received)


async def raised(stage: Stage) -> Any:
    agent = Agent("raising", model=ScriptedModel(stage, RuntimeError("gone")))
    with_error = await asyncio.gather(Runner.run(agent, "Go"), return_exceptions=True)
    return [type(error).__name__ for error in with_error]


async def stops_at_a_tool(stage: Stage) -> Any:
    model = ScriptedModel(stage, "call:look")
    agent = Agent("stops", model=model, tools=[look], tool_use_behavior="stop_on_first_tool")
    return (await Runner.run(agent, "Go")).final_output


async def lifted_to_json(stage: Stage) -> Any:
    """A history that a program writes down, and reads again."""
    agent = Agent("written", model=ScriptedModel(stage, "call:look", "Done."), tools=[look])
    stage.runs = 2
    first = await Runner.run(agent, "Go")
    held = json.loads(json.dumps(first.to_input_list()))
    return (await Runner.run(agent, [*held, {"role": "user", "content": "More"}])).final_output


PROGRAMS = [
    plain, without_instructions, parallel_tools, streamed, stream_left, stream_ends_after_a_turn, handed_off,
    handed_off_streaming, handed_off_filtered, handed_off_nested, agent_as_tool, guarded, guard_trips, structured,
    too_many_turns, retried, filtered, filtered_streaming, filter_summarises, trimmed_outputs,
    filter_answers_with_objects, in_a_session, in_a_limited_session, session_callback, session_callback_summarises,
    compacted_session, held_by_the_provider, approved_later, approved_later_streaming, wrapped, falls_back,
    subclassed_model, by_provider, at_once, cancelled, raised, stops_at_a_tool, lifted_to_json,
]  # fmt: skip
