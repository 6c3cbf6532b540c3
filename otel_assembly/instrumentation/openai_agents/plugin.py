"""`AssemblyInputFilter`, the plug-in for the OpenAI Agents SDK: runs a policy chain before each model call of a run.

It is a ``call_model_input_filter``, and a `RunHooks` with ``on_llm_end`` and ``on_tool_start``.
"""

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
from otel_assembly.instrumentation.plugin import Given, Plugin, PluginConversation, TurnInput, record_output
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.policies.base import AssemblyPolicy
    from otel_assembly.runtime import Observer


class _HaltedToolError(HaltedError, AgentsException):
    """A halt that is raised during a turn: an `AgentsException`, because the SDK replaces other errors of tools."""


class _Conversation(PluginConversation):
    """One conversation. The SDK creates new objects for its items on each turn, so items are compared by content."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The items of the last model call, before any policy ran.
        self.items: Sequence[Any] = ()
        #: The items of the model's response to that call; empty until the model has responded.
        self.answers: Sequence[Any] = ()
        #: How often each content was passed to the observers.
        self._shown_counts: Counter[int] = Counter()

    async def show(self, events: Sequence[Any]) -> None:
        """Pass to the observers each event that they have not received yet.

        Args:
            events: All events of the conversation. If several are equal, each of them is passed once.
        """
        counts: Counter[int] = Counter()
        for event in events if self._plugin._observers else ():  # noqa: SLF001  # a plug-in and its conversation
            facts = describe(event)
            content = hash((facts.kind, facts.id, facts.texts, *facts.opens, *facts.closes))
            counts[content] += 1
            if counts[content] > self._shown_counts[content]:
                self._shown_counts[content] = counts[content]
                await self.stream.show(event)

    def continuation(self, items: Sequence[Any]) -> tuple[int, bool] | None:
        """Return how much items have in common with the last model call; None if they do not continue it.

        This is the number of the call's items, and whether the model's response follows them.
        """
        length, answers = len(self.items), list(self.answers)
        if length >= len(items) or list(items[:length]) != list(self.items):
            return None
        return length, bool(answers) and list(items[length : length + len(answers)]) == answers

    def raise_if_halted(self) -> None:
        """Raise a `HaltedError` if the conversation is halted."""
        halt = self.context.guard.halt
        if halt is not None:
            raise _HaltedToolError(halt.reason, halt.source)


#: The conversation without an id that last called a model in this context, and its plug-in.
_CURRENT: Final[ContextVar[tuple[Any, _Conversation] | None]] = ContextVar("otel_assembly_openai_agents", default=None)


class AssemblyInputFilter(Plugin[_Conversation], RunHooks[Any]):
    """A filter of the OpenAI Agents SDK that runs a policy chain on the items of each model call.

    Pass the object to a run twice: ``Runner.run(agent, …, hooks=plugin,
    run_config=RunConfig(call_model_input_filter=plugin))``. The filter runs the chain. The hooks receive the model's
    responses and can prevent tool calls; observers and halts need them.

    The chain receives and returns the SDK's own item objects. An item that a policy drops is missing from this call,
    but not from the session and the run's result. Prompts that policies inject are added to the instructions. A
    reasoning item is kept or dropped together with the item that follows it. One object can serve any number of agents
    and conversations.

    Functions for `dependencies` and `variables` get the `CallModelData`. The run's ``context`` is also a dependency by
    its type.

    Args:
        conversation: The conversation's id, or a function that takes the run's ``context`` and returns the id. Without
            an id, each run is a conversation; runs in one trace of the SDK (``with trace(…):``) that continue each
            other's items are one conversation. `Plugin` has the other arguments.
    """

    _framework = "openai_agents"
    _message_types = (dict, BaseModel)
    _conversation_type = _Conversation

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
        self._conversation_setting = conversation
        #: The conversations without an id, by the SDK's trace of their runs.
        self._unnamed_conversations: IdentityWeakMap[list[_Conversation]] = IdentityWeakMap()

    async def __call__(self, data: Any) -> ModelInputData:
        """Run the policy chain on the items of a model call, and return the items and instructions to send.

        Raises:
            HaltedError: The conversation is halted.
            ContextOverflowError: Content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised an exception.
        """
        conversation = self._conversation_of(data.context, data.model_data.input)
        output: ModelInputData = await self._run_policies(conversation, data)
        return output

    async def _read_input(self, request: Any) -> TurnInput:
        agent, context, model_data = request.agent, request.context, request.model_data
        run = RunContextWrapper(context)
        return TurnInput(
            request,
            as_prompts(model_data.instructions),
            model_data.input,
            agent_name=agent.name,
            model=model_in(agent, agent.model),
            tools=SCHEMAS.of([*await agent.get_all_tools(run), *await get_handoffs(agent, run)]),
            client=agent.model,
            dependencies={} if context is None else {type(context): context},
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        instructions = request.model_data.instructions
        if prompts != turn_input.prompts:
            instructions = "\n\n".join(prompts) or None
        record_output(lambda: (as_prompts(instructions), messages))
        return ModelInputData(input=messages, instructions=instructions)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Pass the model's response to the observers, and prevent its tool calls if the conversation is halted.

        Raises:
            HaltedError: The conversation is halted, and the response contains tool calls.
        """
        conversation = self._conversation_of(context.context)
        conversation.answers = answers = response.to_input_items()
        await conversation.show([*conversation.items, *answers])
        if any(describe(item).opens for item in answers):
            conversation.raise_if_halted()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Prevent a tool call if the conversation is halted.

        Raises:
            HaltedError: The conversation is halted.
        """
        self._conversation_of(context.context).raise_if_halted()

    def _conversation_of(self, context: Any, items: Sequence[Any] | None = None) -> _Conversation:
        """Return the conversation of a run.

        Without an id, it is the conversation in the SDK's current trace whose last model call the items continue, or
        else a new one.

        Args:
            context: The run's context.
            items: The items of the model call that begins; None after that call.

        Raises:
            HaltedError: A conversation without an id in the current trace is halted.
        """
        setting = self._conversation_setting
        conversation_id = setting(context) if callable(setting) else setting
        if conversation_id is not None:
            conversation = self._conversation(conversation_id)
        elif items is None:
            current = _CURRENT.get()
            return current[1] if current is not None and current[0] is self else self._begin(None)
        else:
            in_trace = self._unnamed_conversations.get_or_create(get_current_trace(), lambda _: [])
            for candidate in in_trace:
                candidate.raise_if_halted()
            # Runs with equal inputs are distinguished by the model's response. Of equal ones, the first is taken.
            found = [(common, -index) for index, old in enumerate(in_trace) if (common := old.continuation(items))]
            if found:
                conversation = in_trace[-max(found)[1]]
            else:
                in_trace.append(conversation := self._begin(None))
            _CURRENT.set((self, conversation))
        if items is not None:
            conversation.items, conversation.answers = items, ()
        return conversation
