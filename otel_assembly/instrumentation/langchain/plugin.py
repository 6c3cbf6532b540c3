"""`AssemblyMiddleware`: applies a chain of policies to LangChain's messages, as middleware of a LangChain agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.langchain.knowledge import BLOCKING, runtime_values
from otel_assembly.instrumentation.langchain.messages import response_messages, state_messages, system_prompt
from otel_assembly.instrumentation.langchain.model_calls import chat_model_in, client_of, model_of, schemas_of
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT, current_config, thread_of
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, TurnInput, finished

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from otel_assembly.events import HaltEvent


class AssemblyMiddleware(Plugin[PluginConversation], AgentMiddleware):
    """Middleware that applies a chain of policies to the messages of each model call of a LangChain agent.

    Policies receive LangChain's own message objects. The middleware changes only the request to the model: a message
    that a policy drops stays in the agent's state. One middleware object can serve any number of conversations, sync
    and async. Put it last in the agent's list of middleware, so that no other middleware changes its result. The id of
    a conversation is the ``thread_id`` of the run's config; without one, the id of the first message.

    In a halted conversation, `HaltedError` is not raised: the agent jumps to its end, and its last message contains the
    reason. The assembler's name is also the name of this middleware, which must be unique in the agent. Functions for
    `dependencies` and `variables` get the run's `Runtime`. The run's context is also a dependency by its type, and its
    fields are variables. The default `KnowledgeStore` is the agent's store in the namespace ``("knowledge",)`` (see
    `GraphKnowledgeStore`).
    """

    _framework = "langchain"
    _message_types = (BaseMessage,)

    @property
    def name(self) -> str:
        """The name of this middleware in the agent."""
        return self.assembler.name or type(self).__name__

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run if the conversation is halted."""
        halt = self._conversation_of(state["messages"]).context.guard.halt
        return None if halt is None else {"jump_to": "end", "messages": [_halt_message(halt)]}

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return self.before_model(state, runtime)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Apply the policies to the request's messages and prompt, and call the model with the result."""
        conversation = self._conversation_of(request.messages)
        try:
            assembled = _run_blocking(self._run_policies(conversation, request))
        except HaltedError as halted:
            return _halt_message(halted)
        with GRAPH_CONTEXT.model_call_after_plugin(request.messages, assembled.messages):
            response = handler(assembled)
        if self._observers:
            _run_blocking(conversation.show(response_messages(response)))
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        conversation = self._conversation_of(request.messages)
        try:
            assembled = await self._run_policies(conversation, request)
        except HaltedError as halted:
            return _halt_message(halted)
        with GRAPH_CONTEXT.model_call_after_plugin(request.messages, assembled.messages):
            response = await handler(assembled)
        await conversation.show(response_messages(response))
        return response

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call a tool, unless the conversation was halted after the model requested the call."""
        return self._refusal(request) or handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        return self._refusal(request) or await handler(request)

    def _refusal(self, request: Any) -> ToolMessage | None:
        """Return the error result of a tool call in a halted conversation; None if the tool may be called."""
        refusal, call = self._conversation_of(state_messages(request.state)).refusal, request.tool_call
        if refusal is None:
            return None
        return ToolMessage(refusal, tool_call_id=call["id"], name=call["name"], status="error")

    async def _read_input(self, request: Any) -> TurnInput:
        agent_name = ((current_config() or {}).get("metadata") or {}).get("lc_agent_name")
        dependencies, variables = runtime_values(request.runtime)
        tools, client = schemas_of(request.tools), chat_model_in(request.model)
        return TurnInput(
            framework_object=request.runtime,
            prompts=[str(request.system_prompt)] if request.system_prompt else [],
            messages=request.messages,
            agent_name=agent_name if isinstance(agent_name, str) else None,
            model=model_of(request.model),
            tools=tools,
            client=client,
            client_rules=client_of(client, tools),
            # Not the request's messages: earlier middleware may have copied them, and copies would be shown as new.
            shown=state_messages(request.state) or request.messages,
            dependencies=dependencies,
            variables=variables,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        changes: dict[str, Any] = {} if same_objects(messages, request.messages) else {"messages": messages}
        if prompts != turn_input.prompts:
            changes.update(system_prompt(request, turn_input.prompts, prompts))
        return request.override(**changes) if changes else request

    @staticmethod
    def _is_same(left: BaseMessage, right: BaseMessage) -> bool:
        """Return True if two messages have the same id; a checkpointer returns new objects for the same messages."""
        return left.id is not None and left.id == getattr(right, "id", None)

    def _conversation_of(self, messages: Sequence[Any]) -> PluginConversation:
        """Return the conversation of the current thread, or else of the first message that has an id."""
        thread_id = thread_of(current_config())
        return self._conversation(thread_id or next((message.id for message in messages if message.id), None))


def _halt_message(halt: HaltEvent | HaltedError) -> AIMessage:
    return AIMessage(f"Halted: {halt.reason}", response_metadata={"halt": {"source": halt.source}})


def _run_blocking(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end from sync code; the knowledge store then uses the sync methods of its store."""
    with context_value(BLOCKING, True):
        return finished(work)
