"""Runs of agents, chat engines and query engines, and in them each call of a model."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index_instrumentation import root_dispatcher

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.llama_index.memory_reads import Readings
from otel_assembly.instrumentation.llama_index.messages import prompt_of, schemas_of, snapshot
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reducers import is_in, is_ours, is_own, name_of
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.tokens.prices import ListedWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.llama_index.memory_reads import ReadingRun

#: What a memory's key in a store is where nobody gives it one; imported while LlamaIndex is, this imports little of it.
_NO_KEY: Final = "chat_history"
#: Memories are read in one step of an agent, and its model is called in another, in a context of its own.
READINGS: Final = Readings("llama_index", prompt_of, snapshot)
#: Handlers of spans that note them, and open none.
_NO_SPANS: Final = ("llama_index_instrumentation", "llama_index.core")
#: A model that has another one answer.
_HANDS_ON: Final = {"StructuredLLM": True}


def invoking_agent_of(memory: Any) -> InvokingAgent:
    """Whose memory it is: that of a session, of what has a key in a store, or of the object itself."""
    inside = getattr(memory, "memory" if is_ours(memory) else "primary_memory", None)
    if inside is not None:
        return invoking_agent_of(inside)
    key, store = getattr(memory, "chat_store_key", None), getattr(memory, "chat_store", None)
    known = getattr(memory, "session_id", None) or (key if key != _NO_KEY else None)
    return InvokingAgent.of(known) if isinstance(known, str) else InvokingAgent(memory if store is None else store)


def _begins(
    memory: Callable[..., Any], instrumentation: Instrumentation, run: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """A run begins; a query, or a workflow that is no agent's, has a span only from the first call of a model on."""
    of, is_agent = memory(run, *args, **kwargs), is_in(type(run), ("llama_index.core.agent",)) or hasattr(run, "achat")
    conversation_id = invoking_agent_of(of).conversation_id if of is not None else None
    # What makes spans of LlamaIndex's own instrumentation makes them inside of this.
    theirs = any(not is_own(handler, _NO_SPANS) for handler in root_dispatcher.span_handlers)
    return READINGS.run(instrumentation, name_of(run), conversation_id, at_once=is_agent and not theirs)


def _memory_of(_: Any, ctx: Any = None, start_event: Any = None, **given: Any) -> Any:
    return given.get("memory") or (start_event.get("memory", None) if hasattr(start_event, "get") else None)


def _carries(run: Any, answer: Any) -> bool:
    """A run of a workflow ends as its handler is done; a chat that streams, as its answer is in the memory."""
    task = getattr(answer, "_result_task", answer)
    handled = hasattr(task, "add_done_callback")
    if handled:
        task.add_done_callback(lambda done: run.end(None if done.cancelled() else done.exception()))
    return handled or hasattr(answer, "write_response_to_history")


run: Final = run_hook(partial(_begins, _memory_of), _carries)
chats: Final = run_hook(partial(_begins, lambda engine, *_, **__: getattr(engine, "_memory", None)), _carries)
queries: Final = run_hook(partial(_begins, lambda *_, **__: None))


@run_hook
def written(*_: Any, **__: Any) -> ReadingRun | None:
    """What a chat streams is written into its memory, and that is the end of its run."""
    return READINGS.in_run.get()


@run_hook
def step(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    """An agent takes a step, perhaps of a run of several agents."""
    return ContextBoundRun(instrumentation, None, {READINGS.agent: agent.name})


def _sent(llm: Any, messages: Sequence[Any], *_: Any, tools: Any = None, **more: Any) -> ClientRequest | None:
    if is_ours(llm) or known_of(type(llm), _HANDS_ON, ("llama_index.core",)):
        return None
    offered = schemas_of((tools.get("tools") if isinstance(tools, dict) else tools) or ())
    return ClientRequest(messages, tools=offered, model=model_of(llm), window=_window(llm), unknown=_is_held(llm, more))


def _is_held(llm: Any, settings: Mapping[str, Any]) -> bool:
    """Whether the provider holds earlier messages: LlamaIndex's client of Responses goes on from the last response."""
    previous = getattr(llm, "_previous_response_id", None)
    return bool(settings.get("previous_response_id") or (isinstance(previous, str) and previous))


def _completes(llm: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
    prompt = argument(args, kwargs, 0, "prompt")  # what stands around the method takes anything, and refuses it later
    return None if prompt is None else _sent(llm, [ChatMessage(role="user", content=str(prompt))])


def model_of(llm: Any) -> str | None:
    """The name of a model, where it has one."""
    name = model_in(llm)
    with suppress(Exception):  # a provider's class may know no models but those of its own list
        name = name or llm.metadata.model_name
    return name if name != "unknown" else None


def _window(llm: Any) -> int | None:
    """The window that a program has set, or a provider's class lists; what stands where nobody knows it is none."""
    with suppress(Exception):  # as above
        window = llm.metadata.context_window
        if "context_window" in llm.model_fields_set:
            return int(window)
        return ListedWindow(window) if 0 < window != DEFAULT_CONTEXT_WINDOW else None
    return None


def _text(answer: Any) -> str | None:
    message = getattr(answer, "message", None)
    return getattr(answer, "text", None) if message is None else message.content or ""


def client(method: str, *met: Any) -> Any:
    """The hook of a model's method, in each class that has it."""
    return innermost_client_hook(
        method, _completes if method.endswith("complete") else _sent, _text, told=READINGS.told
    )(*met)
