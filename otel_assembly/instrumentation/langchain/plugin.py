"""`AssemblyMiddleware`: a chain of our policies as middleware of a LangChain agent, on LangChain's own messages."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

import otel_assembly.instrumentation.langchain.messages  # noqa: F401  # how the messages are read
from otel_assembly.context import Context
from otel_assembly.conversation import Conversation, is_alert
from otel_assembly.errors import HaltedError
from otel_assembly.events import ObserverAlert
from otel_assembly.forks import new_lock
from otel_assembly.instrumentation.langchain.graph_runs import current_config, thread_of
from otel_assembly.instrumentation.langchain.model_requests import model_of
from otel_assembly.instrumentation.langchain.schemas import schemas_of
from otel_assembly.instrumentation.plugins import ALERTS, Conversations, assembler_of, to_send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.events import HaltEvent
    from otel_assembly.policies.base import AssemblyPolicy


class AssemblyMiddleware(AgentMiddleware):
    """Our policies around an agent's model call: LangChain's messages go in and come out, the very objects.

    The agent's state is left alone: what a policy drops is out of this call's prompt, and still in the state. One
    object may serve any number of conversations, sync and async. Put it behind middleware that changes the messages, so
    that it has the last word on what is sent.

    A FATAL alert, sent with ``context_of(conversation).send(…)`` or delivered by an `AlertPolicy`, halts the
    conversation: no model is called any more, the agent jumps to its end, and its last message says why.
    `ContextOverflowError` of a budget that cannot hold goes through to whoever invoked the agent.

    Args:
        policies: The chain, or an `Assembler`.
        name: Its name among the agent's middleware, which must differ, and of the assembler in telemetry.
        model: The model whose tokenizer counts; by default the agent's, as far as it says its name.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own.
    """

    #: By this the instrumentation knows that its assemblies are told of already.
    otel_assembly_plugin: ClassVar[bool] = True

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
    ) -> None:
        super().__init__()
        self.assembler = assembler_of("AssemblyMiddleware", policies, name=name, model=model)
        self._conversations: Conversations[_Conversation] = Conversations(_Conversation)

    @property
    def name(self) -> str:
        """Its name among the agent's middleware."""
        return self.assembler.name or type(self).__name__

    def context_of(self, conversation: str) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: The ``thread_id`` of its configuration; without one, the id of its first message.
        """
        return self._conversations.of(conversation).context

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
            ContextOverflowError: What may not be dropped does not fit a policy's budget.
            PolicyFailedError: A policy raised.
        """
        changed = _finished(self._assembled(request))
        return handler(changed) if not isinstance(changed, AIMessage) else changed

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `wrap_model_call`, for agents that are awaited."""
        changed = await self._assembled(request)
        return await handler(changed) if not isinstance(changed, AIMessage) else changed

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

    async def _assembled(self, request: Any) -> Any:
        """The request with what is to be sent; or the agent's last words, where the conversation was halted."""
        conversation = self._of(request.messages) or _Conversation(None)
        context = conversation.context
        context.model = model_of(request.model)
        context.agent_name = _agent_name()
        context.tools = schemas_of(request.tools)
        prompt = request.system_prompt
        prompts = [str(prompt)] if prompt else []
        try:
            assembly = await to_send(self.assembler, prompts, conversation.events(request.messages), context)
        except HaltedError as halted:
            return _last_words(halted)
        return _sent(request, prompts, assembly)

    def _of(self, messages: Sequence[Any]) -> _Conversation | None:
        conversation = thread_of(current_config()) or next((one.id for one in messages if one.id), None)
        return None if conversation is None else self._conversations.of(conversation)


class _Conversation:
    """One conversation under one middleware."""

    def __init__(self, conversation_id: str | None) -> None:
        self._alerts = _Alerts()
        self.context = Context(conversation_id=conversation_id, framework="langchain", stream=self._alerts)

    def events(self, messages: Sequence[Any]) -> list[Any]:
        """The messages, and among them the alerts, each where the conversation was when it was first seen."""
        return self._alerts.among(messages)


class _Alerts:
    """Keeps the alerts that are sent in a conversation."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self._lock = new_lock()
        self._held: list[tuple[int | None, Any]] = []

    def listens(self, event_type: type) -> bool:
        """Only alerts are kept."""
        return issubclass(event_type, ObserverAlert)

    async def send(self, event: Any) -> None:
        """Keep an alert; other events have no listener here."""
        if is_alert(event):
            with self._lock:
                self._held.append((None, event))
                del self._held[:-ALERTS]

    def among(self, messages: Sequence[Any]) -> list[Any]:
        if not self._held:
            return list(messages)
        with self._lock:
            self._held = [(len(messages) if place is None else place, alert) for place, alert in self._held]
            held = list(self._held)
        events = list(messages)
        for place, alert in reversed(held):
            events.insert(min(place or 0, len(messages)), alert)
        return events


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
    """What a coroutine returns, in a loop of its own: the caller's may be running, and must not be replaced."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_a_loop(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, _in_a_loop, work).result()


def _in_a_loop(work: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
