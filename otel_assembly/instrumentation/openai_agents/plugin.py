"""`AssemblyInputFilter`: a chain of our policies as the model input filter of a run, on its own items."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from agents.exceptions import AgentsException
from agents.lifecycle import RunHooks
from agents.run import ModelInputData
from agents.run_context import RunContextWrapper
from agents.run_internal.turn_preparation import get_handoffs
from agents.tracing import get_current_trace
from openai import BaseModel

from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.clients import model_in
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.openai_agents.messages import SCHEMAS
from otel_assembly.instrumentation.openai_agents.runs import RUN
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.instrumentation.plugin import Given
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer

#: What a message takes beside its texts.
_FRAMING: Final = 4


class _HaltedToolError(HaltedError, AgentsException):
    """A halt inside of a tool, where the SDK hands on its own errors alone as they are."""


class _Conversation(PluginConversation):
    """One conversation, whose items are other objects on each turn."""

    def __init__(self, plugin: AssemblyInputFilter, conversation_id: str | None) -> None:
        super().__init__(plugin, "openai_agents", conversation_id)
        #: What its model was last held ready for, before any policy.
        self.items: Sequence[Any] = ()
        #: What its model has answered to that; empty until it has.
        self.answers: Sequence[Any] = ()
        self._seen: Counter[int] = Counter()

    async def show(self, events: Sequence[Any]) -> None:
        """Show the observers each of these that stands there more often than it was shown."""
        there: Counter[int] = Counter()
        for event in events if self._plugin._observers else ():  # noqa: SLF001  # a plug-in and its conversation
            facts = describe(event)
            said = hash((facts.kind, facts.id, facts.texts, *facts.opens, *facts.closes))
            there[said] += 1
            if there[said] > self._seen[said]:
                self._seen[said] = there[said]
                await self.stream.show(event)

    def leads_to(self, items: Sequence[Any]) -> bool:
        """Whether these are what its model was called with, and more."""
        held = len(self.items)
        return held < len(items) and list(items[:held]) == list(self.items)

    def was_answered(self, items: Sequence[Any]) -> bool:
        """Whether its model has answered, and that stands in these behind what it was called with."""
        start, answers = len(self.items), list(self.answers)
        return bool(answers) and list(items[start : start + len(answers)]) == answers

    def ends(self) -> None:
        """Go no further, once it is halted."""
        halt = self.context.guard.halt
        if halt is not None:
            raise _HaltedToolError(halt.reason, halt.source)


#: The conversation without an id whose model was last called here, and whose it is.
_HERE: Final[ContextVar[tuple[Any, _Conversation] | None]] = ContextVar("otel_assembly_openai_agents", default=None)


class AssemblyInputFilter(Plugin[_Conversation], RunHooks[Any]):
    """Our policies before each of a run's model calls: the SDK's items go in and come out, the very objects.

    It is given to a run twice, ``Runner.run(agent, …, hooks=plugin, run_config=RunConfig(call_model_input_filter=
    plugin))``: as the filter it says what a model gets to see; as the hooks, which observers and halts need, it sees
    what the model answers, and keeps tools from being called. What a policy drops is out of this call, and still in the
    session and the run's result. What policies add to the prompts is added to the instructions. An item that a model
    has reasoned for stands and falls with its reasoning. One object may serve any number of agents and conversations.

    A FATAL alert, of an observer, or sent with ``context_of(conversation).send(…)``, halts the conversation: no model
    and no tool is called any more, and the run raises `HaltedError`. `ContextOverflowError` of a budget that cannot
    hold goes through to whoever runs the agent as well.

    Args:
        policies: The chain, or an `Assembler`.
        conversation: The conversation's id, or a function that says it of the run's ``context``. Without one, a run is
            a conversation, and so are all in one trace of the SDK's, ``with trace(…):``, that go on with its items.
        name: The assembler's name in telemetry.
        model: The model whose tokenizer counts; by default the agent's, as far as that says its name.
        dependencies: What policies ask for by type, such as ``{KnowledgeStore: store}`` for the memory policies: a
            mapping, or a function of the `CallModelData` that returns one, async or not, called before each assembly.
            The run's own ``context`` is there by its type.
        variables: Values for policies, by name; likewise.
        observers: Shown every item once, a response as soon as it is there, before its tools run; and every alert.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own; or something given is
            not what it should be.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        conversation: str | Callable[[Any], str | None] | None = None,
        name: str | None = None,
        model: str | None = None,
        dependencies: Given = None,
        variables: Given = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(
            policies, name=name, model=model, dependencies=dependencies, variables=variables, observers=observers
        )
        self._said = conversation
        #: The conversations without an id, by the trace that they are in.
        self._talks: IdentityWeakMap[list[_Conversation]] = IdentityWeakMap()

    def context_of(self, conversation: str) -> Context:
        """The context of a conversation, whose guard ends it and through which alerts can be sent.

        Args:
            conversation: Its id, as ``conversation`` says it.
        """
        return self._conversation(conversation).context

    async def __call__(self, data: Any) -> ModelInputData:
        """Work out what this call's model gets to see.

        Raises:
            HaltedError: The conversation was halted; nothing is to be called for it any more.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        agent, items, prompts = data.agent, data.model_data.input, as_prompts(data.model_data.instructions)
        conversation = self._of(data.context, items)
        run = RunContextWrapper(data.context)
        dependencies = {} if data.context is None else {type(data.context): data.context}
        tools = SCHEMAS.of([*await agent.get_all_tools(run), *await get_handoffs(agent, run)])
        async with conversation.turn(agent.name, model_in(agent, agent.model), tools, agent.model):
            await conversation.show(items)
            assembly = await conversation.assemble(data, prompts, items, dependencies=dependencies)
        sent: list[Any] = [event for event in assembly.events if isinstance(event, dict | BaseModel)]
        instructions = data.model_data.instructions
        if list(assembly.prompts) != prompts:
            instructions = "\n\n".join(assembly.prompts) or None
        going = RUN.get()
        if going is not None and going.call is not None:
            with going.instrumentation.suppress_errors():
                going.call.replaced_by_plugin(sent, prompts=as_prompts(instructions))
        return ModelInputData(input=sent, instructions=instructions)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Show the observers what the model has answered; where that halts the conversation, its tools are not called.

        Raises:
            HaltedError: It is halted, and asks for tools.
        """
        conversation = self._of(context.context)
        conversation.answers = answered = response.to_input_items()
        await conversation.show([*conversation.items, *answered])
        if any(describe(item).opens for item in answered):
            conversation.ends()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Call no tool once the conversation is halted.

        Raises:
            HaltedError: It is.
        """
        self._of(context.context).ends()

    def _begin(self, conversation_id: str | None) -> _Conversation:
        return _Conversation(self, conversation_id)

    def _of(self, context: Any, items: Sequence[Any] | None = None) -> _Conversation:
        """The conversation of a run: by its id; else what goes on in the SDK's trace, which every run has.

        Args:
            context: The run's context.
            items: What the model is to be called with; None where that is done, and the conversation known.
        """
        own = self._said(context) if callable(self._said) else self._said
        if own is not None:
            known = self._conversation(own)
        elif items is None:
            here = _HERE.get()
            return here[1] if here is not None and here[0] is self else self._begin(None)
        else:
            talks = self._talks.get_or_create(get_current_trace(), lambda _: [])
            for one in talks:
                one.ends()
            leading = [one for one in talks if one.leads_to(items)]
            if leading:  # among runs that were asked the same, the one whose model has answered what follows
                known = max(leading, key=lambda one: (len(one.items), one.was_answered(items)))
            else:
                talks.append(known := self._begin(None))
            _HERE.set((self, known))
        if items is not None:
            known.items, known.answers = items, ()
        return known
