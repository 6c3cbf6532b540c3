"""Who asks a model in Semantic Kernel, and what its client is given."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from inspect import getclosurevars
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from semantic_kernel.contents.chat_history import ChatHistory  # its packages may still be on their way
from semantic_kernel.contents.chat_message_content import ChatMessageContent
from semantic_kernel.contents.utils.author_role import AuthorRole

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import called, client, innermost_client_hook, model_in
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredReduction
from otel_assembly.instrumentation.hooks import observe_any_hook, observe_async_hook
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.message_alignment import restore_removed
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_ours
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.semantic_kernel.messages import behind_prompts
from otel_assembly.messages.provider_rules import RESPONSES_CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


@dataclass(slots=True)
class Asks:
    """Who asks in a run of an agent or of a prompt, with histories of their own making.

    Attributes:
        agent: The agent; None of a prompt.
        history: The history that the program keeps, whose messages theirs have.
        thread: The agent's thread, once it is there.
    """

    agent: Any = None
    history: Any = None
    thread: Any = None

    def invoking_agent(self) -> InvokingAgent:
        """Who asks; what has waited for the program's history waits for this one from now on."""
        if self.agent is None or self.thread is None:
            return InvokingAgent(self.history)
        agent = self.agent
        invoking_agent = InvokingAgent.of(self.thread.id, agent.name, agent.id)
        for one in DEFERRED_REDUCTIONS.take(InvokingAgent(getattr(self.thread, "_chat_history", None))):
            DEFERRED_REDUCTIONS.put(invoking_agent, one)
        return invoking_agent


#: Who asks in the run that goes on here.
ASKS: Final[ContextVar[Asks | None]] = ContextVar("otel_assembly_semantic_kernel_asks", default=None)
#: The group chat that goes on here.
CHAT: Final[ContextVar[Any]] = ContextVar("otel_assembly_semantic_kernel_chat", default=None)
#: Of a history that a run has made for its model: who asks with it.
_ASKERS: Final[IdentityWeakMap[InvokingAgent]] = IdentityWeakMap()
#: Of a history: what its model was sent last, or a reducer has left of it.
_LAST: Final[IdentityWeakMap[Sequence[Any]]] = IdentityWeakMap()


def invoking_agent_of(history: Any) -> InvokingAgent:
    """Who asks a model with a history; one that no run has made is the conversation itself."""
    return _ASKERS.get(history) or InvokingAgent(history)


@observe_any_hook
def makes(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    """Around what makes the history that a run calls its model with."""
    history, asks = (yield), ASKS.get()
    invoking_agent = InvokingAgent() if asks is None else asks.invoking_agent()
    if invoking_agent.conversation is not None:
        _ASKERS.put(history, invoking_agent)


@observe_async_hook
def has_thread(_: Instrumentation, agent: Any, /, *__: Any, **___: Any) -> Observation:
    """Around what finds the thread of an agent's run, or makes it."""
    thread, asks = (yield), ASKS.get()
    if asks is not None and asks.agent is agent:
        asks.thread = thread


@run_hook
def prompt(instrumentation: Instrumentation, function: Any, /, context: Any) -> ContextBoundRun:
    """A prompt is rendered and sent, with the history among its arguments, if there is one."""
    given = (one for one in context.arguments.values() if isinstance(one, ChatHistory))
    call = CALL.get()
    is_strategys = isinstance(call, StrategyCall) and call.function is function
    return ContextBoundRun(
        instrumentation, None, {ASKS: Asks(history=next(given, None)), CALL: call if is_strategys else None}
    )


class StrategyCall(ModelCall):
    """The model call of a group chat's strategy: the chat's messages are rendered into the prompt of a function.

    Attributes:
        function: The function.
    """

    def __init__(self, instrumentation: Instrumentation, strategy: Any, messages: Sequence[Any]) -> None:
        invoking_agent = InvokingAgent(CHAT.get() or strategy, f"{type(strategy).__name__}\0{id(strategy)}")
        super().__init__(instrumentation, invoking_agent, messages=messages)
        self.function = strategy.function


@run_hook
def strategy(instrumentation: Instrumentation, asks: Any, /, *args: Any, **kwargs: Any) -> StrategyCall:
    """A strategy renders the chat's messages into the prompt of a function, which asks a model."""
    return StrategyCall(instrumentation, asks, argument(args, kwargs, 1, "history"))


def looked_at(history: Any, *, told: bool = False) -> Sequence[Any]:
    """The messages of a history behind its system prompts; what left since it was looked at is a step that waits.

    Filters, tools and programs edit a history where no hook can see it.

    Args:
        history: The history.
        told: Whether what left is told of otherwise.
    """
    now = behind_prompts(history.messages)[1]
    held = _LAST.get(history) or ()
    _LAST.put(history, list(now))
    before = now if told else restore_removed(held, now)
    if before is not now:
        DEFERRED_REDUCTIONS.put(invoking_agent_of(history), DeferredReduction("edited_history", before, list(now)))
    return now


def _sent(model: Any, /, chat_history: Any, settings: Any = None, *_: Any, **__: Any) -> ClientRequest | None:
    """What a client is given; a plug-in of ours hands it on."""
    if is_ours(model):
        return None
    prompts, messages = behind_prompts(chat_history.messages)
    return ClientRequest(messages, prompts, schemas_of(settings), model_of(model, settings))


def _text_sent(model: Any, /, prompt: str, settings: Any = None, *_: Any, **__: Any) -> ClientRequest:
    asks = ASKS.get()
    invoking_agent = asks.invoking_agent() if asks is not None and asks.agent is None else InvokingAgent()
    message = ChatMessageContent(role=AuthorRole.USER, content=str(prompt))
    return ClientRequest([message], (), model=model_of(model, settings), invoking_agent=invoking_agent)


def _response_sent(
    _: Any, /, agent: Any, chat_history: Any, merged_instructions: Any = None, previous_response_id: Any = None,
    store_output_enabled: Any = None, tools: Any = None, response_options: Any = None, **__: Any,
) -> ClientRequest:  # fmt: skip
    """What an agent of OpenAI's Responses sends; if it goes on from a response, OpenAI holds all messages before."""
    asks = ASKS.get()
    thread = asks.thread if asks is not None and asks.agent is agent else None
    stored = agent.store_enabled if store_output_enabled is None else store_output_enabled
    prompts, messages = behind_prompts(chat_history.messages)
    if stored:  # the provider has the model's tool calls, so the agent does not send them again
        messages = [m for m in messages if not m.items or any(item.content_type != _CALLS for item in m.items)]
    return ClientRequest(
        messages,
        [*as_prompts(merged_instructions or agent.instructions), *prompts],
        [tool for tool in tools or () if isinstance(tool, dict)],
        model_in(response_options, {"model": agent.ai_model_id}),
        client=RESPONSES_CLIENT,
        unknown=bool(previous_response_id),
        invoking_agent=InvokingAgent(thread, agent.id, agent.name),
    )


def model_of(model: Any, settings: Any) -> str:
    """The model's name: a request's own, or its service's."""
    return str(getattr(settings, "ai_model_id", None) or model.ai_model_id)


def schemas_of(settings: Any) -> Sequence[Mapping[str, Any]]:
    """The schemas of the tools that a request offers, in the form of its provider."""
    return [tool for tool in getattr(settings, "tools", None) or () if isinstance(tool, dict)]


def _text_of(answers: Sequence[Any]) -> str:
    return str(answers[0]) if answers else ""


def _prepared(
    instrumentation: Instrumentation, model: Any, /, chat_history: Any, settings: Any = None, *_: Any, **__: Any
) -> ModelCall | None:
    """The call that a service is asked for, which it may hand on with other messages, as a plug-in of ours does."""
    if CALL.get() is not None or called() or reducing() is not None:
        return None
    prompts, held = behind_prompts(chat_history.messages)[0], looked_at(chat_history)
    return ModelCall(instrumentation, invoking_agent_of(chat_history), messages=held, prompts=prompts)


def _inside_its_span(wrap: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """What wraps a service's method, inside of the framework's own span of the call, where that has one."""

    def wrapped(original: Any, *about: Any) -> Callable[..., Any]:
        marks = [name for name in getattr(original, "__dict__", ()) if name.startswith(_MARK)]
        held = getclosurevars(original).nonlocals if marks and type(original) is FunctionType else {}
        if not held.keys() >= _DECORATED:  # it has none, or another one's wrapper stands around it
            return wrap(original, *about)
        (mark,) = marks
        decorators = import_module(f"{_DIAGNOSTICS}.decorators")
        decorate = getattr(decorators, f"trace_{mark.removeprefix(_MARK).strip('_')}")(held["model_provider"])
        made: Callable[..., Any] = decorate(wrap(held["completion_func"], *about))
        return made

    return wrapped


_DIAGNOSTICS: Final = "semantic_kernel.utils.telemetry.model_diagnostics"
#: What the framework's decorators hold, and by what they mark a function.
_DECORATED: Final = {"model_provider", "completion_func"}
_MARK: Final = "__model_diagnostics_"
_CALLS: Final = "function_call"
_INNER: Final = "_inner_get_{}_contents", "_inner_get_streaming_{}_contents"


def _clients(kind: str, reads: Callable[..., ClientRequest | None], **more: Any) -> list[Any]:
    """The hooks of services of a kind: at once, and in a stream."""
    inner = [method.format(kind) for method in _INNER]
    # By these methods a service is asked, of which the latter are one for each message.
    asked = (*inner, *(one.removeprefix("_inner_")[:end] for one in inner for end in (None, -1)))
    looks: Any = {"asks": asked, "holds": lambda one: hasattr(one, inner[0])}
    return [_inside_its_span(innermost_client_hook(method, reads, _text_of, **looks, **more)) for method in inner]


#: What a service is given that completes a chat, at once or in a stream; and one that completes a text.
contents, stream = _clients("chat_message", _sent, prepared=_prepared)
texts, text_stream = _clients("text", _text_sent)
#: Around the request of an agent of OpenAI's Responses, which has no service.
response: Final = client(_response_sent)
