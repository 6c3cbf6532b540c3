"""`AssemblyMiddleware`: applies a chain of policies to LangChain's messages, as middleware of a LangChain agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langgraph.store.base import BaseStore

import otel_assembly.instrumentation.langchain.messages  # noqa: F401  # registers how messages are read
from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.langchain.knowledge import BLOCKING, GraphKnowledgeStore
from otel_assembly.instrumentation.langchain.model_calls import chat_model_in, client_of, model_of, schemas_of
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT, current_config, thread_of
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, finished
from otel_assembly.knowledge import KnowledgeStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.events import HaltEvent


class AssemblyMiddleware(Plugin[PluginConversation], AgentMiddleware):
    """Middleware that applies a chain of policies to the messages of each model call of a LangChain agent.

    Policies receive LangChain's own message objects. The middleware changes only the request to the model: a message
    that a policy drops stays in the agent's state. One middleware object can serve any number of conversations, sync
    and async. Put it last in the agent's list of middleware, so that no other middleware changes its result.

    A FATAL alert halts the conversation; an observer sends it, or the program with
    ``context_of(conversation).send(…)``. After that, no model and no tool is called, the agent jumps to its end, and
    its last message contains the reason. A `ContextOverflowError` of a budget policy is raised to the caller of the
    agent.

    Args:
        policies: The chain, or an `Assembler`.
        name: The name of this middleware, unique in the agent, and of the assembler in telemetry.
        model: The model whose tokenizer counts; by default the agent's, if its name is known.
        dependencies: Objects that policies request by type: a mapping, or a function, sync or async, that takes the
            run's `Runtime` and returns a mapping. The function is called before each assembly. The run's context is
            always available by its type. Memory policies request a `KnowledgeStore`; by default this is the agent's
            store in the namespace ``("knowledge",)`` (see `GraphKnowledgeStore`).
        variables: Values that policies request by name: a mapping or a function, as for `dependencies`. The default is
            the fields of the run's context.
        observers: Receive each message once, a response before its tools run, and each alert.

    Raises:
        ConfigurationError: `name` or `model` is set although `policies` is an `Assembler`; or an argument is invalid.
    """

    @property
    def name(self) -> str:
        """The name of this middleware in the agent."""
        return self.assembler.name or type(self).__name__

    def context_of(self, conversation: str) -> Context:
        """Return the `Context` of a conversation, for example to send an alert to it.

        Args:
            conversation: The ``thread_id`` of the run's config; without one, the id of the first message.
        """
        return self._conversation(conversation).context

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run if the conversation is halted."""
        conversation = self._conversation_of(state["messages"])
        halt = conversation.context.guard.halt if conversation is not None else None
        return None if halt is None else {"jump_to": "end", "messages": [_halt_message(halt)]}

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run if the conversation is halted."""
        return self.before_model(state, runtime)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Apply the policies to the request's messages and prompt, and call the model with the result.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation = self._conversation_of(request.messages) or self._begin(None)
        assembled = _run_blocking(self._assemble_request(conversation, request))
        if isinstance(assembled, AIMessage):
            return assembled
        with GRAPH_CONTEXT.after_plugin(request.messages, assembled.messages):
            response = handler(assembled)
        if self._observers:
            _run_blocking(conversation.show(_response_messages(response)))
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do the same as `wrap_model_call`, for async agents."""
        conversation = self._conversation_of(request.messages) or self._begin(None)
        assembled = await self._assemble_request(conversation, request)
        if isinstance(assembled, AIMessage):
            return assembled
        with GRAPH_CONTEXT.after_plugin(request.messages, assembled.messages):
            response = await handler(assembled)
        await conversation.show(_response_messages(response))
        return response

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call a tool, unless the conversation was halted after the model requested the call."""
        return self._refusal(request) or handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do the same as `wrap_tool_call`, for async agents."""
        return self._refusal(request) or await handler(request)

    def _refusal(self, request: Any) -> ToolMessage | None:
        """Return the error result of a tool call in a halted conversation; None if the tool may be called."""
        conversation = self._conversation_of(_state_messages(request.state))
        halt = conversation.context.guard.halt if conversation is not None else None
        if halt is None:
            return None
        call = request.tool_call
        return ToolMessage(f"Not called: {halt.reason}", tool_call_id=call["id"], name=call["name"], status="error")

    async def _assemble_request(self, conversation: PluginConversation, request: Any) -> Any:
        """Return the request with the assembled messages; if the conversation is halted, an `AIMessage` instead."""
        prompt = request.system_prompt
        prompts = [str(prompt)] if prompt else []
        dependencies, variables = _runtime_values(request)
        try:
            model, tools = request.model, schemas_of(request.tools)
            chat = chat_model_in(model)
            async with conversation.turn(_agent_name(), model_of(model), tools, chat, client_of(chat, tools)):
                # Not the messages of the request: earlier middleware may have replaced them with copies, which
                # observers would receive as new messages.
                await conversation.show(_state_messages(request.state) or request.messages)
                assembly = await conversation.assemble(
                    request.runtime, prompts, request.messages, dependencies=dependencies, variables=variables
                )
        except HaltedError as halted:
            return _halt_message(halted)
        return _assembled_request(request, prompts, assembly)

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "langchain", conversation_id, same=_is_same_message)

    def _conversation_of(self, messages: Sequence[Any]) -> PluginConversation | None:
        """Return the conversation of the current thread, or else of the first message that has an id."""
        conversation_id = thread_of(current_config()) or next((message.id for message in messages if message.id), None)
        return None if conversation_id is None else self._conversation(conversation_id)


def _runtime_values(request: Any) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the dependencies and variables that LangGraph's runtime provides: its store, and the run's context."""
    runtime = getattr(request, "runtime", None)
    store, context = getattr(runtime, "store", None), getattr(runtime, "context", None)
    dependencies: dict[Any, Any] = {}
    if store is not None:
        dependencies[BaseStore] = store
        dependencies[KnowledgeStore] = GraphKnowledgeStore(store)
    if context is None:
        return dependencies, {}
    dependencies[type(context)] = context
    variables = context if isinstance(context, Mapping) else getattr(context, "__dict__", {})
    if is_dataclass(context):
        variables = {field.name: getattr(context, field.name) for field in dataclass_fields(context)}
    return dependencies, dict(variables)


def _is_same_message(message: BaseMessage, candidate: BaseMessage) -> bool:
    """Return True if two messages have the same id; a checkpointer returns new objects for the same messages."""
    return message.id is not None and message.id == getattr(candidate, "id", None)


def _response_messages(response: Any) -> Sequence[Any]:
    """Return the messages in a handler's result: an `AIMessage`, a `ModelResponse` or an extended response."""
    if isinstance(response, BaseMessage):
        return [response]
    messages: Sequence[Any] = getattr(getattr(response, "model_response", response), "result", ())
    return messages


def _state_messages(state: Any) -> Sequence[Any]:
    messages: Sequence[Any] = state.get("messages", ()) if isinstance(state, dict) else getattr(state, "messages", ())
    return messages


def _agent_name() -> str | None:
    name = ((current_config() or {}).get("metadata") or {}).get("lc_agent_name")
    return name if isinstance(name, str) else None


def _assembled_request(request: Any, prompts: list[str], assembly: Assembly) -> Any:
    """Return the request with the assembly's messages and prompts; the same object if neither differs."""
    changes: dict[str, Any] = {}
    messages = [event for event in assembly.events if isinstance(event, BaseMessage)]
    if len(messages) != len(request.messages) or any(
        message is not original for message, original in zip(messages, request.messages, strict=True)
    ):
        changes["messages"] = messages
    if assembly.prompts != prompts:
        changes.update(_prompt_changes(request, prompts, assembly.prompts))
    return request.override(**changes) if changes else request


def _prompt_changes(request: Any, before: list[str], after: list[str]) -> dict[str, Any]:
    """Return the fields of the request that set the system prompt.

    If the system message consists of content blocks and prompts were only added, the blocks stay as they are.
    """
    text = "\n\n".join(after)
    if not hasattr(request, "system_message"):  # LangChain 1.0
        return {"system_prompt": text or None}
    message = request.system_message
    if message is not None and isinstance(message.content, list) and after[: len(before)] == before:
        added = {"type": "text", "text": "\n\n".join(after[len(before) :])}
        return {"system_message": message.model_copy(update={"content": [*message.content, added]})}
    return {"system_message": SystemMessage(text) if text else None}


def _halt_message(halt: HaltEvent | HaltedError) -> AIMessage:
    return AIMessage(f"Halted: {halt.reason}", response_metadata={"halt": {"source": halt.source}})


def _run_blocking(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end from sync code; the knowledge store then uses the sync methods of its store."""
    with context_value(BLOCKING, True):
        return finished(work)
