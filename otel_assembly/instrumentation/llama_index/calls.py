"""Hooks of LlamaIndex's runs and model calls.

Runs are those of workflows (``Workflow.run``, which includes agents), chat engines and query engines. A model call is
recorded when the class that sends it receives the messages in ``chat``, ``complete`` or a variant of these.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index_instrumentation import root_dispatcher

from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.llama_index.memory_reads import ReadingRun, Readings
from otel_assembly.instrumentation.llama_index.messages import prompt_of, schemas_of, snapshot, system_messages
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reducers import is_in, is_ours, is_own, known_of, name_of
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.tokens.prices import ListedWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The default ``chat_store_key`` of memories. Not imported, because its module would import more of LlamaIndex.
_DEFAULT_KEY: Final = "chat_history"
#: Connects reads of memories with model calls, because an agent makes them in separate steps with separate contexts.
READINGS: Final = Readings("llama_index", prompt_of, snapshot, system_messages)
#: Packages whose span handlers open no OpenTelemetry spans.
_SPANLESS_HANDLERS: Final = ("llama_index_instrumentation", "llama_index.core")
#: Model classes that forward each call to another model.
_FORWARDING_MODELS: Final = {"StructuredLLM": True}


def invoking_agent_of(memory: Any) -> InvokingAgent:
    """Return the conversation of a memory, as an invoking agent without a name.

    It is the ``session_id`` of a `Memory`, or the key that the program chose in a chat store. Without either, it is the
    store object, or the memory itself.
    """
    wrapped = getattr(memory, "memory" if is_ours(memory) else "primary_memory", None)
    if wrapped is not None:
        return invoking_agent_of(wrapped)
    key, store = getattr(memory, "chat_store_key", None), getattr(memory, "chat_store", None)
    conversation = getattr(memory, "session_id", None) or (key if key != _DEFAULT_KEY else None)
    if isinstance(conversation, str):
        return InvokingAgent.of(conversation)
    return InvokingAgent(memory if store is None else store)


def _begin_run(
    memory_of: Callable[..., Any], instrumentation: Instrumentation, runner: Any, /, *args: Any, **kwargs: Any
) -> ReadingRun:
    """Begin a run of a workflow or an engine (the runner); `memory_of` returns its memory from the run's arguments."""
    memory = memory_of(runner, *args, **kwargs)
    conversation_id = invoking_agent_of(memory).conversation_id if memory is not None else None
    # The span of an agent or a chat engine starts immediately. Queries and other workflows may call no model, so their
    # span starts with the first model call. Other tracers of LlamaIndex open their spans inside this hook: at the first
    # model call such a span is current, and no span is added.
    is_agent = is_in(type(runner), ("llama_index.core.agent",)) or hasattr(runner, "achat")
    is_traced = any(not is_own(handler, _SPANLESS_HANDLERS) for handler in root_dispatcher.span_handlers)
    at_once = is_agent and not is_traced
    return ReadingRun(READINGS, instrumentation, name_of(runner), conversation_id, at_once=at_once)


def _workflow_memory(_: Any, ctx: Any = None, start_event: Any = None, **kwargs: Any) -> Any:
    """Return the memory that a workflow's run is called with, as an argument or in its start event."""
    return kwargs.get("memory") or (start_event.get("memory", None) if hasattr(start_event, "get") else None)


def _attach_to_answer(run: Any, answer: Any) -> bool:
    """Return whether a run continues after its function has returned, and make a workflow's handler end it."""
    task = getattr(answer, "_result_task", answer)  # a handler that is no future has its task here
    is_handler = hasattr(task, "add_done_callback")
    if is_handler:
        task.add_done_callback(lambda done: run.end(None if done.cancelled() else done.exception()))
    return is_handler or hasattr(answer, "write_response_to_history")  # `write_history` ends a streamed chat's run


run_workflow: Final = run_hook(partial(_begin_run, _workflow_memory), _attach_to_answer)
chat: Final = run_hook(
    partial(_begin_run, lambda engine, *_, **__: getattr(engine, "_memory", None)), _attach_to_answer
)
query: Final = run_hook(partial(_begin_run, lambda *_, **__: None))


@run_hook
def write_history(*_: Any, **__: Any) -> ReadingRun | None:
    """Hook of ``write_response_to_history``: a streamed chat's run, which `chat` began, ends with this function."""
    return READINGS.current_run.get()


@run_hook
def take_step(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    """Hook of ``take_step``: make an agent the invoking agent, because a run may have several agents."""
    return ContextBoundRun(instrumentation, None, {READINGS.agent_name: agent.name})


def _chat_request(llm: Any, messages: Sequence[Any], *_: Any, tools: Any = None, **kwargs: Any) -> ClientRequest | None:
    """Return the request that a model's ``chat`` receives; None for a model that forwards it to another one."""
    if is_ours(llm) or known_of(type(llm), _FORWARDING_MODELS, ("llama_index.core",)):
        return None
    schemas = schemas_of((tools.get("tools") if isinstance(tools, dict) else tools) or ())
    # `OpenAIResponses` can continue from its last response, with earlier messages that the provider stores.
    previous = getattr(llm, "_previous_response_id", None)
    unknown = bool(kwargs.get("previous_response_id") or (isinstance(previous, str) and previous))
    return ClientRequest(messages, tools=schemas, model=model_of(llm), window=_window(llm), unknown=unknown)


def _completion_request(llm: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
    prompt = argument(args, kwargs, 0, "prompt")  # missing in a wrong call, which LlamaIndex rejects only later
    return None if prompt is None else _chat_request(llm, [ChatMessage(role="user", content=str(prompt))])


def model_of(llm: Any) -> str | None:
    name = model_in(llm)
    with suppress(Exception):  # some provider classes raise an error for a model that is not in their list
        name = name or llm.metadata.model_name
    return name if name != "unknown" else None


def _window(llm: Any) -> int | None:
    """Return the model window that the program set or the model's class lists; None if it is LlamaIndex's default."""
    with suppress(Exception):  # as above
        window = llm.metadata.context_window
        if "context_window" in llm.model_fields_set:
            return int(window)
        return ListedWindow(window) if 0 < window != DEFAULT_CONTEXT_WINDOW else None
    return None


def _response_text(response: Any) -> str | None:
    message = getattr(response, "message", None)
    return getattr(response, "text", None) if message is None else message.content or ""


def wrap_model_method(method: str, original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Any:
    request_of = _completion_request if method.endswith("complete") else _chat_request
    hook = innermost_client_hook(method, request_of, _response_text, record=READINGS.record_call)
    return hook(original, owner, instrumentation)
