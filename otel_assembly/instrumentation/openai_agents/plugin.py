"""`AssemblyInputFilter`, the plug-in for the OpenAI Agents SDK: runs a policy chain before each model call of a run.

It is a ``call_model_input_filter``, and a `RunHooks` with ``on_llm_end`` and ``on_tool_start``.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Unpack

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
from otel_assembly.instrumentation.plugin import Plugin, PluginConversation, PluginSettings, TurnInput, record_output
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.policies.base import AssemblyPolicy


class _HaltedToolError(HaltedError, AgentsException):
    """A halt that is raised during a turn: an `AgentsException`, because the SDK replaces other errors of tools."""


class ItemConversation(PluginConversation):
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
        """Pass to the observers the events that are new to them; if several events are equal, each is passed once."""
        counts: Counter[int] = Counter()
        for event in events if self._plugin._observers else ():  # noqa: SLF001  # a plug-in and its conversation
            facts = describe(event)
            content = hash((facts.kind, facts.id, facts.texts, *facts.opens, *facts.closes))
            counts[content] += 1
            if counts[content] > self._shown_counts[content]:
                self._shown_counts[content] = counts[content]
                await self.stream.show(event)

    def raise_if_halted(self) -> None:
        halt = self.context.guard.halt
        if halt is not None:
            raise _HaltedToolError(halt.reason, halt.source)


def _continued(conversations: Sequence[ItemConversation], items: Sequence[Any]) -> ItemConversation | None:
    """Return the conversation whose last model call the items continue; None if there is none.

    The longest is chosen. Runs with equal inputs are distinguished by the model's response that follows the input.

    Raises:
        HaltedError: One of the conversations is halted.
    """
    found: dict[ItemConversation, tuple[int, bool]] = {}
    for conversation in conversations:
        conversation.raise_if_halted()
        length, answers = len(conversation.items), list(conversation.answers)
        if length < len(items) and list(items[:length]) == list(conversation.items):
            is_answered = bool(answers) and list(items[length : length + len(answers)]) == answers
            found[conversation] = length, is_answered
    return max(found, key=found.__getitem__, default=None)


#: The plug-in that last ran in this context, and its conversation, for the hooks of a run without an id.
_CURRENT: Final[ContextVar[tuple[Any, ItemConversation] | None]] = ContextVar("otel_assembly_agents", default=None)


class AssemblyInputFilter(Plugin[ItemConversation], RunHooks[Any]):
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
            other's items are one conversation.
        settings: The other arguments of `Plugin`.
    """

    _framework = "openai_agents"
    _message_types = (dict, BaseModel)
    _conversation_type = ItemConversation

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        conversation: str | Callable[[Any], str | None] | None = None,
        **settings: Unpack[PluginSettings],
    ) -> None:
        super().__init__(policies, **settings)
        self._conversation_setting = conversation
        #: The conversations without an id, by the SDK's trace of their runs.
        self._conversations_by_trace: IdentityWeakMap[list[ItemConversation]] = IdentityWeakMap()

    async def __call__(self, data: Any) -> ModelInputData:
        """Run the policy chain on the items of a model call, and return the items and instructions to send.

        Raises:
            HaltedError: The conversation is halted.
            ContextOverflowError: Content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised an exception.
        """
        items, conversation = data.model_data.input, self._conversation_with_id(data.context)
        if conversation is None:
            conversations = self._conversations_by_trace.get_or_create(get_current_trace(), lambda _: [])
            conversation = _continued(conversations, items)
            if conversation is None:
                conversations.append(conversation := self._begin(None))
            _CURRENT.set((self, conversation))
        conversation.items, conversation.answers = items, ()
        output: ModelInputData = await self._run_policies(conversation, data)
        return output

    async def _read_input(self, request: Any) -> TurnInput:
        """Read the input from a `CallModelData`."""
        agent, context, run = request.agent, request.context, RunContextWrapper(request.context)
        return TurnInput(
            framework_object=request,
            prompts=as_prompts(request.model_data.instructions),
            messages=request.model_data.input,
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
        """Pass a response to the observers; raise `HaltedError` if it has tool calls in a halted conversation."""
        conversation = self._conversation_of(context)
        conversation.answers = answers = response.to_input_items()
        await conversation.show([*conversation.items, *answers])
        if any(describe(item).opens for item in answers):
            conversation.raise_if_halted()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Raise `HaltedError` instead of calling a tool if the conversation is halted."""
        self._conversation_of(context).raise_if_halted()

    def _conversation_of(self, run: Any) -> ItemConversation:
        """Return the conversation of the run that calls a hook; a new one if no model was called in it."""
        current = _CURRENT.get()
        without_id = current[1] if current is not None and current[0] is self else None
        return self._conversation_with_id(run.context) or without_id or self._begin(None)

    def _conversation_with_id(self, context: Any) -> ItemConversation | None:
        setting = self._conversation_setting
        conversation_id = setting(context) if callable(setting) else setting
        return None if conversation_id is None else self._conversation(conversation_id)
