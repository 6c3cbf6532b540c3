"""`Context`: what a policy may ask of the run."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Protocol, Self

from otel_assembly._internal.arguments import instance, objects, share
from otel_assembly.conversation_state import RUNNING, Conversation, HaltGuard, Running, Whose, conversation_of_id
from otel_assembly.messages.provider_rules import NO_RULES, rules_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import Token

    from otel_assembly.budget.attempt import Watch
    from otel_assembly.events import HaltEvent
    from otel_assembly.history.view import View
    from otel_assembly.messages.provider_rules import ClientRules, ProviderRules
    from otel_assembly.tokens import TokenMeter


class EventSink(Protocol):
    """Where events are sent: our `Stream`, or a framework's.

    It may have ``listens(event_type) -> bool`` too: an event of a type that it does not listen to is not worked out.
    """

    async def send(self, event: Any) -> None:
        """Put the event on the stream."""
        ...


def listens(stream: EventSink, event_type: type) -> bool:
    """Whether anybody may listen to events of a type on a stream."""
    asked: Callable[[type], bool] | None = getattr(stream, "listens", None)
    return True if asked is None else bool(asked(event_type))


class Context:
    """What a policy may ask of the run; one object may serve all turns of a conversation.

    Args:
        conversation_id: The run's real conversation id, if it has one; never made up.
        agent_name: The agent's name, for telemetry.
        model: The model that will be called; decides the tokenizer where the `Assembler` names none.
        framework: The framework that the agent is written on, for telemetry.
        tools: The schemas of the tools offered to the model; they take tokens of every prompt.
        dependencies: Objects by type, such as a `KnowledgeStore`.
        variables: Free values of the application.
        stream: Where `send` puts events; without one, only a halt has an effect.
        budget_ratio: The share of their budgets that policies hold, above 0 and at most 1: after a provider has found
            a prompt too long that was within them, one more assembly with less.
        provider: The provider that will be called, such as ``anthropic``, ``aws.bedrock`` or ``gcp.gemini`` (the names
            of ``gen_ai.provider.name``): reducers obey its rules, such as which role comes first. If None, the form of
            the messages states it, else the model's name.

    Raises:
        ConfigurationError: `budget_ratio` is no such share, or a class stands where an instance is meant.
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
        self.conversation_id = conversation_id
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
        self._emitted: list[HaltEvent] = []
        #: What the client that will be called adds to messages; None if only the model's name is known.
        self.client: ClientRules | None = None
        self._watch: Callable[[str], Watch] | None = None
        self._began: int | None = None
        self._rules: ProviderRules | None = None
        #: What came in to the assembly that this context is for; None outside of one.
        self.input: View | None = None
        self._present()

    @property
    def began(self) -> int:
        """When this assembly began, by what its conversation counts deliveries of alerts by; outside of one, now."""
        return self._began if self._began is not None else self.conversation.deliveries.now

    @property
    def conversation(self) -> Conversation:
        """The state that all turns of this conversation share."""
        if self._conversation is None:
            self._conversation = conversation_of_id(self.conversation_id) if self.conversation_id else Conversation()
            self._present()
        return self._conversation

    def _present(self) -> None:
        """Let the guard know who asks: a halt that comes from elsewhere is reported as that agent's."""
        if self._conversation is not None:
            self._conversation.guard.whose = self.whose

    @property
    def whose(self) -> Whose:
        """Whose run it is, as far as that is known."""
        return Whose(self.agent_name, self.framework, self.conversation_id)

    @property
    def guard(self) -> HaltGuard:
        """Ask it (``guard.check()``) before every model call and every tool call."""
        return self.conversation.guard

    @property
    def meter(self) -> TokenMeter:
        """What counts tokens in this assembly; outside of one, the default tokenizer of `model`."""
        if self._meter is None:
            from otel_assembly.tokens import TokenMeter, counter_for  # a vocabulary, only where it is needed

            self._meter = TokenMeter(counter_for(self.model))
        return self._meter

    def provider_rules(self, form: str = "") -> ProviderRules:
        """Return the rules of the provider that will be called.

        Args:
            form: The provider whose message form the events have (`EventFacts.provider`). Within an assembly, that of
                its input is taken instead.
        """
        if self._rules is not None:
            return self._rules
        if self.input is not None:  # read once asked for: a prompt built from blocks reads no history
            self._rules = rules_for(self.provider, self.input.history.provider, self.model)
            return self._rules
        if not (self.provider or form or self.model):
            return NO_RULES
        return rules_for(self.provider, form, self.model)

    def held(self, budget: int) -> int:
        """What is held of a budget of so many tokens in this assembly: its `budget_ratio`, rounded down, at least 1."""
        return budget if self.budget_ratio == 1 else max(1, math.floor(budget * self.budget_ratio + 1e-9))

    def with_budget_ratio(self, budget_ratio: float) -> Self:
        """This context for an assembly that holds another share of its budgets; the conversation is the same.

        Args:
            budget_ratio: The share.

        Raises:
            ConfigurationError: It is not above 0 and at most 1.
        """
        own = copy.copy(self)
        own.budget_ratio = share("budget_ratio", budget_ratio)
        return own

    def __copy__(self) -> Self:
        own = object.__new__(type(self))
        own.__dict__.update(self.__dict__)
        return own

    async def send(self, event: Any) -> None:
        """Put an event on the stream; a FATAL alert or a halt closes the guard before anybody else sees it."""
        halt = self.guard.observe(event, self.whose)
        try:
            if self.stream is not None:
                await self.stream.send(event)
        finally:
            if halt is not None:
                await self.halt(halt)

    def adopt(self, conversation: Conversation) -> None:
        """Let a `History` say which conversation this is, where neither a stream nor an id did."""
        if self._conversation is None and self.conversation_id is None:
            self._conversation = conversation
            self._present()

    def when_done(
        self, *, success: Callable[[], None] | None = None, failure: Callable[[], None] | None = None
    ) -> None:
        """What to do once this assembly has come to its end: keep what a policy took upon itself, or give it back."""
        if success is not None:
            self._on_success.append(success)
        if failure is not None:
            self._on_failure.append(failure)

    async def halt(self, event: Any) -> None:
        """Emit a `HaltEvent` that the guard asked for."""
        if self.stream is not None:
            await self.stream.send(event)

    def watch(self, kind: str) -> Watch | None:
        """What stands around attempts to compact something of this kind; None where no provider is configured."""
        return self._watch(kind) if self._watch is not None else None

    @property
    def listening(self) -> bool:
        """Whether a recorder records this assembly, so that details are worth working out."""
        return self._watch is not None

    @property
    def halts_emitted(self) -> int:
        """How many `HaltEvent`s this assembly brought about: its policies, and the observers that learned of it."""
        return len(self._emitted)

    def begin(self, guards: Sequence[HaltGuard]) -> Token[Running | None]:
        """This assembly runs from here on and heeds these guards: what halts in it is its halt."""
        return RUNNING.set(Running(guards, self._emitted))

    def end(self, token: Token[Running | None]) -> None:
        """This assembly has run."""
        try:  # noqa: SIM105  # suppress() would cost more than the rest
            RUNNING.reset(token)
        except ValueError:  # a coroutine that nobody awaited to its end is closed in another context
            pass

    def for_assembly(
        self,
        meter: TokenMeter,
        watch: Callable[[str], Watch] | None = None,
        given: View | None = None,
        model: str | None = None,
        rules: ProviderRules | None = None,
    ) -> Self:
        """Return this context as one assembly sees it, with callbacks and counts of its own.

        Args:
            meter: Counts tokens.
            watch: Stands around attempts to compact.
            given: The assembly's input.
            model: The model that will be called, if the assembler names one.
            rules: The provider's rules, if they are known from elsewhere.
        """
        conversation = self.conversation
        self._present()
        own = object.__new__(type(self))
        own.__dict__.update(self.__dict__)
        own._conversation = conversation  # a copy of ourselves
        own._meter = meter
        own._on_success, own._on_failure, own._emitted = [], [], []
        own._watch = watch
        own._began = conversation.deliveries.now
        own.input = given
        own.model = model if model is not None else self.model
        own._rules = rules
        return own

    def done(self, *, succeeded: bool) -> None:
        """Run what `when_done` was given."""
        for callback in self._on_success if succeeded else self._on_failure:
            callback()
        self._on_success.clear()
        self._on_failure.clear()
