"""Programs of Google ADK as its users write them; each is given a stage, and returns what it came to."""

from __future__ import annotations

import asyncio
import tempfile
from importlib.util import find_spec
from typing import Any

from google.adk.agents import Agent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import compaction
from google.adk.apps.app import EventsCompactionConfig, ResumabilityConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionResult
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.flows.llm_flows.single_flow import SingleFlow
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.planners.plan_re_act_planner import PlanReActPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.plugins.global_instruction_plugin import GlobalInstructionPlugin
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.genai import types
from google_adk_models import ScriptedLlm, Stage, Talk, words
from pydantic import BaseModel


def look(q: str = "x") -> str:
    """Look something up.

    Args:
        q: What to look for.
    """
    return f"found {q}: {words(10)}"


def measure(n: int = 1) -> dict[str, Any]:
    """Measure something."""
    return {"length": n, "unit": "m", "parts": ["a", "b"]}


def user(text: str) -> Any:
    return types.Content(role="user", parts=[types.Part(text=text)])


async def plain(stage: Stage) -> Any:
    talk = Talk(Agent(name="greeter", model=ScriptedLlm(stage, "Hello.", "Again."), instruction="You greet."))
    stage.runs = 2
    return await talk.say("Hi"), await talk.say("Once more")


async def parallel_tools(stage: Stage) -> Any:
    model = ScriptedLlm(stage, ['call:look {"q": "a"}', 'call:look {"q": "b"}', "call:measure"], "call:look", "Done.")
    talk = Talk(Agent(name="looker", model=model, tools=[look, measure], instruction="Look.", description="Looks."))
    return len(await talk.say("Find a and b"))


async def streamed(stage: Stage) -> Any:
    talk = Talk(Agent(name="streamer", model=ScriptedLlm(stage, "call:look", "It is over there."), tools=[look]))
    return (await talk.say("Where?", run_config=RunConfig(streaming_mode=StreamingMode.SSE)))[-1]


def run_at_once(stage: Stage) -> Any:
    talk = Talk(Agent(name="sync", model=ScriptedLlm(stage, "call:look", "Done."), tools=[look]))
    said = talk.runner.run(user_id="guest", session_id=talk.session, new_message=user("Go"))
    return [event.content.parts[0].text for event in said]


async def run_in_a_thread(stage: Stage) -> Any:
    return await asyncio.to_thread(run_at_once, stage)


async def transferred(stage: Stage) -> Any:
    model = ScriptedLlm(stage, 'call:transfer_to_agent {"agent_name": "biller"}', "Back with me.", name="gpt-4o")
    biller = Agent(
        name="biller", description="Bills.", instruction="Bill.", tools=[look],
        model=ScriptedLlm(stage, "call:look", "It is 3.", 'call:transfer_to_agent {"agent_name": "boss"}'),
    )  # fmt: skip
    talk = Talk(Agent(name="boss", model=model, sub_agents=[biller], instruction="Send on."))
    stage.runs = 2
    return len(await talk.say("What do I owe?")), len(await talk.say("Is that all?"))


async def in_sequence(stage: Stage) -> Any:
    writer = Agent(name="writer", model=ScriptedLlm(stage, "A draft."), output_key="draft")
    critic = Agent(
        name="critic", model=ScriptedLlm(stage, "call:look", "Good."), tools=[look], instruction="Of: {draft}"
    )
    stage.runs = 2
    talk = Talk(SequentialAgent(name="pipeline", sub_agents=[writer, critic]))
    return await talk.say("Write"), len(await talk.say("Once more"))


async def in_parallel(stage: Stage) -> Any:
    def agent(name: str) -> Any:
        return Agent(name=name, model=ScriptedLlm(stage, "call:look", f"{name} done."), tools=[look], instruction="Go.")

    last = Agent(name="last", model=ScriptedLlm(stage, "Both are done."))
    both = ParallelAgent(name="both", sub_agents=[agent("left"), agent("right")])
    return sorted(await Talk(SequentialAgent(name="all", sub_agents=[both, last])).say("Go"))[-1]


async def in_a_loop(stage: Stage) -> Any:
    model = ScriptedLlm(stage, "Not yet.", "Nearly.", "call:exit_loop")
    worker = Agent(name="worker", model=model, tools=[exit_loop], instruction="Work.")
    return len(await Talk(LoopAgent(name="loop", sub_agents=[worker], max_iterations=5)).say("Work"))


async def agent_as_a_tool(stage: Stage) -> Any:
    helper = Agent(name="helper", model=ScriptedLlm(stage, "call:look", "It helps."), tools=[look], instruction="Help.")
    model = ScriptedLlm(stage, ['call:helper {"request": "Help"}', "call:look"], "Done.")
    return (await Talk(Agent(name="boss", model=model, tools=[AgentTool(helper), look])).say("Do it"))[-1]


async def newest_turn_only(stage: Stage) -> Any:
    agent = Agent(
        name="forgetful", model=ScriptedLlm(stage, "call:look", "One.", "call:look", "Two."), tools=[look],
        include_contents="none", instruction="Forget.",
    )  # fmt: skip
    talk = Talk(agent)
    stage.runs = 2
    return len(await talk.say("First")), len(await talk.say("Second"))


async def _long(stage: Stage, turns: int = 5, lines: Any = ("call:look", "Said."), **app: Any) -> Any:
    agent = Agent(name="long", model=ScriptedLlm(stage, *(lines * turns)), tools=[look], instruction="Remember all.")
    talk = Talk(agent, **app)
    stage.runs = turns
    said = [(await talk.say(f"Question {turn}: {words(6)}"))[-1] for turn in range(turns)]
    return said, len(await talk.events())


#: Earlier releases have no compaction without one that goes by runs.
NEVER: Any = {"compaction_interval": 1_000, "overlap_size": 0}


async def compacted_between_runs(stage: Stage) -> Any:
    summariser = LlmEventSummarizer(ScriptedLlm(stage, "They looked for x.", name="gpt-4o-mini", summarises=True))
    config = EventsCompactionConfig(summarizer=summariser, compaction_interval=2, overlap_size=1)
    return await _long(stage, events_compaction_config=config)


async def compacted_before_calls(stage: Stage) -> Any:
    summariser = LlmEventSummarizer(ScriptedLlm(stage, "They looked.", name="gpt-4o-mini", summarises=True))
    config = EventsCompactionConfig(summarizer=summariser, token_threshold=250, event_retention_size=3, **NEVER)
    return await _long(stage, events_compaction_config=config)


async def summaries_fail(stage: Stage) -> Any:
    model = ScriptedLlm(stage, ConnectionError("gone"), "They looked.", name="gpt-4o-mini", summarises=True)
    config = EventsCompactionConfig(
        summarizer=LlmEventSummarizer(model), token_threshold=200, event_retention_size=3, **NEVER
    )
    return (await _long(stage, events_compaction_config=config))[0]


async def own_summariser(stage: Stage) -> Any:
    class Counts(BaseEventsSummarizer):
        async def maybe_summarize_events(self, *, events: list[Event]) -> Event:
            text = types.Content(role="model", parts=[types.Part(text=f"{len(events)} events.")])
            compaction = EventCompaction(
                start_timestamp=events[0].timestamp, end_timestamp=events[-1].timestamp, compacted_content=text
            )
            return Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())

    config = EventsCompactionConfig(summarizer=Counts(), compaction_interval=2, overlap_size=0)
    return await _long(stage, events_compaction_config=config)


async def filtered(stage: Stage) -> Any:
    return await _long(stage, plugins=[ContextFilterPlugin(num_invocations_to_keep=2)])


async def filtered_by_the_program(stage: Stage) -> Any:
    def without_answers(contents: list[Any]) -> list[Any]:
        return [content for content in contents if content.role != "model" or content.parts[0].function_call]

    return await _long(stage, plugins=[ContextFilterPlugin(custom_filter=without_answers)])


class Newest(BasePlugin):
    """Keeps the newest contents, and says so."""

    def __init__(self, keep: int = 3) -> None:
        super().__init__(name="newest")
        self.keep = keep

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
        llm_request.contents = llm_request.contents[-self.keep :]
        llm_request.append_instructions(["Be brief."])


async def own_plugins(stage: Stage) -> Any:
    class Reminds(Newest):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
            await super().before_model_callback(callback_context=callback_context, llm_request=llm_request)
            llm_request.contents.append(user("Remember."))

    return await _long(stage, plugins=[Reminds(4), GlobalInstructionPlugin("Be kind.")], lines=("Said.",))


async def called_back(stage: Stage) -> Any:
    def shortens(callback_context: Any, llm_request: Any) -> None:
        llm_request.contents = llm_request.contents[-1:]

    async def louder(callback_context: Any, llm_request: Any) -> None:
        llm_request.contents[-1].parts.append(types.Part(text="LOUD"))

    def agent(*callbacks: Any) -> Any:
        model = ScriptedLlm(stage, "Said.")
        return Agent(name="called", model=model, before_model_callback=list(callbacks), instruction="Short.")

    stage.runs = 4
    said = []
    for callbacks in ((shortens,), (shortens, louder)):
        talk = Talk(agent(*callbacks))
        said += [await talk.say("One"), await talk.say("Two")]
    return said


async def answered_by_a_callback(stage: Stage) -> Any:
    def answers(callback_context: Any, llm_request: Any) -> Any:
        llm_request.contents = llm_request.contents[-1:]
        if "secret" in llm_request.contents[-1].parts[-1].text:
            return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="No.")]))
        return None

    talk = Talk(Agent(name="guarded", model=ScriptedLlm(stage, "Said."), before_model_callback=answers))
    stage.runs, stage.unsent = 3, (1,)
    return [await talk.say(text) for text in ("Hello", "The secret?", "Bye")]


async def asks_a_model_in_a_callback(stage: Stage) -> Any:
    summariser = ScriptedLlm(stage, "They talked.", name="gpt-4o-mini", summarises=True)

    async def sums_up(callback_context: Any, llm_request: Any) -> None:
        if len(llm_request.contents) > 2:
            asked = LlmRequest(contents=[*llm_request.contents[:-1], user("Sum this up.")])
            async for answer in summariser.generate_content_async(asked):
                llm_request.contents = [answer.content, llm_request.contents[-1]]

    talk = Talk(Agent(name="summing", model=ScriptedLlm(stage, "Said."), before_model_callback=sums_up))
    stage.runs = 3
    return [await talk.say(text) for text in ("One", "Two", "Three")]


async def raised(stage: Stage) -> Any:
    talk = Talk(Agent(name="raising", model=ScriptedLlm(stage, ConnectionError("gone"))))
    return [type(message).__name__ for message in await asyncio.gather(talk.say("Go"), return_exceptions=True)]


async def raised_and_caught(stage: Stage) -> Any:
    def sorry(callback_context: Any, llm_request: Any, error: Exception) -> Any:
        return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=f"Sorry: {error}")]))

    model = ScriptedLlm(stage, ConnectionError("gone"), "Said.")
    talk = Talk(Agent(name="sorry", model=model, on_model_error_callback=sorry))
    stage.runs = 2
    return await talk.say("Go"), await talk.say("Again")


async def own_classes_of_models(stage: Stage) -> Any:
    class Hands(ScriptedLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            llm_request.contents.append(user("Answer in one word."))
            async for answer in super().generate_content_async(llm_request, stream):
                yield answer

    class WrappingLlm(ScriptedLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            copied = llm_request.model_copy(update={"contents": list(llm_request.contents)})
            async for answer in ScriptedLlm(self._stage, "Yes.").generate_content_async(copied, stream):
                yield answer

    class ByName(ScriptedLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            async for answer in super().generate_content_async(llm_request=llm_request, stream=stream):
                yield answer

    stage.runs = 3
    agents = [
        Agent(name=f"own{n}", model=model(stage, "call:look", "Yes."), tools=[look])
        for n, model in enumerate((Hands, WrappingLlm, ByName))
    ]
    return [(await Talk(agent).say("Go"))[-1] for agent in agents]


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    talk = Talk(Agent(name="waiting", model=ScriptedLlm(stage, "call:wait", "Never."), tools=[wait]))
    running = asyncio.create_task(talk.say("Wait"))
    await started.wait()
    running.cancel()
    return len(await asyncio.gather(running, return_exceptions=True)), len(stage.received)


async def left_early(stage: Stage) -> Any:
    talk = Talk(Agent(name="left", model=ScriptedLlm(stage, "call:look", "Done."), tools=[look]))
    events = talk.runner.run_async(user_id="guest", session_id=talk.session, new_message=user("Go"))
    async for event in events:
        if event.get_function_calls():
            break
    await events.aclose()
    return len(stage.received)


async def at_once(stage: Stage) -> Any:
    agent = Agent(name="many", model=ScriptedLlm(stage, "Done."), instruction="Be quick.")
    stage.runs = 3
    return await asyncio.gather(*(Talk(agent, session=f"s-{n}").say("Go") for n in range(3)))


async def remembered(stage: Stage) -> Any:
    memory = InMemoryMemoryService()
    agent = Agent(
        name="remembers", model=ScriptedLlm(stage, "call:look", "Noted."), tools=[PreloadMemoryTool(), look],
        instruction="Remember.",
    )  # fmt: skip
    talk = Talk(agent)
    talk.runner.memory_service = memory
    stage.runs = 2
    await talk.say("My bag is green")
    held = await talk.runner.session_service.get_session(app_name="talk", user_id="guest", session_id=talk.session)
    await memory.add_session_to_memory(held)
    again = Talk(agent, session="s-2")
    again.runner.memory_service = memory
    return await again.say("What colour is my bag?")


async def instructed_among_the_messages(stage: Stage) -> Any:
    picture = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"x" * 10, display_name="map"))
    told = types.Content(role="user", parts=[types.Part(text="Always so."), picture])
    model = ScriptedLlm(stage, "call:look", "Said.")
    talk = Talk(Agent(name="static", model=model, static_instruction=told, instruction="And now so.", tools=[look]))
    stage.runs = 2
    return len(await talk.say("One")), len(await talk.say("Two"))


async def planned(stage: Stage) -> Any:
    model = ScriptedLlm(stage, "/*PLANNING*/ I look. /*ACTION*/", "/*FINAL_ANSWER*/ There.")
    talk = Talk(Agent(name="planner", model=model, planner=PlanReActPlanner(), tools=[look]))
    stage.runs = 2
    return len(await talk.say("Plan")), len(await talk.say("Plan again"))


async def runs_code(stage: Stage) -> Any:
    class Pretends(BaseCodeExecutor):
        def execute_code(self, invocation_context: Any, code_execution_input: Any) -> Any:
            return CodeExecutionResult(stdout="4")

    model = ScriptedLlm(stage, "```python\nprint(2 + 2)\n```", "It is 4.")
    return len(await Talk(Agent(name="coder", model=model, code_executor=Pretends())).say("2 + 2?"))


async def answered_later(stage: Stage) -> Any:
    def order(item: str) -> dict[str, str]:
        """Order something, which takes a while."""
        return {"status": "pending", "item": item}

    model = ScriptedLlm(stage, ['call:order {"item": "tea"}', "call:look"], "It is ordered.", "Not yet.", "It is here.")
    talk = Talk(Agent(name="orders", model=model, tools=[LongRunningFunctionTool(order), look]))
    stage.runs = 3
    said = [await talk.say("Order tea"), await talk.say("Is it here?")]
    call = next(call for event in await talk.events() for call in event.get_function_calls() if call.name == "order")
    answer = types.FunctionResponse(id=call.id, name="order", response={"status": "done", "item": "tea"})
    said.append(await talk.say(types.Content(role="user", parts=[types.Part(function_response=answer)])))
    return [len(message) for message in said]


def erase(what: str) -> str:
    """Erase something."""
    return f"{what} is erased"


async def _confirmed(stage: Stage, **app: Any) -> Any:
    model = ScriptedLlm(stage, ['call:erase {"what": "all"}', "call:look"], "Done.")
    tools = [FunctionTool(erase, require_confirmation=True), look]
    talk = Talk(Agent(name="eraser", model=model, tools=tools), **app)
    stage.runs = 2
    first = await talk.say("Erase all")
    asked = next(
        (event, call) for event in await talk.events() for call in event.get_function_calls()
        if call.name == "adk_request_confirmation"
    )  # fmt: skip
    answer = types.FunctionResponse(id=asked[1].id, name=asked[1].name, response={"confirmed": True})
    how = {"invocation_id": asked[0].invocation_id} if app else {}
    said = await talk.say(types.Content(role="user", parts=[types.Part(function_response=answer)]), **how)
    return len(first), said[-1]


async def confirmed(stage: Stage) -> Any:
    return await _confirmed(stage)


async def resumed(stage: Stage) -> Any:
    return await _confirmed(stage, resumability_config=ResumabilityConfig(is_resumable=True))


async def rewound(stage: Stage) -> Any:
    talk = Talk(Agent(name="rewinds", model=ScriptedLlm(stage, "One.", "Two.", "Three.")))
    stage.runs = 3
    said = [await talk.say("First"), await talk.say("Second")]
    back = next(event.invocation_id for event in await talk.events() if event.content.parts[0].text == "Second")
    await talk.runner.rewind_async(user_id="guest", session_id=talk.session, rewind_before_invocation_id=back)
    return said, await talk.say("Instead of the second")


async def asks_a_model_itself(stage: Stage) -> Any:
    other = ScriptedLlm(stage, "Said by another.", name="gpt-4o-mini")

    async def consult(q: str = "x") -> str:
        """Ask another model."""
        async for answer in other.generate_content_async(LlmRequest(contents=[user(q)])):
            return answer.content.parts[0].text
        return ""

    async def instructs(context: Any) -> str:
        return await consult("How?")

    model = ScriptedLlm(stage, "call:consult", "Done.")
    return len(await Talk(Agent(name="asker", model=model, tools=[consult], instruction=instructs)).say("Ask"))


class Location(BaseModel):
    city: str
    price: int


async def structured(stage: Stage) -> Any:
    model = ScriptedLlm(stage, "call:look", 'call:set_model_response {"city": "Bonn", "price": 3}')
    talk = Talk(Agent(name="structured", model=model, tools=[look], output_schema=Location, output_key="place"))
    return (await talk.say("Which?"))[-1]


async def kept_in_a_database(stage: Stage) -> Any:
    with tempfile.TemporaryDirectory() as made:
        service = SqliteSessionService(f"{made}/sessions.db")
        agent = Agent(
            name="kept", model=ScriptedLlm(stage, ["call:look", "call:measure"], "Said."), tools=[look, measure]
        )
        stage.runs = 3
        said = [len(await Talk(agent, service=service, session="kept").say(f"Question {turn}")) for turn in range(3)]
        await service.close() if hasattr(service, "close") else None
        return said


async def in_a_graph(stage: Stage) -> Any:
    from google.adk.workflow import START, JoinNode, Workflow

    def agent(name: str, *lines: str) -> Any:
        return Agent(name=name, model=ScriptedLlm(stage, *lines), tools=[look], instruction=f"You {name}.")

    def upper(node_input: Any) -> str:
        return str(node_input).upper()

    left, right, join = agent("left", "call:look", "Left."), agent("right", "Right."), JoinNode(name="join")
    last = agent("last", "Both.")
    flow = Workflow(name="graph", edges=[(START, (left, right), join, upper, last)])
    return sorted(await Talk(flow).say("Go"))[-1]


async def delegated_as_tasks(stage: Stage) -> Any:
    model = ScriptedLlm(stage, 'call:clerk {"request": "Count the tea"}', "It is counted.")
    clerk = Agent(
        name="clerk", description="Counts.", mode="single_turn", model=ScriptedLlm(stage, "call:look", "Three."),
        tools=[look],
    )  # fmt: skip
    talk = Talk(Agent(name="boss", model=model, sub_agents=[clerk]))
    stage.runs = 2
    return len(await talk.say("How much tea?")), len(await talk.say("Sure?"))


async def given_for_a_run(stage: Stage) -> Any:
    talk = Talk(Agent(name="given", model=ScriptedLlm(stage, "call:look", "Said."), tools=[look]))
    stage.runs = 2
    config = RunConfig(model_input_context=[user("The shop closes at six.")])
    return len(await talk.say("One")), len(await talk.say("When?", run_config=config))


async def falls_back(stage: Stage) -> Any:
    from google.adk.models._fallback_model import FallbackModel

    class BusyError(Exception):
        code = status_code = 503

    models = [ScriptedLlm(stage, BusyError("busy")), ScriptedLlm(stage, "call:look", "Said.", name="gpt-4o-mini")]
    talk = Talk(Agent(name="falls", model=FallbackModel(models=models), tools=[look]))
    return len(await talk.say("Go"))


async def own_flow(stage: Stage) -> Any:
    class Named(SingleFlow):
        async def run_async(self, invocation_context: Any) -> Any:
            async for event in super().run_async(invocation_context=invocation_context):
                yield event

        async def _preprocess_async(self, invocation_context: Any, llm_request: Any) -> Any:
            prepared = super()._preprocess_async(invocation_context=invocation_context, llm_request=llm_request)
            async for event in prepared:
                yield event

    class Own(Agent):
        @property
        def _llm_flow(self) -> Any:
            return Named()

    talk = Talk(Own(name="own", model=ScriptedLlm(stage, "call:look", "Said."), tools=[look]))
    return await talk.say("Go")


PROGRAMS = [
    plain, parallel_tools, streamed, run_in_a_thread, transferred, in_sequence, in_parallel, in_a_loop, agent_as_a_tool,
    newest_turn_only, compacted_between_runs, compacted_before_calls, own_summariser, filtered,
    filtered_by_the_program, own_plugins, called_back, answered_by_a_callback, asks_a_model_in_a_callback, raised,
    raised_and_caught, own_classes_of_models, cancelled, left_early, at_once, remembered, instructed_among_the_messages,
    planned, runs_code, answered_later, confirmed, resumed, rewound, asks_a_model_itself, structured,
    kept_in_a_database, in_a_graph, delegated_as_tasks, own_flow,
]  # fmt: skip
if hasattr(compaction, "_prompt_chars_saved"):  # before that, a run ends with it
    PROGRAMS.append(summaries_fail)
if "model_input_context" in RunConfig.model_fields:
    PROGRAMS.append(given_for_a_run)
if find_spec("google.adk.models._fallback_model") is not None:
    PROGRAMS.append(falls_back)
