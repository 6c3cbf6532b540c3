"""`AssemblyConversationManager`: a chain of our policies as the conversation manager of a Strands agent."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from strands.agent.conversation_manager import ConversationManager
from strands.hooks import AgentInitializedEvent, BeforeToolCallEvent
from strands.types._events import ModelStopReason
from strands.types.exceptions import EventLoopException

from otel_assembly.errors import AssemblyError
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.message_alignment import same_content
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.reductions import plugin_scope
from otel_assembly.instrumentation.strands.calls import invoking_agent_of, model_of
from otel_assembly.instrumentation.strands.messages import as_sent, prompts_of, schemas_of

try:
    from strands.middleware import InvokeModelStage
except ImportError:  # releases below 1.62
    try:
        from strands._middleware import InvokeModelStage
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "AssemblyConversationManager works as middleware, which strands-agents has from 1.51 on; "
            "install a later one: pip install 'strands-agents>=1.51,<2'"
        ) from missing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class AssemblyConversationManager(Plugin[PluginConversation], ConversationManager):
    """Our policies around each of an agent's model calls: Strands' messages go in and come out, the very objects.

    It is given to an agent, ``Agent(conversation_manager=AssemblyConversationManager(policies))``, and is the last of
    its middleware: what a policy drops is out of this call, and still among the agent's messages, and in its
    session. One object may serve any number of agents. What policies add to the prompts is added to the
    system prompt; a summary is a user's message. Neighboring messages of one role are joined, as Bedrock requires.

    A FATAL alert, of an observer, or sent with ``context_of(agent).send(…)``, halts the conversation: no model and no
    tool is called any more, and the run raises `HaltedError`. `ContextOverflowError` of a budget that cannot hold goes
    through to whoever runs the agent as well.

    Args:
        policies: The chain, or an `Assembler`.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts; by default the one that is called.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}``: a mapping, or a function of
            the call's `InvokeModelContext` that returns one, async or not, called before each assembly.
        variables: Values for policies, by name; likewise.
        observers: Shown every message once, a response as soon as it is there, before its tools run; and every alert.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        Plugin.__init__(
            self, policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        ConversationManager.__init__(self)
        self.assembler = self.assembler.followed_by([_Alternating()])
        #: The conversations of agents that have no session.
        self._of_agents: IdentityWeakMap[PluginConversation] = IdentityWeakMap()

    def context_of(self, agent: Any) -> Context:
        """The context of an agent's conversation, whose guard ends it and through which alerts can be sent.

        Args:
            agent: The agent.
        """
        return self._of(agent).context

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        """Have it called around the model, and before each tool."""
        super().register_hooks(registry, **kwargs)
        registry.add_callback(AgentInitializedEvent, self._joins)
        registry.add_callback(BeforeToolCallEvent, self._before_tool)

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Leave the agent's messages alone."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        """Leave the agent's messages alone: a model that finds too much what a budget allows has a smaller window.

        Raises:
            Exception: What the model has said.
        """
        if e is not None:
            raise e

    def _joins(self, event: Any) -> None:
        event.agent._middleware_registry.add_middleware(InvokeModelStage, self._around)  # noqa: SLF001  # older releases

    async def _around(self, context: Any, next_fn: Callable[[Any], Any]) -> AsyncGenerator[Any, None]:
        """Work out what this call's model gets to see, and call it with that."""
        try:
            conversation = self._of(context.agent)
            context = await self._assembled(conversation, context)
            async for event in next_fn(context):
                if isinstance(event, ModelStopReason):
                    message = event["stop"][1]
                    await conversation.show([message])
                    if any("toolUse" in block for block in message["content"]):
                        conversation.context.guard.check()
                yield event
        except AssemblyError as error:
            error.__class__ = _going_through(type(error))  # type: ignore[arg-type]  # a class can be hashed
            raise

    async def _assembled(self, conversation: PluginConversation, context: Any) -> Any:
        agent, call = context.agent, CALL.get()
        prompts, held = prompts_of(context.system_prompt), _own(agent.messages, context.messages)
        model, tools = context.model, schemas_of(context.tool_specs)
        async with conversation.turn(agent.name, model_of(model), tools, model):
            await conversation.show(held)
            with nullcontext() if call is None else plugin_scope(call.instrumentation, call):
                assembly = await conversation.assemble(context, prompts, held)
        messages, made = _messages(assembly.events), list(assembly.prompts)
        if call is not None:
            with call.instrumentation.suppress_errors():
                call.replaced_by_plugin(as_sent(messages), prompts=made)
        return replace(context, messages=messages, system_prompt=_prompt(context.system_prompt, prompts, made))

    def _before_tool(self, event: Any) -> None:
        """Call no tool once the conversation is halted."""
        halt = self._of(event.agent).context.guard.halt
        if halt is not None:
            event.cancel_tool = f"Not called: {halt.reason}"

    def _begin(self, conversation_id: str | None) -> PluginConversation:
        session = conversation_id.partition("\0")[0] if conversation_id is not None else None
        return PluginConversation(self, "strands", session, same=same_content)

    def _of(self, agent: Any) -> PluginConversation:
        invoking_agent = invoking_agent_of(agent)
        if invoking_agent.conversation_id is not None:
            return self._conversation(f"{invoking_agent.conversation_id}\0{invoking_agent.name}")
        return self._of_agents.get_or_create(agent, lambda _: self._begin(None))


class _Alternating:
    """Joins neighboring messages of one role, which Bedrock refuses."""

    name = "alternating_roles"
    kind = "reduction"

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the events, neighbors of one role as one."""
        known, at = set(map(id, _messages(events))), 0
        made: list[Any] = []
        last: Any = None
        for event in events:
            if last is not None and id(event) in known and event["role"] == last["role"]:
                last = {**last, "content": [*last["content"], *event["content"]]}
                made[at] = last
            else:
                at, last = (len(made), event) if id(event) in known else (at, last)
                made.append(event)
        return prompts, made


def _own(messages: Sequence[Any], copies: Sequence[Any]) -> list[Any]:
    """The agent's own messages, of which a middleware is handed copies; what was changed on the way is another one."""
    known = {message.get("tracking_id"): message for message in messages}
    return [own if (own := known.get(copy.get("tracking_id"))) == copy else copy for copy in copies]


def _messages(events: Sequence[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, dict)]


def _prompt(given: Any, prompts: list[str], made: list[str]) -> Any:
    """The system prompt: as it was given, with what is new behind it; other blocks, such as cache points, stay."""
    if made == prompts:
        return given
    kept = given if isinstance(given, list) else [{"text": text} for text in prompts]
    if made[: len(prompts)] == prompts:
        return [*kept, *({"text": text} for text in made[len(prompts) :])]
    return [{"text": text} for text in made]


@lru_cache(maxsize=32)
def _going_through(kind: type[AssemblyError]) -> type[AssemblyError]:
    """The same error, as one that the event loop lets through as it is, whichever cycle it is raised in."""
    if issubclass(kind, EventLoopException):
        return kind
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, EventLoopException), named)
