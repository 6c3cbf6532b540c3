"""`AssemblyMiddleware`: a chain of our policies as middleware of a LangChain agent, on LangChain's own messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langgraph.store.base import BaseStore

import otel_assembly.instrumentation.langchain.messages  # noqa: F401  # how the messages are read
from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.langchain.knowledge import BLOCKING, GraphKnowledgeStore
from otel_assembly.instrumentation.langchain.model_calls import chat_model_in, client_of, model_of, schemas_of
from otel_assembly.instrumentation.langchain.runs import PLACES, current_config, thread_of
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, finished
from otel_assembly.knowledge import KnowledgeStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.events import HaltEvent


class AssemblyMiddleware(Plugin[PluginConversation], AgentMiddleware):
    """Our policies around an agent's model call: LangChain's messages go in and come out, the very objects.

    The agent's state is left alone: what a policy drops is out of this call's prompt, and still in the state. One
    object may serve any number of conversations, sync and async. Put it behind middleware that changes the messages, so
    that it has the last word on what is sent.

    A FATAL alert, of an observer, or sent with ``context_of(conversation).send(…)``, halts the conversation: no model
    and no tool is called any more, the agent jumps to its end, and its last message says why.
    `ContextOverflowError` of a budget that cannot hold goes through to whoever invoked the agent.

    Args:
        policies: The chain, or an `Assembler`.
        name: Its name among the agent's middleware, which must differ, and of the assembler in telemetry.
        model: The model whose tokenizer counts; by default the agent's, as far as it says its name.
        dependencies: What policies ask for by type: a mapping, or a function of the run's `Runtime` that returns one,
            async or not, called before each assembly. The memory policies read the one of `KnowledgeStore`; without one
            here that is the agent's own store, in the namespace ``("knowledge",)`` (see `GraphKnowledgeStore`). The
            context of the run is there by its type.
        variables: Values for policies, by name; likewise. Without any here they are the fields of the run's context.
        observers: Shown every message once, a response as soon as it is there, before its tools run; and every alert.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    @property
    def name(self) -> str:
        """Its name among the agent's middleware."""
        return self.assembler.name or type(self).__name__

    def context_of(self, conversation: str) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: The ``thread_id`` of its configuration; without one, the id of its first message.
        """
        return self._conversation(conversation).context

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run of a conversation that was halted."""
        conversation = self._of(state["messages"])
        halt = conversation.context.guard.halt if conversation is not None else None
        return None if halt is None else {"jump_to": "end", "messages": [_last_words(halt)]}

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run of a conversation that was halted."""
        return self.before_model(state, runtime)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Work out what this call's model gets to see, and call it with that.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        conversation = self._of(request.messages) or self._begin(None)
        changed = _finished(self._assembled(conversation, request))
        if isinstance(changed, AIMessage):
            return changed
        with PLACES.after_plugin(request.messages, changed.messages):
            response = handler(changed)
        if self._observers:
            _finished(conversation.show(_answered(response)))
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `wrap_model_call`, for agents that are awaited."""
        conversation = self._of(request.messages) or self._begin(None)
        changed = await self._assembled(conversation, request)
        if isinstance(changed, AIMessage):
            return changed
        with PLACES.after_plugin(request.messages, changed.messages):
            response = await handler(changed)
        await conversation.show(_answered(response))
        return response

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call a tool, unless the conversation was halted since the model asked for it."""
        return self._not_called(request) or handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `wrap_tool_call`, for agents that are awaited."""
        return self._not_called(request) or await handler(request)

    def _not_called(self, request: Any) -> ToolMessage | None:
        """What answers a tool call of a halted conversation."""
        conversation = self._of(_messages(request.state))
        halt = conversation.context.guard.halt if conversation is not None else None
        if halt is None:
            return None
        call = request.tool_call
        return ToolMessage(f"Not called: {halt.reason}", tool_call_id=call["id"], name=call["name"], status="error")

    async def _assembled(self, conversation: PluginConversation, request: Any) -> Any:
        """The request with what is to be sent; or the agent's last words, where the conversation was halted."""
        prompt = request.system_prompt
        prompts = [str(prompt)] if prompt else []
        dependencies, variables = _runtime_of(request)
        try:
            model, tools = request.model, schemas_of(request.tools)
            chat = chat_model_in(model)
            async with conversation.turn(_agent_name(), model_of(model), tools, chat, client_of(chat, tools)):
                # Not the request's: middleware in front may have made other messages of them, which seem new.
                await conversation.show(_messages(request.state) or request.messages)
                assembly = await conversation.assemble(
                    request.runtime, prompts, request.messages, dependencies=dependencies, variables=variables
                )
        except HaltedError as halted:
            return _last_words(halted)
        return _sent(request, prompts, assembly)

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        return PluginConversation(self, "langchain", conversation_id, same=_same)

    def _of(self, messages: Sequence[Any]) -> PluginConversation | None:
        conversation = thread_of(current_config()) or next((one.id for one in messages if one.id), None)
        return None if conversation is None else self._conversation(conversation)


def _runtime_of(request: Any) -> tuple[dict[Any, Any], dict[str, Any]]:
    """What LangGraph itself hands a turn, as dependencies and variables: its store, and the context of the run."""
    runtime = getattr(request, "runtime", None)
    store, context = getattr(runtime, "store", None), getattr(runtime, "context", None)
    dependencies: dict[Any, Any] = {}
    if store is not None:
        dependencies[BaseStore] = store
        dependencies[KnowledgeStore] = GraphKnowledgeStore(store)
    if context is None:
        return dependencies, {}
    dependencies[type(context)] = context
    fields = context if isinstance(context, Mapping) else getattr(context, "__dict__", {})
    if is_dataclass(context):
        fields = {one.name: getattr(context, one.name) for one in dataclass_fields(context)}
    return dependencies, dict(fields)


def _same(one: BaseMessage, other: BaseMessage) -> bool:
    """Whether two objects are the same message: a checkpointer returns fresh ones."""
    return one.id is not None and one.id == getattr(other, "id", None)


def _answered(response: Any) -> Sequence[Any]:
    """The messages that a model call has come back with."""
    if isinstance(response, BaseMessage):
        return [response]
    found: Sequence[Any] = getattr(getattr(response, "model_response", response), "result", ())
    return found


def _messages(state: Any) -> Sequence[Any]:
    found: Sequence[Any] = state.get("messages", ()) if isinstance(state, dict) else getattr(state, "messages", ())
    return found


def _agent_name() -> str | None:
    name = ((current_config() or {}).get("metadata") or {}).get("lc_agent_name")
    return name if isinstance(name, str) else None


def _sent(request: Any, prompts: list[str], assembly: Assembly) -> Any:
    """The request with what is to be sent; what is the same stays the very object."""
    changes: dict[str, Any] = {}
    messages = [event for event in assembly.events if isinstance(event, BaseMessage)]
    if len(messages) != len(request.messages) or any(
        a is not b for a, b in zip(messages, request.messages, strict=True)
    ):
        changes["messages"] = messages
    if assembly.prompts != prompts:
        changes.update(_system(request, prompts, assembly.prompts))
    return request.override(**changes) if changes else request


def _system(request: Any, before: list[str], after: list[str]) -> dict[str, Any]:
    text = "\n\n".join(after)
    if not hasattr(request, "system_message"):  # LangChain 1.0
        return {"system_prompt": text or None}
    message = request.system_message
    if message is not None and isinstance(message.content, list) and after[: len(before)] == before:
        added = {"type": "text", "text": "\n\n".join(after[len(before) :])}
        return {"system_message": message.model_copy(update={"content": [*message.content, added]})}
    return {"system_message": SystemMessage(text) if text else None}


def _last_words(halt: HaltEvent | HaltedError) -> AIMessage:
    return AIMessage(f"Halted: {halt.reason}", response_metadata={"halt": {"source": halt.source}})


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, for whom nothing can be awaited."""
    with context_value(BLOCKING, True):
        return finished(work)
