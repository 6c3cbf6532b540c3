"""`Context`: the properties of a run that policies can read."""

from __future__ import annotations

import copy
import logging
import math
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from otel_assembly._internal.arguments import instance, objects, share
from otel_assembly.conversation_state import (
    AgentIdentity,
    Conversation,
    HaltGuard,
    conversation_of_id,
)
from otel_assembly.messages.provider_rules import NO_RULES, rules_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.budget.attempt import Watch
    from otel_assembly.events import HaltEvent
    from otel_assembly.history.view import View
    from otel_assembly.messages.provider_rules import ClientRules, ProviderRules
    from otel_assembly.tokens import TokenMeter


logger: Final = logging.getLogger("otel_assembly")


class EventSink(Protocol):
    """A stream that accepts events: a `Stream`, or a framework's.

    A stream may also have a method ``listens(event_type) -> bool``, which returns whether there are subscribers for a
    type of event. Events without subscribers are then not created.
    """

    async def send(self, event: Any) -> None:
        """Put the event on the stream."""
        ...


def listens(stream: EventSink, event_type: type) -> bool:
    """Return whether a stream may have subscribers for a type of event."""
    method: Callable[[type], bool] | None = getattr(stream, "listens", None)
    return True if method is None else bool(method(event_type))


class Context:
    """The properties of a run that policies can read; one object can serve all turns of a conversation.

    Args:
        conversation_id: The conversation's id in your program. Contexts with equal ids share the state of the
            conversation, such as a halt. None: no id; the state belongs to this context, its `stream` or the `History`
            that is assembled.
        agent_name: The agent's name, for telemetry; None: unknown.
        model: The model that will be called, whose tokenizer counts if the `Assembler` has no model. None: unknown.
        framework: The agent's framework, for telemetry; None: unknown.
        tools: The schemas of the tools that the model gets; each prompt's tokens include these schemas.
        dependencies: Objects by type, which policies look up, such as a `KnowledgeStore`; None for none.
        variables: Values of the application by name, for your own policies; None for none.
        stream: Receives the events that are passed to `send`. None: of these events, only those that halt the
            conversation have an effect.
        budget_ratio: The share of their budgets that policies use, above 0 and at most 1. Use less than 1 for another
            assembly after the provider refused a prompt as too long.
        provider: The provider that will be called, such as ``anthropic``, ``aws.bedrock`` or ``gcp.gemini`` (the names
            of ``gen_ai.provider.name``). Reducers follow its rules, such as the role of the first message. If None, it
            is derived from the form of the messages, else from the model's name.

    Raises:
        ConfigurationError: `budget_ratio` is not above 0 and at most 1, or an argument is a class instead of an
            instance.
    """

    def __init__(
        self,
        *,
        conversation_id: str | None = None,
        agent_name: str | None = None,
        model: str | None = None,
        framework: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        dependencies: Mapping[Any, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        stream: EventSink | None = None,
        budget_ratio: float = 1.0,
        provider: str | None = None,
    ) -> None:
        self.conversation_id = conversation_id or None
        self.provider = provider
        self.agent_name = agent_name
        self.model = model
        self.framework = framework
        self.tools = tuple(tools)
        self.dependencies = objects(dependencies or {})
        instance("stream", stream)
        self.variables: dict[str, Any] = dict(variables or {})
        self.stream = stream
        self.budget_ratio = share("budget_ratio", budget_ratio)
        stream_conversation = getattr(stream, "conversation", None)
        self._conversation: Conversation | None = (
            stream_conversation if isinstance(stream_conversation, Conversation) else None
        )
        self._meter: TokenMeter | None = None
        self._on_success: list[Callable[[], None]] = []
        self._on_failure: list[Callable[[], None]] = []
        #: The halts that the policies and observers of this assembly caused.
        self.emitted: list[HaltEvent] = []
        #: How the client that will be called formats messages; None if only the model's name is known.
        self.client: ClientRules | None = None
        self._watch: Callable[[str], Watch] | None = None
        self._alerts_shown_before: int | None = None
        self._rules: ProviderRules | None = None
        #: The input of the current assembly; None outside an assembly.
        self.input: View | None = None
        #: The context of which this one is a copy for the same conversation; None if it is no such copy.
        self._original: Context | None = None
        self._set_guard_agent()

    @property
    def original(self) -> Context:
        """The context that identifies the conversation: this one, or the one from which `with_budget_ratio` made it."""
        return self._original or self

    @property
    def alerts_shown_before(self) -> int:
        """How many times an alert was shown to the model in this conversation before this assembly started.

        Outside an assembly: how many times until now. An alert that was shown twice counts twice.
        """
        shown = self._alerts_shown_before
        return shown if shown is not None else self.conversation.deliveries.times_shown

    @property
    def conversation(self) -> Conversation:
        """The state that all turns of this conversation share: its halt and the alerts that the model was shown."""
        return self.adopt(None)

    def _set_guard_agent(self) -> None:
        """Store this run's agent in the conversation's guard, for telemetry of halts outside an assembly."""
        if self._conversation is not None:
            self._conversation.guard.identity = self.identity

    @property
    def identity(self) -> AgentIdentity:
        """The agent, framework and conversation of the run, as far as they are known."""
        return AgentIdentity(self.agent_name, self.framework, self.conversation_id)

    @property
    def guard(self) -> HaltGuard:
        """The guard to check (``guard.check()``) before each model call and each tool call."""
        return self.conversation.guard

    @property
    def meter(self) -> TokenMeter:
        """The token meter of this assembly; outside an assembly, that of the default tokenizer of `model`."""
        if self._meter is None:
            from otel_assembly.tokens import TokenMeter, counter_for  # loads a vocabulary, so only on first use

            self._meter = TokenMeter(counter_for(self.model))
        return self._meter

    def provider_rules(self, form: str = "") -> ProviderRules:
        """Return the rules of the provider that will be called.

        Args:
            form: The provider in whose message format the events are (`EventFacts.provider`); empty if the format is
                neutral. Within an assembly, this argument is ignored and the format of the assembly's input is used.
        """
        if self._rules is None and self.input is not None:  # read on first use: a prompt of blocks has no history
            self._rules = rules_for(self.provider, self.input.history.provider, self.model)
        if self._rules is not None:
            return self._rules
        return rules_for(self.provider, form, self.model) if self.provider or form or self.model else NO_RULES

    def apply_budget_ratio(self, budget: int) -> int:
        """Return the tokens of a budget that may be used: `budget_ratio` of it, rounded down, at least 1."""
        return budget if self.budget_ratio == 1 else max(1, math.floor(budget * self.budget_ratio + 1e-9))

    def with_budget_ratio(self, budget_ratio: float) -> Self:
        """Return a copy of this context, for the same conversation, with another `budget_ratio`.

        Raises:
            ConfigurationError: The ratio is not above 0 and at most 1.
        """
        context = copy.copy(self)
        context.budget_ratio = share("budget_ratio", budget_ratio)
        context._original = self.original  # noqa: SLF001  # a copy of this object
        return context

    def __copy__(self) -> Self:
        context = object.__new__(type(self))
        context.__dict__.update(self.__dict__)
        return context

    async def send(self, event: Any) -> None:
        """Send an event to the stream.

        A FATAL alert or a `HaltEvent` halts the conversation before subscribers receive the event.
        """
        halt = self.guard.observe(event, self.identity)
        try:
            if self.stream is not None:
                await self.stream.send(event)
        finally:
            if halt is not None:
                await self.halt(halt)

    def adopt(self, conversation: Conversation | None) -> Conversation:
        """Return the context's conversation: a `History`'s, unless it has an id or a stream with a conversation."""
        if self._conversation is None:
            if self._original is not None:
                conversation = self._original.adopt(conversation)
            elif self.conversation_id is not None:
                conversation = conversation_of_id(self.conversation_id)
            self._conversation = conversation if conversation is not None else Conversation()
            self._set_guard_agent()
        return self._conversation

    def when_done(
        self, *, success: Callable[[], None] | None = None, failure: Callable[[], None] | None = None
    ) -> None:
        """Register callbacks for the end of this assembly, for example to keep or release a claimed alert."""
        if success is not None:
            self._on_success.append(success)
        if failure is not None:
            self._on_failure.append(failure)

    async def halt(self, event: Any) -> None:
        """Send a `HaltEvent` to the stream, if there is one. The conversation's guard is already closed."""
        if self.stream is not None:
            await self.stream.send(event)

    def watch(self, kind: str) -> Watch | None:
        """Return an object that records attempts to compact content of a kind (an `EventKind` such as ``older``).

        None if this assembly is not recorded.
        """
        return self._watch(kind) if self._watch is not None else None

    @property
    def is_enabled(self) -> bool:
        """Whether this assembly is recorded. If not, policies need not compute details for telemetry."""
        return self._watch is not None

    def for_assembly(
        self,
        meter: TokenMeter,
        watch: Callable[[str], Watch] | None = None,
        input_view: View | None = None,
        model: str | None = None,
        rules: ProviderRules | None = None,
    ) -> Self:
        """Return a copy for one assembly, with its own callbacks and counts.

        `watch` is None if the assembly is not recorded. Without `rules`, those of the provider are derived from its
        name, the messages or the model.
        """
        conversation = self._conversation if self._conversation is not None else self.conversation
        agent = conversation.guard.identity
        identity = self.agent_name, self.framework, self.conversation_id
        if agent is None or (agent.agent_name, agent.framework, agent.conversation_id) != identity:
            self._set_guard_agent()
        context = object.__new__(type(self))
        context.__dict__.update(self.__dict__)
        context._conversation = conversation
        context._meter = meter
        context._on_success, context._on_failure, context.emitted = [], [], []
        context._watch = watch
        context._alerts_shown_before = conversation.deliveries.times_shown
        context.input = input_view
        context.model = model if model is not None else self.model
        context._rules = rules
        return context

    def done(self, *, succeeded: bool) -> None:
        """Run the callbacks that `when_done` registered for success or for failure, once; log their errors."""
        for callback in self._on_success if succeeded else self._on_failure:
            try:
                callback()
            except Exception as error:  # noqa: BLE001  # it must not hide the assembly's result or error
                logger.warning("a function that was given to Context.when_done raised %s", type(error).__name__)
        self._on_success.clear()
        self._on_failure.clear()
