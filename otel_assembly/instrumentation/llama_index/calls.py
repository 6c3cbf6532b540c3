"""Runs of agents, chat engines and query engines, and in them each call of a model, with what a memory gave to it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine.types import StreamingAgentChatResponse
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.clients import innermost, model_in
from otel_assembly.instrumentation.conversation import Asker, ByIdentity
from otel_assembly.instrumentation.instrumented import bound
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.late_runs import LateRun
from otel_assembly.instrumentation.llama_index.messages import prompt_of, schemas_of
from otel_assembly.instrumentation.model_call import ModelCall, Sent
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.reducers import is_in, name_of
from otel_assembly.instrumentation.runs import within
from otel_assembly.instrumentation.splicing import alike, found, marks
from otel_assembly.tokens.prices import ListedWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.waiting import Waiting

#: A model that has another one answer.
_HANDS_ON: Final = {"StructuredLLM": True}


class Read(NamedTuple):
    """What a memory has given.

    Attributes:
        asker: Whose memory it is.
        out: The messages.
        steps: What was done to those that it holds.
        plugin: Whether it is a plug-in of ours, which has told that itself.
    """

    asker: Asker
    out: Sequence[Any]
    steps: Sequence[Waiting] = ()
    plugin: bool = False

    def of(self, messages: Sequence[Any]) -> bool:
        """Whether these are made of what was given, and of nothing that was left out for it."""
        left = {id(one) for step in self.steps for one in step.before} - set(map(id, self.out))
        return left.isdisjoint(map(id, messages)) and (
            not self.out or bool(marks(self.out) & marks(messages)) or any(alike(self.out[-1], one) for one in messages)
        )


#: What was given last that holds a message: an agent's steps run in contexts of their own, and hand the messages on.
_READS: Final[ByIdentity[Read]] = ByIdentity()
#: The run that goes on here, and the agent in it that takes a step.
_TURN: Final[ContextVar[Turn | None]] = ContextVar("otel_assembly_llama_index_run", default=None)
_AGENT: Final[ContextVar[str | None]] = ContextVar("otel_assembly_llama_index_agent", default=None)


class Turn(LateRun):
    """One run, whose name and memory its calls have.

    Attributes:
        read: What a memory has given in it last, of which a chat engine makes other messages.
    """

    def __init__(self, instrumentation: Instrumentation, name: str, memory: Any, *, at_once: bool) -> None:
        conversation = asker_of(memory).conversation_id if memory is not None else None
        super().__init__(instrumentation, name, conversation, parent=_TURN.get(), at_once=at_once)
        self.read: Read | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """One step of it."""
        with bound(_TURN, self), bound(_AGENT, None), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end."""
        if not self.ended:
            super().end(error)


def asker_of(memory: Any) -> Asker:
    """Whose memory it is: that of a session, of what has a key in a store, or of the object itself."""
    memory = getattr(memory, "primary_memory", memory)
    key, kept = getattr(memory, "chat_store_key", None), getattr(memory, "chat_store", None)
    known = getattr(memory, "session_id", None) or (key if key != DEFAULT_CHAT_STORE_KEY else None)
    return Asker.of(known) if isinstance(known, str) else Asker(kept if kept is not None else memory)


def given(read: Read) -> None:
    """A memory has given this, to whoever calls a model next with it."""
    for message in read.out:
        _READS.put(message, read)
    turn = _TURN.get()
    if turn is not None:
        turn.read = read


def _read_of(messages: Sequence[Any]) -> Read | None:
    last, turn = next((read for one in reversed(messages) if (read := _READS.get(one))), None), _TURN.get()
    known = (last, turn.read if turn is not None else None)
    return next((read for read in known if read is not None and read.of(messages)), None)


def _told(instrumentation: Instrumentation, sent: Sent) -> ModelCall:
    """A model is called with these, some of which a memory may have given."""
    turn, read = _TURN.get(), _read_of(sent.messages)
    agent_name = _AGENT.get() or (turn.name if turn is not None else None)
    of_run = Asker(conversation_id=turn.conversation_id if turn is not None else None)
    asker = (read.asker if read is not None else of_run)._replace(agent_name=agent_name)
    held = read.out if read is not None else ()
    prompts, messages = in_front(
        sent.messages, lambda one: prompt_of(one) is not None and not any(alike(one, other) for other in held)
    )
    said = [str(prompt_of(one)) for one in prompts]
    call = ModelCall(instrumentation, asker, prompts=said, model=sent.model)
    call.run = turn if turn is not None and not turn.ended else None
    if read is not None and read.plugin:
        call.by_plugin(read.out)
    elif read is not None:
        for step in read.steps:
            call.tells(step)
        call.arrives(read.out)
    call.receives(sent._replace(messages=messages, prompts=said))
    return call


def _sent(llm: Any, messages: Sequence[Any], tools: Any = None) -> Sent | None:
    if known_of(type(llm), _HANDS_ON, ("llama_index.core",)):
        return None
    offered = tools.get("tools") if isinstance(tools, dict) else tools
    return Sent(messages, tools=schemas_of(offered or ()), model=_model(llm), window=_window(llm))


def _model(llm: Any) -> str | None:
    name = model_in(llm)
    with suppress(Exception):  # a provider's class knows no windows but those of its own list
        name = name or llm.metadata.model_name
    return name if name != "unknown" else None


def _window(llm: Any) -> int | None:
    """The window that a program has set, or a provider's class lists; what stands where nobody knows it is none."""
    with suppress(Exception):  # as above
        window = llm.metadata.context_window
        if window == getattr(llm, "context_window", None) and "context_window" in llm.model_fields_set:
            return int(window)
        if window > 0 and window != DEFAULT_CONTEXT_WINDOW:
            return ListedWindow(window)
    return None


def _chat(llm: Any, messages: Sequence[Any], *_: Any, tools: Any = None, **__: Any) -> Sent | None:
    return _sent(llm, messages if isinstance(messages, list | tuple) else list(messages), tools)


def _complete(llm: Any, prompt: Any, *_: Any, **__: Any) -> Sent | None:
    return _sent(llm, [ChatMessage(role="user", content=str(prompt))])


def _text(answer: Any) -> str | None:
    message = getattr(answer, "message", None)
    return getattr(answer, "text", None) if message is None else message.content or ""


def client_of(method: str) -> Callable[..., Any]:
    """The hook of a model's method, in each class that has it."""
    return innermost(method, _complete if method.endswith("complete") else _chat, _text, told=_told)


def _ends(turn: Any, answer: Any) -> bool:
    """A handler of a workflow ends its run as that is done; a chat that streams, when its answer is in the memory."""
    if isinstance(answer, StreamingAgentChatResponse):
        return True
    task = getattr(answer, "_result_task", answer)
    if not hasattr(task, "add_done_callback"):
        return False
    task.add_done_callback(lambda done: turn.end(None if done.cancelled() else done.exception()))
    return True


def _begins(
    memory_of: Callable[..., Any], is_agent: Callable[[Any], bool], instrumentation: Instrumentation, /, *args: Any, **kwargs: Any
) -> Turn:
    """A run begins; of what may be no agent's its span begins with the first call of a model."""
    runs = args[0]
    return Turn(instrumentation, name_of(runs), memory_of(*args, **kwargs), at_once=is_agent(runs))


def _memory_of(_: Any, ctx: Any = None, start_event: Any = None, **given: Any) -> Any:
    return given.get("memory") or (start_event.get("memory", None) if hasattr(start_event, "get") else None)


#: Runs of workflows, agents among them; of chat engines; and of query engines.
run: Final = within(partial(_begins, _memory_of, lambda one: is_in(type(one), ("llama_index.core.agent",))), _ends)
chats: Final = within(partial(_begins, lambda engine, *_, **__: getattr(engine, "_memory", None), lambda _: True), _ends)
queries: Final = within(partial(_begins, lambda *_, **__: None, lambda _: False))
#: What a chat streams is written into its memory, and that is the end of its run.
writes: Final = within(lambda *_, **__: _TURN.get())
step: Final = within(lambda instrumentation, agent, *_, **__: BoundRun(instrumentation, None, {_AGENT: agent.name}))
