"""The plug-in for AG2: `AssembledPolicy` runs a chain of otel-assembly's policies as one policy of an AG2 agent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Unpack

from otel_assembly.errors import HaltedError
from otel_assembly.instrumentation.ag2.alerts import StreamConversation
from otel_assembly.instrumentation.ag2.conversation import config_of, invoking_agent_of, model_of, offered_schemas_of
from otel_assembly.instrumentation.ag2.messages import package_of, with_new_results
from otel_assembly.instrumentation.plugin import Plugin, PluginSettings, TurnInput
from otel_assembly.knowledge import KnowledgeStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy


class AssembledPolicy(Plugin[StreamConversation]):
    """Runs a chain of otel-assembly's policies as a policy of an AG2 agent.

    Use it as ``Agent(…, assembly=[AssembledPolicy(…)])``. The policies process AG2's own event objects. One
    `AssembledPolicy` can serve several agents and conversations.

    A FATAL alert halts the conversation for good. AG2's observers can send the alert, or your program with
    ``context_of(stream).send(…)``. In that turn and in every later one, AG2's `HaltEvent` is sent to the stream, and
    AG2 calls no model.

    If a budget cannot be met, the agent's run raises `ContextOverflowError`. The policies receive the dependencies and
    variables of AG2's context. Memory policies use the agent's knowledge store.

    Functions for `dependencies` and `variables` get AG2's context. Observers receive each event before the first
    assembly that contains it. Their alerts are sent to AG2's stream. AG2's own observers keep working: register an
    observer in one of the two places only.

    Args:
        tools: The schemas of the tools that are offered to the model; they count toward the budget. Default: the
            agent's tools. Tools that are passed to a single run are known only while AG2 is instrumented.
        agent_name: The agent's name in telemetry. Default: the agent's name in AG2.
        settings: The other arguments of `Plugin`. The `name` is also the policy's name in AG2.

    Before AG2 1.0, policies have no access to the agent. The model, the tools and the name are then known only if they
    are passed here or while AG2 is instrumented.
    """

    def __init__(
        self,
        policies: Sequence[AssemblyPolicy] | Assembler,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        agent_name: str | None = None,
        **settings: Unpack[PluginSettings],
    ) -> None:
        super().__init__(policies, **settings)
        self.name = self.assembler.name or "assembled"
        self._agent_name = agent_name
        self._tools = None if tools is None else tuple(tools)

    def context_of(self, conversation: Any) -> Context:
        """Return the context of a conversation. Use it to send alerts to the conversation, or to halt it.

        Args:
            conversation: The conversation's AG2 stream.
        """
        return self._conversation_of(conversation).context

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts and events for a model call. AG2 calls this before each one.

        If the conversation is halted, AG2's `HaltEvent` is sent to its stream and the arguments are returned unchanged.

        Raises:
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
        """
        try:
            output: tuple[list[str], list[Any]] = await self._run_policies(
                self._conversation_of(context.stream), (prompts, events, context)
            )
        except HaltedError:  # AG2 calls no model after the `HaltEvent` that is on the stream
            return prompts, events
        return output

    async def _read_input(self, request: Any) -> TurnInput:
        """Read the input from the arguments of `apply`, and from AG2's context what the arguments do not have."""
        prompts, events, context = request
        return TurnInput(
            turn=context,
            prompts=prompts,
            messages=events,
            agent_name=self._agent_name or invoking_agent_of(context).agent_name,
            model=model_of(context),
            tools=self._tools if self._tools is not None else await offered_schemas_of(context),
            client=config_of(context),
            dependencies=_dependencies(context),
            variables=context.variables,
        )

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        return prompts, with_new_results(turn_input.messages, messages)

    def _conversation_of(self, stream: Any) -> StreamConversation:
        return self._conversations_without_id.get_or_create(stream.history, lambda _: StreamConversation(self, stream))


def _dependencies(context: Any) -> dict[Any, Any]:
    """Return the dependencies of AG2's context, with AG2's knowledge store also under otel-assembly's type."""
    dependencies = dict(context.dependencies)
    knowledge = sys.modules.get(f"{package_of(context.stream.history)}.knowledge")
    store = dependencies.get(getattr(knowledge, "KnowledgeStore", None))
    return dependencies if store is None else {**dependencies, KnowledgeStore: store}
