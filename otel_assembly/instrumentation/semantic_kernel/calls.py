"""The model calls of Semantic Kernel: which messages a service receives, and for which agent.

The instrumentation hooks `_inner_get_chat_message_contents`, `_inner_get_text_contents` and their streaming variants
in each service class, and `ResponsesAgentThreadActions._get_response`. Agents and prompt functions copy the
conversation into a new `ChatHistory` for each model call. The hooks of `ChatCompletionAgent`,
`KernelFunctionFromPrompt` and `ChatHistory.from_rendered_prompt` remember which conversation such a history belongs to.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from inspect import getclosurevars
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from semantic_kernel.contents.chat_history import ChatHistory  # the package may be partly imported here
from semantic_kernel.contents.chat_message_content import ChatMessageContent
from semantic_kernel.contents.utils.author_role import AuthorRole

from otel_assembly.instrumentation.clients import client, in_client_call, innermost_client_hook, model_in
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.hooks import observe_async_hook, observe_hook
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.message_alignment import restore_removed
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS, ClientRequest, ModelCall
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_ours
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.semantic_kernel.messages import is_prompt, split_prompts
from otel_assembly.messages.provider_rules import RESPONSES_CLIENT
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly._internal.tracked_runs import TrackedRun
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


@dataclass(slots=True)
class HistoryOwner:
    """The agent or prompt function that runs, and the conversation that it copies into new histories.

    Attributes:
        agent: The agent; None for a prompt function.
        history: The program's history that is an argument of the prompt function, if there is one.
        thread: The agent's thread; None until the agent has found or created it.
    """

    agent: Any = None
    history: Any = None
    thread: Any = None

    def invoking_agent(self) -> InvokingAgent:
        """Return the invoking agent, in the conversation of the agent's thread or else of the program's history."""
        if self.agent is None or self.thread is None:
            return InvokingAgent(self.history)
        invoking_agent = InvokingAgent.of(self.thread.id, self.agent.name, self.agent.id)
        # Reductions of the thread's history that were deferred before the agent was known move to the agent.
        for reduction in DEFERRED_REDUCTIONS.take(InvokingAgent(getattr(self.thread, "_chat_history", None))):
            DEFERRED_REDUCTIONS.put(invoking_agent, reduction)
        return invoking_agent


#: The agent or prompt function that runs in this context.
HISTORY_OWNER: Final[ContextVar[HistoryOwner | None]] = ContextVar(
    "otel_assembly_semantic_kernel_history_owner", default=None
)
#: The group chat that runs in this context.
GROUP_CHAT: Final[ContextVar[Any]] = ContextVar("otel_assembly_semantic_kernel_group_chat", default=None)
#: The invoking agent of each history that a run created for its model calls.
_INVOKING_AGENTS: Final[IdentityWeakMap[InvokingAgent]] = IdentityWeakMap()
#: The messages of each history at its last model call, or after a reducer changed it later.
_LAST_MESSAGES: Final[IdentityWeakMap[Sequence[Any]]] = IdentityWeakMap()


def invoking_agent_of(history: Any) -> InvokingAgent:
    """Return the invoking agent of a history; a history that no run created is itself the conversation."""
    return _INVOKING_AGENTS.get(history) or InvokingAgent(history)


def agent_name_of(history: ChatHistory) -> str:
    """Return the name of the history's agent, which is also the name of the message with its instructions."""
    messages = history.messages
    prompt_name = messages[0].name if messages and is_prompt(messages[0]) else None
    return invoking_agent_of(history).agent_name or prompt_name or ""  # a plug-in can run without instrumentation


@observe_hook
def observe_history_creation(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    """The hook of functions that create the history for a run's model call."""
    history, owner = (yield), HISTORY_OWNER.get()
    invoking_agent = InvokingAgent() if owner is None else owner.invoking_agent()
    if invoking_agent.conversation is not None:
        _INVOKING_AGENTS.put(history, invoking_agent)


@observe_async_hook
def observe_thread(_: Instrumentation, agent: Any, /, *__: Any, **___: Any) -> Observation:
    """The hook of the method that finds or creates the thread of an agent's run."""
    thread, owner = (yield), HISTORY_OWNER.get()
    if owner is not None and owner.agent is agent:
        owner.thread = thread


@run_hook
def prompt_run(instrumentation: Instrumentation, function: Any, /, context: Any) -> ContextBoundRun:
    """The hook of prompt functions, which belong to the conversation of the first history among their arguments."""
    histories = (value for value in context.arguments.values() if isinstance(value, ChatHistory))
    call = CALL.get()
    # The prompt function of a strategy sends the strategy's model call; any other one begins another call.
    sends_call = isinstance(call, StrategyCall) and call.function is function
    owner = HistoryOwner(history=next(histories, None))
    return ContextBoundRun(instrumentation, None, {HISTORY_OWNER: owner, CALL: call if sends_call else None})


class StrategyCall(ModelCall):
    """The model call of a group chat's strategy, which renders the chat's messages into the prompt of a function.

    Attributes:
        function: The prompt function that sends the call.
    """

    def __init__(self, instrumentation: Instrumentation, strategy: Any, messages: Sequence[Any]) -> None:
        invoking_agent = InvokingAgent(GROUP_CHAT.get() or strategy, f"{type(strategy).__name__}\0{id(strategy)}")
        super().__init__(instrumentation, invoking_agent, messages=messages)
        self.function = strategy.function


@run_hook
def strategy_call(instrumentation: Instrumentation, strategy: Any, /, *args: Any, **kwargs: Any) -> StrategyCall:
    """The hook of a strategy's method that chooses the next speaker or ends the chat by a model call."""
    return StrategyCall(instrumentation, strategy, argument(args, kwargs, 1, "history"))


def defer_edits(history: Any, *, recorded: bool = False) -> Sequence[Any]:
    """Return the messages of a history without its leading system prompts, and defer its edits as a reduction.

    Filters, tools and programs remove messages from a history where no hook runs. So this function, which runs before
    each model call and around each reducer, compares the messages with those at its previous call. If some were
    removed, the next model call has a step `edited_history`, unless the removal is already `recorded`.
    """
    messages = split_prompts(history.messages)[1]
    last_messages = _LAST_MESSAGES.get(history) or ()
    _LAST_MESSAGES.put(history, list(messages))
    unedited = messages if recorded else restore_removed(last_messages, messages)
    if unedited is not messages:
        DEFERRED_REDUCTIONS.put(invoking_agent_of(history), StepReport("edited_history", unedited, list(messages)))
    return messages


def _chat_request(model: Any, /, chat_history: Any, settings: Any = None, *_: Any, **__: Any) -> ClientRequest | None:
    """Return a chat service's request; None for `AssemblyChatCompletion`, which passes it to another service."""
    if is_ours(model):
        return None
    prompts, messages = split_prompts(chat_history.messages)
    return ClientRequest(messages, prompts, schemas_of(settings), model_of(model, settings))


def _text_request(model: Any, /, prompt: str, settings: Any = None, *_: Any, **__: Any) -> ClientRequest:
    """Return a text service's request, whose conversation is known only if a prompt function sends it."""
    owner = HISTORY_OWNER.get()
    invoking_agent = owner.invoking_agent() if owner is not None and owner.agent is None else InvokingAgent()
    message = ChatMessageContent(role=AuthorRole.USER, content=str(prompt))
    return ClientRequest([message], (), model=model_of(model, settings), invoking_agent=invoking_agent)


def _responses_request(
    _: Any, /, agent: Any, chat_history: Any, merged_instructions: Any = None, previous_response_id: Any = None,
    store_output_enabled: Any = None, tools: Any = None, response_options: Any = None, **__: Any,
) -> ClientRequest:  # fmt: skip
    """Return the request of an agent that uses OpenAI's Responses API."""
    owner = HISTORY_OWNER.get()
    thread = owner.thread if owner is not None and owner.agent is agent else None
    stored = agent.store_enabled if store_output_enabled is None else store_output_enabled
    prompts, messages = split_prompts(chat_history.messages)
    if stored:  # the provider has the model's tool calls, so the agent does not send messages with only these again
        types = [{item.content_type for item in message.items} for message in messages]
        messages = [message for place, message in enumerate(messages) if types[place] != {"function_call"}]
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
    return str(getattr(settings, "ai_model_id", None) or model.ai_model_id)


def schemas_of(settings: Any) -> Sequence[Mapping[str, Any]]:
    return [tool for tool in getattr(settings, "tools", None) or () if isinstance(tool, dict)]


def _model_call(
    instrumentation: Instrumentation, model: Any, /, chat_history: Any, settings: Any = None, *_: Any, **__: Any
) -> ModelCall | None:
    """Return the model call that a request to a service begins; None inside another call, or inside a reducer.

    A service may pass the request to another one with other messages, as `AssemblyChatCompletion` does.
    """
    if CALL.get() is not None or in_client_call() or reducing() is not None:
        return None
    prompts, messages = split_prompts(chat_history.messages)[0], defer_edits(chat_history)
    return ModelCall(instrumentation, invoking_agent_of(chat_history), messages=messages, prompts=prompts)


def _inside_model_span(wrap: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Return a `SubclassHook` function that wraps a service's method inside the framework's span of the call.

    If that span is current when the request is recorded, it gets the assembly's id (see `telemetry/model_span_links`).
    Semantic Kernel creates the span in a decorator of the method, such as `trace_chat_completion`. So the decorator is
    removed, the plain method is wrapped, and the decorator is applied again. A method has at most one such decorator.
    """

    def wrap_undecorated(original: Any, *wrap_args: Any) -> Callable[..., Any]:
        markers = [name for name in getattr(original, "__dict__", ()) if name.startswith(_MARKER)]
        closure = getclosurevars(original).nonlocals if markers and type(original) is FunctionType else {}
        is_decorated = closure.keys() >= _CLOSURE_NAMES  # and no other library has wrapped the decorated method
        if not is_decorated:
            return wrap(original, *wrap_args)
        (marker,) = markers  # such as `__model_diagnostics_chat_completion__`, which `trace_chat_completion` sets
        decorators = import_module(f"{_DIAGNOSTICS}.decorators")
        decorator = getattr(decorators, f"trace_{marker.removeprefix(_MARKER).strip('_')}")(closure["model_provider"])
        decorated: Callable[..., Any] = decorator(wrap(closure["completion_func"], *wrap_args))
        return decorated

    return wrap_undecorated


_DIAGNOSTICS: Final = "semantic_kernel.utils.telemetry.model_diagnostics"
#: The closure variables of the framework's decorators, and the prefix of the attribute that they set on a function.
_CLOSURE_NAMES: Final = {"model_provider", "completion_func"}
_MARKER: Final = "__model_diagnostics_"
_INNER_METHODS: Final = "_inner_get_{}_contents", "_inner_get_streaming_{}_contents"


def _text_of(responses: Sequence[Any]) -> str:
    return str(responses[0]) if responses else ""


def _service_hooks(
    kind: str,
    read_request: Callable[..., ClientRequest | None],
    prepared: Callable[..., TrackedRun | None] | None = None,
) -> list[Any]:
    """Return the hooks of a service's complete and streaming method; the arguments are those of `client`."""
    inner_methods = [template.format(kind) for template in _INNER_METHODS]
    public_methods = [method.removeprefix("_inner_") for method in inner_methods]
    # A service that calls any of these on another service passes its request on. The singular forms, such as
    # `get_chat_message_content`, return one message.
    delegated_methods = (*inner_methods, *public_methods, *(method.removesuffix("s") for method in public_methods))
    return [
        _inside_model_span(
            innermost_client_hook(
                method,
                read_request,
                _text_of,
                delegated_methods=delegated_methods,
                is_client=lambda value: hasattr(value, inner_methods[0]),
                prepared=prepared,
            )
        )
        for method in inner_methods
    ]


#: The hooks of chat services and of text services.
chat_hook, chat_stream_hook = _service_hooks("chat_message", _chat_request, prepared=_model_call)
text_hook, text_stream_hook = _service_hooks("text", _text_request)
#: The hook of the request of an agent that uses OpenAI's Responses API; such an agent has no service.
responses_hook: Final = client(_responses_request)
