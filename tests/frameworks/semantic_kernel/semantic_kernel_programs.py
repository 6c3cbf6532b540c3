"""Programs of Semantic Kernel as its users write them; each is given a stage, and returns what it came to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from semantic_kernel import Kernel
from semantic_kernel.agents import (
    AgentGroupChat,
    ChatCompletionAgent,
    ChatHistoryAgentThread,
    ConcurrentOrchestration,
    GroupChatOrchestration,
    HandoffOrchestration,
    MagenticOrchestration,
    OrchestrationHandoffs,
    RoundRobinGroupChatManager,
    SequentialOrchestration,
    StandardMagenticManager,
)
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.agents.strategies import (
    DefaultTerminationStrategy,
    KernelFunctionSelectionStrategy,
    KernelFunctionTerminationStrategy,
)
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatHistorySummarizationReducer,
    ChatHistoryTruncationReducer,
    ChatMessageContent,
)
from semantic_kernel.contents.history_reducer.chat_history_reducer import ChatHistoryReducer
from semantic_kernel.filters import AutoFunctionInvocationContext, FilterTypes
from semantic_kernel.functions import KernelArguments, KernelFunctionFromPrompt, kernel_function
from semantic_kernel.prompt_template import InputVariable, PromptTemplateConfig
from semantic_kernel_models import ScriptedService, ScriptedTexts, Settings, Stage, talk, words


class Tools:
    """What the models may call."""

    @kernel_function
    def look(self, q: str = "x") -> str:
        """Look something up."""
        return f"found {q}: {words(10)}"

    @kernel_function
    def fail(self, q: str = "x") -> str:
        """Find nothing."""
        raise LookupError(f"nothing is known of {q}")


LOOK = "call:Tools-look"


def agent(stage: Stage, *lines: Any, name: str = "bob", **more: Any) -> ChatCompletionAgent:
    return ChatCompletionAgent(
        service=ScriptedService(stage, *lines), name=name, **{"instructions": "You look.", "plugins": [Tools()], **more}
    )


def texts(messages: Any) -> list[str]:
    return [str(message) for message in messages]


async def plain(stage: Stage) -> Any:
    stage.runs = 2
    greeter = agent(stage, "Hello.", plugins=[])
    first = await greeter.get_response("Hi")
    second = await greeter.get_response("Again", thread=first.thread)
    return str(first), str(second), len(second.thread)


async def parallel_tools(stage: Stage) -> Any:
    looker = agent(
        stage, [LOOK + ' {"q": "a"}', LOOK + ' {"q": "b"}', "call:Tools-fail"], LOOK, "call:Tools-none", "Done."
    )
    return str(await looker.get_response("Find a and b"))


async def many_turns(stage: Stage) -> Any:
    stage.runs = 3
    looker, thread = agent(stage, LOOK, "One.", [LOOK, LOOK], "Two.", "Three."), ChatHistoryAgentThread()
    return [str(await looker.get_response(f"Question {turn}", thread=thread)) for turn in range(3)]


async def streamed(stage: Stage) -> Any:
    stage.runs = 2
    streamer, thread, said = agent(stage, LOOK, "It is here.", [LOOK, LOOK], "And there."), ChatHistoryAgentThread(), []
    for question in ("Where?", "And then?"):
        said += [str(chunk) async for chunk in streamer.invoke_stream(question, thread=thread)]
    return said, len(thread)


async def iterated(stage: Stage) -> Any:
    between = []

    async def note(message: ChatMessageContent) -> None:
        between.append(message.role.value)

    looker = agent(stage, LOOK, "Done.")
    said = [str(message) async for message in looker.invoke(["Go", "and look"], on_intermediate_message=note)]
    return said, between


async def abandoned(stage: Stage) -> Any:
    streamer = agent(stage, "It is a long story.")
    async for chunk in streamer.invoke_stream("Go"):
        return str(chunk)
    return None


async def with_system_messages(stage: Stage) -> Any:
    stage.runs = 2
    history = ChatHistory(system_message="The guest is deaf.")
    history.add_developer_message("Write large.")
    thread = ChatHistoryAgentThread(chat_history=talk(history, 1))
    writer = agent(stage, "Hello.", instructions="Mind {{$what}}.", arguments=KernelArguments(what="the step"))
    await writer.get_response("Hi", thread=thread)
    history.add_system_message("Be brief now.")
    return str(await writer.get_response("Go on", thread=thread, arguments=KernelArguments(what="the gap")))


async def truncated(stage: Stage) -> Any:
    stage.runs = 4
    thread = ChatHistoryAgentThread(chat_history=ChatHistoryTruncationReducer(target_count=4, threshold_count=1))
    looker, sizes = agent(stage, *[LOOK, "Done."] * 4), []
    for turn in range(4):
        await looker.get_response(f"Question {turn}", thread=thread)
        await thread.reduce()
        sizes.append(len(thread))
    return sizes


async def summarised(stage: Stage) -> Any:
    stage.runs = 4
    summariser = ScriptedService(stage, "They looked for x.", name="gpt-4o-mini", summarises=True)
    history = ChatHistorySummarizationReducer(service=summariser, target_count=2)
    thread, looker, reduced = ChatHistoryAgentThread(chat_history=history), agent(stage, *[LOOK, "Done."] * 4), []
    for turn in range(4):
        async for _ in looker.invoke(f"Question {turn}", thread=thread):
            pass
        reduced.append(await thread.reduce() is not None)
    return reduced, texts(history.messages)


async def summaries_fail(stage: Stage) -> Any:
    stage.runs = 3
    summariser = ScriptedService(stage, ConnectionError("gone"), name="gpt-4o-mini", summarises=True)
    history = ChatHistorySummarizationReducer(service=summariser, target_count=2, fail_on_error=False)
    thread, looker = ChatHistoryAgentThread(chat_history=talk(history, 2)), agent(stage, "Done.")
    for turn in range(3):
        await thread.reduce()
        await looker.get_response(f"Question {turn}", thread=thread)
    return len(thread)


async def own_reducer(stage: Stage) -> Any:
    class Requests(ChatHistoryReducer):
        async def reduce(self) -> Any:
            self.messages = [message for message in self.messages if message.role is AuthorRole.USER][
                -self.target_count :
            ]
            return self

    class Fewer(ChatHistoryTruncationReducer):
        async def reduce(self) -> Any:
            await super().reduce()
            self.messages = self.messages[1:]
            return self

    stage.runs = 4
    asked = agent(stage, "Done.")
    for history in (Requests(target_count=2), Fewer(target_count=3)):
        thread = ChatHistoryAgentThread(chat_history=talk(history, 4))
        for turn in range(2):
            await thread.reduce()
            await asked.get_response(f"Question {turn}", thread=thread)
    return len(thread)


async def direct(stage: Stage) -> Any:
    service, kernel = ScriptedService(stage, LOOK, "Here.", [LOOK, LOOK], "There.", "Bye."), Kernel()
    kernel.add_plugin(Tools())
    settings = Settings(function_choice_behavior=FunctionChoiceBehavior.Auto())
    history = ChatHistoryTruncationReducer(target_count=4, system_message="You look.")
    for question in ("Where?", "And then?"):
        history.add_user_message(question)
        history.add_message(await service.get_chat_message_content(history, settings, kernel=kernel))
        await history.reduce()
    history.add_user_message("Bye")
    said = [str(chunk) async for chunk in service.get_streaming_chat_message_content(history, settings, kernel=kernel)]
    stage.runs = 3
    return said, len(history)


async def asked_by_hand(stage: Stage) -> Any:
    service, kernel = ScriptedService(stage, [LOOK, LOOK], "Done."), Kernel()
    kernel.add_plugin(Tools())
    settings = Settings(function_choice_behavior=FunctionChoiceBehavior.Auto(auto_invoke=False))
    history = talk(ChatHistory(system_message="You look."), 1)
    history.add_user_message("Look")
    answer = await service.get_chat_message_content(history, settings, kernel=kernel)
    history.add_message(answer)
    for call in answer.items:
        await kernel.invoke_function_call(call, history)
    stage.runs = 4  # two of them are the framework's own spans of the functions
    return str(await service.get_chat_message_content(history, settings, kernel=kernel))


async def edited_by_hand(stage: Stage) -> Any:
    service, history = ScriptedService(stage, "Noted."), ChatHistory(system_message="You note.")
    for turn in range(4):
        history.add_user_message(f"note {turn}")
        history.add_message(await service.get_chat_message_content(history, Settings()))
        history.messages = [history.messages[0], *history.messages[1:][-3:]]
    stage.runs = 4
    return len(history)


async def prompted(stage: Stage) -> Any:
    kernel = Kernel(services=[ScriptedService(stage, LOOK, "Sunny.", "Rainy.")])
    kernel.add_plugin(Tools())
    prompt = '<message role="system">You are brief.</message>What of {{$city}}? {{Tools.look q="y"}}'
    arguments = KernelArguments(city="Bonn", settings=Settings(function_choice_behavior=FunctionChoiceBehavior.Auto()))
    first = await kernel.invoke_prompt(prompt, arguments=arguments)
    second = [
        str(chunk[0])
        async for chunk in kernel.invoke_prompt_stream("And {{$city}}?", arguments=KernelArguments(city="Ulm"))
    ]
    stage.runs = 2
    return str(first), second


async def chat_function(stage: Stage) -> Any:
    class Named(KernelFunctionFromPrompt):
        async def _invoke_internal(self, context: Any) -> None:
            await super()._invoke_internal(context=context)

    kernel = Kernel(services=[ScriptedService(stage, "Noted.")])
    template = PromptTemplateConfig(
        template="{{$chat_history}}{{$user_input}}",
        input_variables=[InputVariable(name="chat_history", allow_dangerously_set_content=True)],
    )
    chat = Named(function_name="chat", plugin_name="talk", prompt_template_config=template)
    history = ChatHistoryTruncationReducer(target_count=4, system_message="You are brief.")
    for turn in range(4):
        await history.reduce()
        said = f"note {turn} & <this>"
        result = await kernel.invoke(chat, user_input=said, chat_history=history)
        history.add_user_message(said)
        history.add_assistant_message(str(result))
    stage.runs = 4
    return texts(history.messages)


async def texts_completed(stage: Stage) -> Any:
    kernel = Kernel(services=[ScriptedTexts(stage)])
    first = await kernel.invoke_prompt("Once upon {{$a}}", arguments=KernelArguments(a="a time"))
    parts = [str(chunk[0]) async for chunk in kernel.invoke_prompt_stream("And then")]

    class Framed(ScriptedTexts):
        async def _inner_get_text_contents(self, prompt: str, settings: Any) -> Any:
            return await super()._inner_get_text_contents(f"Framed: {prompt}", settings)

    class HandsOn(ScriptedTexts):
        to: Any

        async def _inner_get_text_contents(self, prompt: str, settings: Any) -> Any:
            return await self.to.get_text_contents(prompt.upper(), settings)

    stage.runs = 5
    services = ScriptedTexts(stage), Framed(stage), HandsOn(stage, to=ScriptedTexts(stage))
    return str(first), parts, [str(await service.get_text_content("Go on", Settings())) for service in services]


async def filtered(stage: Stage) -> Any:
    kernel = Kernel()
    kernel.add_plugin(Tools())

    @kernel.filter(FilterTypes.AUTO_FUNCTION_INVOCATION)
    async def shorten(context: AutoFunctionInvocationContext, next: Any) -> None:  # noqa: A002  # it is called by this name
        await next(context)
        history = context.chat_history
        history.messages = [history.messages[0], *history.messages[3:]] if len(history) > 5 else history.messages

    looker = agent(stage, [LOOK, LOOK], [LOOK, LOOK], "Done.", kernel=kernel, plugins=[])
    return str(await looker.get_response("Look", thread=ChatHistoryAgentThread(talk(ChatHistory(), 2))))


async def terminated(stage: Stage) -> Any:
    kernel = Kernel()
    kernel.add_plugin(Tools())

    @kernel.filter(FilterTypes.AUTO_FUNCTION_INVOCATION)
    async def stop(context: AutoFunctionInvocationContext, next: Any) -> None:  # noqa: A002  # it is called by this name
        await next(context)
        context.terminate = True

    stage.runs = 2
    looker = agent(stage, LOOK, "Done.", kernel=kernel, plugins=[])
    first = await looker.get_response("Look")
    return first.role.value, str(await looker.get_response("And now?", thread=first.thread))


async def agents_as_tools(stage: Stage) -> Any:
    helper = agent(stage, LOOK, "It helps.", name="helper", instructions="You help.")
    boss = agent(
        stage, ['call:helper-helper {"messages": "Help"}', LOOK], "Done.", name="boss", plugins=[helper, Tools()]
    )
    return str(await boss.get_response("Do it"))


async def prompts_as_tools(stage: Stage) -> Any:
    kernel = Kernel(services=[ScriptedService(stage, "call:talk-sum", "It is short.", "Done.")])
    kernel.add_function("talk", KernelFunctionFromPrompt("sum", prompt="Sum up: {{$input}}", description="Sums up."))
    return str(await ChatCompletionAgent(kernel=kernel, name="summer").get_response("Go"))


async def subclassed(stage: Stage) -> Any:
    class Newest(ScriptedService):
        async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
            shorter = ChatHistory(messages=chat_history.messages[-3:])
            return await super()._inner_get_chat_message_contents(shorter, settings)

    own = ChatCompletionAgent(service=Newest(stage, LOOK, "Done."), name="own", plugins=[Tools()], instructions="Look.")
    return str(await own.get_response("Go"))


async def falls_back(stage: Stage) -> Any:
    class Fallback(ChatCompletionClientBase):
        SUPPORTS_FUNCTION_CALLING = True
        services: list[Any]

        def get_prompt_execution_settings_class(self) -> Any:
            return self.services[0].get_prompt_execution_settings_class()

        def _update_function_choice_settings_callback(self) -> Any:
            return self.services[0]._update_function_choice_settings_callback()

        async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
            try:
                return await self.services[0]._inner_get_chat_message_contents(chat_history, settings)
            except ConnectionError:
                return await self.services[1]._inner_get_chat_message_contents(chat_history, settings)

    broken = ScriptedService(stage, ConnectionError("gone"))
    service = Fallback(ai_model_id="gpt-4o", services=[broken, ScriptedService(stage, LOOK, "Done.")])
    return str(await ChatCompletionAgent(service=service, name="faller", plugins=[Tools()]).get_response("Go"))


async def tried_again(stage: Stage) -> Any:
    stage.runs = 2
    flaky, history = agent(stage, ConnectionError("gone"), "Done."), talk(ChatHistory(), 1)
    thread = ChatHistoryAgentThread(chat_history=history)
    failed = await asyncio.gather(flaky.get_response("Go", thread=thread), return_exceptions=True)
    return [type(error).__name__ for error in failed], str(await flaky.get_response(thread=thread))


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    class Blocker:
        @kernel_function
        async def wait(self) -> str:
            """Wait for ever."""
            started.set()
            await asyncio.Event().wait()
            return ""

    running = asyncio.create_task(agent(stage, "call:Blocker-wait", "Never.", plugins=[Blocker()]).get_response("Wait"))
    await started.wait()
    running.cancel()
    return [type(message).__name__ for message in await asyncio.gather(running, return_exceptions=True)]


async def at_once(stage: Stage) -> Any:
    stage.runs = 3
    several = agent(stage, lambda messages: "Done." if messages[-1].role is AuthorRole.TOOL else LOOK)
    return texts(await asyncio.gather(*(several.get_response(f"Go {at}") for at in range(3))))


async def several_agents_in_a_thread(stage: Stage) -> Any:
    stage.runs = 3
    one, other = (
        agent(stage, LOOK, "One.", "Three.", name="one"),
        agent(stage, LOOK, "Two.", name="two", instructions="Be two."),
    )
    thread = ChatHistoryAgentThread()
    return [
        str(await who.get_response(f"Question {turn}", thread=thread)) for turn, who in enumerate((one, other, one))
    ]


async def group_chat(stage: Stage, **strategy: Any) -> Any:
    one, other = agent(stage, LOOK, "One.", name="one"), agent(stage, "Two.", name="two", instructions="Be two.")
    kernel = Kernel(services=[ScriptedService(stage, "one", "no", "two", "yes")])
    select, done = (
        KernelFunctionFromPrompt(
            name,
            prompt_template_config=PromptTemplateConfig(template=template, allow_dangerously_set_content=True),
        )
        for name, template in (
            ("select", "Who is next of {{$_agent_}} after {{$_history_}}?"),
            ("done", "Is it done? {{$_history_}}"),
        )
    )
    chat = AgentGroupChat(
        agents=[one, other],
        selection_strategy=KernelFunctionSelectionStrategy(
            function=select, kernel=kernel, result_parser=lambda result: str(result.value[0]), **strategy
        ),
        termination_strategy=KernelFunctionTerminationStrategy(
            agents=[one, other],
            function=done,
            kernel=kernel,
            result_parser=lambda result: str(result.value[0]) == "yes",
            **strategy,
        ),
    )
    await chat.add_chat_message("Go")
    return [(message.name, str(message)) async for message in chat.invoke()]


async def group_chat_streamed(stage: Stage) -> Any:
    one, other = agent(stage, LOOK, "One.", name="one"), agent(stage, "Two.", name="two", instructions="Be two.")
    history = ChatHistoryTruncationReducer(target_count=2)
    chat = AgentGroupChat(
        agents=[one, other], termination_strategy=DefaultTerminationStrategy(maximum_iterations=3), chat_history=history
    )
    await chat.add_chat_message("Go")
    said = [str(chunk) async for chunk in chat.invoke_stream()]
    await chat.reduce_history()
    stage.runs = 2
    return said, [str(message) async for message in chat.invoke(one)]


async def _orchestrated(orchestration: Any, task: str = "Go") -> Any:
    runtime = InProcessRuntime()
    runtime.start()
    result = await (await orchestration.invoke(task=task, runtime=runtime)).get(timeout=20)
    await runtime.stop_when_idle()
    return texts(result) if isinstance(result, list) else str(result)


def _members(stage: Stage) -> list[Any]:
    one = agent(stage, LOOK, "One.", name="one", description="Looks.")
    return [one, agent(stage, "Two.", name="two", description="Says.", instructions="Be two.")]


async def sequential(stage: Stage) -> Any:
    return await _orchestrated(SequentialOrchestration(members=_members(stage)))


async def concurrent(stage: Stage) -> Any:
    return sorted(await _orchestrated(ConcurrentOrchestration(members=_members(stage), name="both")))


async def group_chat_orchestrated(stage: Stage) -> Any:
    manager = RoundRobinGroupChatManager(max_rounds=3)
    return await _orchestrated(GroupChatOrchestration(members=_members(stage), manager=manager))


async def handed_off(stage: Stage) -> Any:
    first = agent(stage, "call:Handoff-transfer_to_two", "Never.", name="one", description="Asks.", plugins=[])
    second = agent(
        stage, LOOK, 'call:Handoff-complete_task {"task_summary": "Done."}', "Done.", name="two", description="Does."
    )
    handoffs = OrchestrationHandoffs().add(first, second)
    return await _orchestrated(HandoffOrchestration(members=[first, second], handoffs=handoffs))


async def magentic(stage: Stage) -> Any:
    def ledger(done: bool, speaker: str) -> str:
        answers: dict[str, Any] = {
            "is_request_satisfied": done, "is_in_loop": False, "is_progress_being_made": True,
            "next_speaker": speaker, "instruction_or_question": f"Go, {speaker}",
        }  # fmt: skip
        return json.dumps({name: {"reason": "So.", "answer": answer} for name, answer in answers.items()})

    manager = ScriptedService(
        stage, "Facts.", "A plan.", ledger(False, "one"), ledger(False, "two"), ledger(True, "one"), "All."
    )
    return await _orchestrated(
        MagenticOrchestration(members=_members(stage), manager=StandardMagenticManager(chat_completion_service=manager))
    )


async def reduced_as_it_grows(stage: Stage) -> Any:
    service = ScriptedService(stage, "Noted.")
    history = ChatHistoryTruncationReducer(target_count=3, auto_reduce=True, system_message="You note.")
    for turn in range(4):
        await history.add_message_async(ChatMessageContent(role=AuthorRole.USER, content=f"note {turn}"))
        await history.add_message_async(await service.get_chat_message_content(history, Settings()))
    stage.runs = 4
    return texts(history.messages)


async def copied_history(stage: Stage) -> Any:
    stage.runs = 3
    noter, saved = agent(stage, LOOK, "Noted.", "Noted."), ChatHistory().serialize()
    for turn in range(3):
        thread = ChatHistoryAgentThread(chat_history=ChatHistory.restore_chat_history(saved), thread_id="stored")
        await noter.get_response(f"note {turn}", thread=thread)
        saved = thread._chat_history.serialize()
    return len(thread)


PROGRAMS = [
    plain, parallel_tools, many_turns, streamed, iterated, abandoned, with_system_messages, truncated, summarised,
    summaries_fail, own_reducer, direct, asked_by_hand, edited_by_hand, prompted, chat_function, texts_completed,
    filtered, terminated, agents_as_tools, prompts_as_tools, subclassed, falls_back, tried_again, cancelled, at_once,
    several_agents_in_a_thread, group_chat, group_chat_streamed, sequential, concurrent, group_chat_orchestrated,
    handed_off, magentic, reduced_as_it_grows, copied_history,
]  # fmt: skip
