"""Programs as users write them; each says what it got, and writes down what its models received."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core import Document, MockEmbedding, SummaryIndex
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.bridge.pydantic import BaseModel, Field
from llama_index.core.chat_engine import CondenseQuestionChatEngine, SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.memory import (
    BaseMemory,
    ChatMemoryBuffer,
    ChatSummaryMemoryBuffer,
    FactExtractionMemoryBlock,
    InsertMethod,
    Memory,
    SimpleComposableMemory,
    StaticMemoryBlock,
    VectorMemoryBlock,
)
from llama_index.core.memory.memory import BaseMemoryBlock
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.tools import FunctionTool, QueryEngineTool
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQueryResult
from llama_index.core.workflow import (
    Context,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)
from llama_index_models import Completing, Scripted, Stage, history, words


async def look(q: str = "x") -> str:
    """Look something up."""
    return f"found {q}: {words(10)}"


async def fail(q: str = "x") -> str:
    """Find nothing."""
    raise ValueError(f"nothing is known of {q}")


class Answer(BaseModel):
    """An answer."""

    city: str
    price: int


def index(texts: int = 2) -> SummaryIndex:
    return SummaryIndex.from_documents([Document(text=f"Page {page}: {words(8)}") for page in range(texts)])


async def plain(stage: Stage) -> Any:
    agent = FunctionAgent(name="greeter", llm=Scripted(stage, "Hello.", "Hello again."), system_prompt="You greet.")
    memory = ChatMemoryBuffer.from_defaults(chat_store_key="guest-1")
    stage.runs = 2
    return [str(await agent.run(said, memory=memory)) for said in ("Hi", "And again")]


async def in_one_context(stage: Stage) -> Any:
    agent = FunctionAgent(llm=Scripted(stage, "call:look", "One.", "Two."), tools=[look], system_prompt="You look.")
    context = Context(agent)
    stage.runs = 2
    return [str(await agent.run(said, ctx=context)) for said in ("First", "Second")]


async def parallel_tools(stage: Stage) -> Any:
    llm = Scripted(stage, ['call:look {"q": "a"}', 'call:look {"q": "b"}', "call:fail"], "call:look", "Done.")
    agent = FunctionAgent(name="looker", llm=llm, tools=[look, fail], system_prompt="Look.", streaming=False)
    return str(await agent.run("Find a and b", memory=Memory.from_defaults(session_id="looking")))


async def events_streamed(stage: Stage) -> Any:
    agent = FunctionAgent(name="streamer", llm=Scripted(stage, "call:look", "It is here."), tools=[look])
    handler = agent.run("Where?", chat_history=history(2))
    kinds = [type(event).__name__ async for event in handler.stream_events()]
    return str(await handler), kinds


async def reasoned(stage: Stage) -> Any:
    lines = (
        "Thought: I look.\nAction: look\nAction Input: {'q': 'a'}",
        "no form at all",
        "Thought: I know.\nAnswer: It.",
    )
    agent = ReActAgent(name="reasoner", llm=Scripted(stage, *lines), tools=[look], system_prompt="Reason.")
    memory = Memory.from_defaults(session_id="r", memory_blocks=[StaticMemoryBlock(static_content="Bonn is far.")])
    return str(await agent.run("Where is it?", memory=memory))


async def code_acted(stage: Stage) -> Any:
    async def execute(code: str) -> str:
        return f"ran {len(code)}"

    agent = CodeActAgent(
        name="coder", code_execute_fn=execute, tools=[look], system_prompt="Never sent.",
        llm=Scripted(stage, "<execute>print(1)</execute>", "It printed 1."),
    )  # fmt: skip
    memory = Memory.from_defaults(memory_blocks=[StaticMemoryBlock(static_content="You know Python.")])
    return str(await agent.run("Print it", memory=memory))


async def handed_over(stage: Stage) -> Any:
    first = Scripted(stage, 'call:handoff {"to_agent": "writer", "reason": "it is found"}')
    finder = FunctionAgent(
        name="finder", description="Finds.", llm=first, tools=[look], system_prompt="Find.", can_handoff_to=["writer"]
    )
    writer = FunctionAgent(
        name="writer", description="Writes.", llm=Scripted(stage, "call:look", "Written."), tools=[look],
        system_prompt="Write.",
    )  # fmt: skip
    team = AgentWorkflow(agents=[finder, writer], root_agent="finder", initial_state={"pages": 0})
    return str(await team.run("Find it and write", memory=Memory.from_defaults(session_id="team")))


async def delegated(stage: Stage) -> Any:
    helper = FunctionAgent(name="helper", llm=Scripted(stage, "call:look", "It helps."), tools=[look])

    async def ask(question: str) -> str:
        """Ask the helper."""
        return str(await helper.run(question))

    llm = Scripted(stage, ['call:ask {"question": "How?"}'], "Done.")
    boss = FunctionAgent(name="boss", llm=llm, tools=[ask, look], system_prompt="Delegate.")
    return str(await boss.run("Do it"))


async def structured(stage: Stage) -> Any:
    llm = Scripted(stage, "Bonn for 3.", 'call:Answer {"city": "Bonn", "price": 3}')
    agent = FunctionAgent(name="structured", llm=llm, output_cls=Answer, system_prompt="Answer.")
    answer = await agent.run("Which?")
    return str(answer), answer.structured_response


async def stopped_early(stage: Stage) -> Any:
    llm = Scripted(stage, "call:look", "call:look", "That is all I know.")
    agent = FunctionAgent(name="brief", llm=llm, tools=[look], early_stopping_method="generate", system_prompt="Brief.")
    return str(await agent.run("Where?", max_iterations=2))


async def stopped_by_force(stage: Stage) -> Any:
    agent = FunctionAgent(name="endless", llm=Scripted(stage, "call:look"), tools=[look])
    ended = await asyncio.gather(_ran(agent, "Where?", max_iterations=3), return_exceptions=True)
    return [type(outcome).__name__ for outcome in ended]


async def _ran(agent: Any, *said: Any, **given: Any) -> str:
    return str(await agent.run(*said, **given))


async def chatted(stage: Stage) -> Any:
    engine = SimpleChatEngine.from_defaults(
        llm=Scripted(stage, "One.", "Two.", "Three.", "Four."), system_prompt="You chat.",
        memory=ChatMemoryBuffer.from_defaults(token_limit=20),
    )  # fmt: skip
    stage.runs = 4
    one, two = engine.chat("First").response, (await engine.achat("Second")).response
    streamed = engine.stream_chat("Third")
    three = "".join(streamed.response_gen)
    awaited = await engine.astream_chat("Fourth")
    four = "".join([token async for token in awaited.async_response_gen()])
    return one, two, three, four, [str(event) for event in engine.chat_history]


async def chatted_with_context(stage: Stage) -> Any:
    engine = index().as_chat_engine(
        "context", llm=Scripted(stage, "One.", "Two.", "Three."), system_prompt="You read.",
        memory=Memory.from_defaults(
            session_id="reader", memory_blocks=[StaticMemoryBlock(static_content="Bonn is far.")], token_limit=2_000,
        ),
    )  # fmt: skip
    stage.runs = 3
    streamed = engine.stream_chat("Third")
    three = "".join(streamed.response_gen)
    return three, str(engine.chat("First")), str(await engine.achat("Second"))


async def condensed_with_context(stage: Stage) -> Any:
    engine = index().as_chat_engine(
        "condense_plus_context", llm=Scripted(stage, "One.", "Which page?", "Two.", "Which one?", "Three."),
        memory=ChatMemoryBuffer.from_defaults(token_limit=12), system_prompt="You read.",
    )  # fmt: skip
    stage.runs = 3
    return str(engine.chat("First")), str(await engine.achat(f"Second {words(4)}")), str(engine.chat("Third"))


async def condensed_questions(stage: Stage) -> Any:
    llm = Scripted(stage, "Which page?", "It is page 1.", "Which one?", "It is page 0.")
    engine = CondenseQuestionChatEngine.from_defaults(
        query_engine=index().as_query_engine(llm=llm), llm=llm, chat_history=history(1)
    )
    stage.runs = 2
    return str(engine.chat("First")), str(await engine.achat("Second"))


async def queried(stage: Stage) -> Any:
    modes = ("compact", "refine", "tree_summarize", "simple_summarize", "accumulate")
    stage.runs = 2 * len(modes) + 1
    said = []
    for mode in modes:
        engine: Any = index(3).as_query_engine(llm=Scripted(stage, f"By {mode}."), response_mode=mode)
        said += [str(engine.query("What is on the pages?")), str(await engine.aquery("What else?"))]
    streaming: Any = index().as_query_engine(llm=Scripted(stage, "Streamed."), streaming=True)
    return said, "".join(streaming.query("What?").response_gen)


async def queried_by_an_agent(stage: Stage) -> Any:
    engine = index().as_query_engine(llm=Scripted(stage, "Page 1 says it.", model="gpt-4o-mini"))
    tool = QueryEngineTool.from_defaults(engine, name="pages", description="Reads the pages.")
    llm = Scripted(stage, ['call:pages {"input": "What?"}', "call:look"], "It is on page 1.")
    return str(await FunctionAgent(name="reader", llm=llm, tools=[tool, look]).run("What do they say?"))


class Kept(SimpleVectorStore):
    """Vectors with their texts."""

    stores_text: bool = True
    nodes: list[Any] = Field(default_factory=list)

    async def async_add(self, nodes: Any, **kwargs: Any) -> list[str]:
        self.nodes = [*self.nodes, *nodes]
        return [node.node_id for node in nodes]

    async def aquery(self, query: Any, **kwargs: Any) -> VectorStoreQueryResult:
        return VectorStoreQueryResult(nodes=self.nodes[:2], similarities=[1.0, 1.0][: len(self.nodes)])


async def remembered_in_blocks(stage: Stage) -> Any:
    class Mood(BaseMemoryBlock[str]):
        name: str = "mood"

        async def _aget(self, messages: Any = None, **kwargs: Any) -> str:
            return f"{len(messages or ())} messages, all kind"

        async def _aput(self, messages: list[ChatMessage]) -> None:
            pass

    facts = Scripted(stage, "<facts><fact>likes tea</fact></facts>", model="gpt-4o-mini", summarises=True)
    blocks: list[Any] = [
        StaticMemoryBlock(name="core", static_content="The guest is Ann.", priority=0),
        FactExtractionMemoryBlock(name="facts", llm=facts, priority=1),
        VectorMemoryBlock(vector_store=Kept(), embed_model=MockEmbedding(4), priority=2),
        Mood(priority=3),
    ]
    said = []
    stage.runs = 8
    for method in (InsertMethod.SYSTEM, InsertMethod.USER):
        memory = Memory.from_defaults(
            session_id=f"blocks-{method.value}", token_limit=200, token_flush_size=40, memory_blocks=blocks,
            insert_method=method,
        )  # fmt: skip
        llm = Scripted(stage, ["call:look", "call:look"], "Found.", "So it is.")
        agent = FunctionAgent(name="rememberer", llm=llm, tools=[look], system_prompt="Remember.")
        said += [str(await agent.run(f"Question {turn}: {words(12)}", memory=memory)) for turn in range(4)]
    return said, len(stage.summaries)


async def trimmed(stage: Stage) -> Any:
    agent = FunctionAgent(
        name="short", llm=Scripted(stage, "call:look", "Found."), tools=[look], system_prompt="Short."
    )
    memory = ChatMemoryBuffer.from_defaults(token_limit=70, chat_history=history(2))
    stage.runs = 4
    return [str(await agent.run(f"Question {turn}: {words(6)}", memory=memory)) for turn in range(4)]


async def summed_up_by_a_model(stage: Stage) -> Any:
    summariser = Scripted(stage, "They talked of words.", model="gpt-4o-mini", summarises=True)
    memory = ChatSummaryMemoryBuffer.from_defaults(llm=summariser, token_limit=40)
    agent = FunctionAgent(name="summed", llm=Scripted(stage, "call:look", "Found."), tools=[look], system_prompt="Sum.")
    stage.runs = 4
    said = [str(await agent.run(f"Question {turn}: {words(6)}", memory=memory)) for turn in range(4)]
    return said, len(stage.summaries)


async def summariser_fails(stage: Stage) -> Any:
    summariser = Scripted(stage, ConnectionError("gone"), model="gpt-4o-mini", summarises=True)
    memory = ChatSummaryMemoryBuffer.from_defaults(llm=summariser, token_limit=20, chat_history=history(2))
    agent = FunctionAgent(name="summed", llm=Scripted(stage, "Never."))
    ended = await asyncio.gather(_ran(agent, "Go", memory=memory), return_exceptions=True)
    stage.runs = 2
    return str(await FunctionAgent(llm=Scripted(stage, "Hi.")).run("Hi")), [type(outcome).__name__ for outcome in ended]


async def composed(stage: Stage) -> Any:
    notes = ChatMemoryBuffer.from_defaults(chat_history=[ChatMessage(role="user", content="Ann likes tea.")])
    memory = SimpleComposableMemory.from_defaults(
        primary_memory=ChatMemoryBuffer.from_defaults(token_limit=24), secondary_memory_sources=[notes]
    )
    llm = Scripted(stage, "One.", "Two.", "Three.")
    said = []
    stage.runs = 3
    for turn in range(3):
        memory.put(ChatMessage(role="user", content=f"Question {turn}: {words(5)}"))
        answer = llm.chat([ChatMessage(role="system", content="Compose."), *memory.get("tea")])
        memory.primary_memory.put(answer.message)
        said.append(answer.message.content)
    return said


class Newest(BaseMemory):
    """A memory of a program's own: the newest messages of a list."""

    messages: list[ChatMessage] = Field(default_factory=list)
    keep: int = 3

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> Newest:
        return cls(**kwargs)

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002
        return self.messages[-self.keep :]

    def get_all(self) -> list[ChatMessage]:
        return self.messages

    def put(self, message: ChatMessage) -> None:
        self.messages.append(message)

    def set(self, messages: list[ChatMessage]) -> None:
        self.messages = [*messages]

    def reset(self) -> None:
        self.messages = []


class Shorter(ChatMemoryBuffer):
    """A memory of a program's own on top of one of the framework's."""

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002
        return super().get(input, **kwargs)[-3:]


async def own_memories(stage: Stage) -> Any:
    stage.runs = 6
    said = []
    for memory in (Newest(), Shorter.from_defaults(token_limit=60)):
        agent = FunctionAgent(
            name="own", llm=Scripted(stage, "call:look", "Found."), tools=[look], system_prompt="Own."
        )
        said += [str(await agent.run(f"Question {turn}: {words(5)}", memory=memory)) for turn in range(3)]
    return said


async def own_loop(stage: Stage) -> Any:
    llm, tools = Scripted(stage, "call:look", "One.", "Two."), [FunctionTool.from_defaults(look)]
    memory = Memory.from_defaults(session_id="loop", token_limit=120, token_flush_size=30)
    stage.runs = 3
    await memory.aput(ChatMessage(role="user", content=f"First {words(20)}"))
    answer = await llm.achat_with_tools(tools, chat_history=await memory.aget())
    for call in llm.get_tool_calls_from_response(answer):
        said = await tools[0].acall(**call.tool_kwargs)
        result = ChatMessage(role="tool", content=str(said), additional_kwargs={"tool_call_id": call.tool_id})
        await memory.aput_messages([answer.message, result])
    answer = await llm.achat([ChatMessage(role="system", content="Loop."), *await memory.aget()])
    await memory.aput(answer.message)
    await memory.aput(ChatMessage(role="user", content=f"Second {words(20)}"))
    return str(await llm.achat(await memory.aget())), len(await memory.aget_all())


def _sync_loop(stage: Stage) -> Any:
    llm, memory = Scripted(stage, "One.", "Two.", "Three."), Memory.from_defaults(session_id="sync", token_limit=60)
    said = []
    for turn in range(3):
        memory.put(ChatMessage(role="user", content=f"Question {turn}: {words(9)}"))
        answer = llm.chat([ChatMessage(role="system", content="Loop."), *memory.get()])
        memory.put(answer.message)
        said.append(answer.message.content)
    return said


async def own_loop_in_a_thread(stage: Stage) -> Any:
    stage.runs = 3
    return await asyncio.to_thread(_sync_loop, stage)


async def own_workflow(stage: Stage) -> Any:
    class Flow(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> HumanResponseEvent:
            await memory.aput(ChatMessage(role="user", content=ev.topic))
            return HumanResponseEvent(response="go", messages=await memory.aget())

        @step
        async def answer(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent:
            await llm.acomplete("Is it allowed?")
            return StopEvent(result=str((await llm.achat(ev.get("messages"))).message.content))

    memory = ChatMemoryBuffer.from_defaults(token_limit=30, chat_history=history(3), chat_store_key="flow")
    llm = Scripted(stage, "Yes.", "Flown.")
    return await Flow(timeout=20).run(topic="Fly")


async def confirm(ctx: Context) -> str:
    """Ask a person."""
    answer = await ctx.wait_for_event(
        HumanResponseEvent, waiter_event=InputRequiredEvent(prefix="Sure?"), waiter_id="sure"
    )
    return f"They said {answer.response}"


confirm.__annotations__ = {"ctx": Context, "return": str}  # as in a module that does not postpone them


async def asked_a_person(stage: Stage) -> Any:
    agent = FunctionAgent(
        name="asking", llm=Scripted(stage, ["call:confirm", "call:look"], "Done."), tools=[confirm, look]
    )
    handler = agent.run("Do it")
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            handler.ctx.send_event(HumanResponseEvent(response="yes"))
    return str(await handler)


async def completed(stage: Stage) -> Any:
    llm = Completing(stage, "One.", "Two.", "Three.")
    stage.runs = 3
    streamed = [chunk.delta async for chunk in await llm.astream_complete("Stream it")]
    return str(llm.complete("Say it")), str(await llm.acomplete("Say more")), streamed


async def called_directly(stage: Stage) -> Any:
    llm, tools = Scripted(stage, 'call:look {"q": "b"}', "Said."), [FunctionTool.from_defaults(look)]
    talk = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Say it")]
    said: list[Any] = [llm.predict_and_call(tools, "Look it up").response]
    said.append(llm.chat(messages=talk).message.content)
    said.append((await llm.achat(talk)).message.content)
    said += [chunk.delta for chunk in llm.stream_chat(talk)]
    said += [chunk.delta async for chunk in await llm.astream_chat(talk)]
    said.append(str(llm.complete("Say it")))
    said.append(str(await llm.acomplete("Say it")))
    said += [chunk.delta for chunk in llm.stream_complete("Say it")]
    said += [chunk.delta async for chunk in await llm.astream_complete("Say it")]
    said.append(llm.predict(PromptTemplate("Say {what}"), what="it"))
    said.append(await llm.apredict(ChatPromptTemplate(message_templates=talk)))
    said += list(llm.stream(PromptTemplate("Say {what}"), what="it"))
    said.append((await llm.achat_with_tools(tools, user_msg="Go")).message.content)
    said += [tool.delta async for tool in await llm.astream_chat_with_tools(tools, user_msg="Go")]
    stage.runs = len(stage.received)
    return said


async def structured_directly(stage: Stage) -> Any:
    llm = Scripted(stage, 'call:Answer {"city": "Bonn", "price": 3}')
    wanted = PromptTemplate("What costs {what}?")
    stage.runs = 3
    return [
        llm.structured_predict(Answer, wanted, what="it"),
        await llm.astructured_predict(Answer, wanted, what="it"),
        llm.as_structured_llm(Answer).chat([ChatMessage(role="user", content="What?")]).raw,
    ]


async def subclassed_models(stage: Stage) -> Any:
    class Loud(Scripted):
        async def achat(self, messages: Any, **kwargs: Any) -> Any:
            return await super().achat([*messages, ChatMessage(role="user", content="LOUD")], **kwargs)

        @llm_chat_callback()
        async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
            return await super().astream_chat([*messages, ChatMessage(role="user", content="LOUD")], **kwargs)

    class Routed(Completing):
        def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            return super().complete(f"Routed: {prompt}", formatted, **kwargs)

    agents = [
        FunctionAgent(name="loud", llm=Loud(stage, "call:look", "Done."), tools=[look], streaming=on) for on in (0, 1)
    ]
    stage.runs = 3
    said = [str(await agent.run("Go", chat_history=history(1), memory=Newest())) for agent in agents]
    return said, str(Routed(stage, "Done.").complete("Go"))


async def cancelled(stage: Stage) -> Any:
    started = asyncio.Event()

    async def wait() -> str:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()
        return ""

    handler = FunctionAgent(name="waiting", llm=Scripted(stage, "call:wait", "Never."), tools=[wait]).run("Wait")
    await started.wait()
    await handler.cancel_run()
    ended = await asyncio.gather(_done(handler), return_exceptions=True)
    return [type(outcome).__name__ for outcome in ended], len(stage.received)


async def _done(handler: Any) -> Any:
    return await handler


async def raised(stage: Stage) -> Any:
    agent = FunctionAgent(name="raising", llm=Scripted(stage, ConnectionError("gone")))
    engine = SimpleChatEngine.from_defaults(llm=Scripted(stage, ConnectionError("gone")))
    stage.runs = 2
    ended = await asyncio.gather(_ran(agent, "Go"), engine.achat("Go"), return_exceptions=True)
    return [type(outcome).__name__ for outcome in ended]


async def at_once(stage: Stage) -> Any:
    agent = FunctionAgent(name="many", llm=Scripted(stage, "Done."), system_prompt="Be quick.")
    memories = [ChatMemoryBuffer.from_defaults(chat_history=history(n), token_limit=25) for n in range(3)]
    stage.runs = 3
    return await asyncio.gather(*(_ran(agent, "Go", memory=memory) for memory in memories))


async def shared_store(stage: Stage) -> Any:
    store, said = SimpleChatStore(), []
    stage.runs = 4
    for turn in range(2):
        for guest in ("ann", "bob"):
            memory = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key=guest, token_limit=30)
            agent = FunctionAgent(name="host", llm=Scripted(stage, f"Hello {guest}."), system_prompt="Host.")
            said.append(str(await agent.run(f"I am {guest}, {turn}: {words(8)}", memory=memory)))
    return said


PROGRAMS = [
    plain, in_one_context, parallel_tools, events_streamed, reasoned, code_acted, handed_over, delegated, structured,
    stopped_by_force, chatted, chatted_with_context, condensed_with_context, condensed_questions,
    queried, queried_by_an_agent, remembered_in_blocks, trimmed, summed_up_by_a_model, summariser_fails, composed,
    own_memories, own_loop, own_loop_in_a_thread, own_workflow, asked_a_person, completed, called_directly,
    structured_directly, subclassed_models, cancelled, raised, at_once, shared_store,
]  # fmt: skip

if "early_stopping_method" in FunctionAgent.model_fields:
    PROGRAMS.append(stopped_early)
