"""A model's client as what counts: its own numbers, message by message, remembered."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.model_context.message_types import types_of
from otel_assembly.policies.base import DecidingPolicy, PolicyLimit
from otel_assembly.policies.token_budget import TokenBudgetPolicy
from otel_assembly.tokens import TokenMeter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import ClassVar

    from otel_assembly.context import Context
    from otel_assembly.decision import Outcome
    from otel_assembly.messages.event_facts import EventFacts
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.recorder import Recorder
    from otel_assembly.tokens import TokenCounter

#: So many messages' counts are remembered, so that a state that is loaded again is not counted again.
_REMEMBERED: Final = 16_384


class CountingClient(Protocol):
    """What counts for a context: any object that has this method; AutoGen's model clients do.

    It may have ``remaining_tokens``, with the same arguments: how many tokens the model has left beside these messages.
    """

    def count_tokens(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> int:
        """How many tokens a prompt of these messages takes."""


def counted(count: Any, messages: Sequence[Any], tools: Sequence[Any]) -> int:
    """What a client's method says of messages; tools are named only where there are some."""
    return int(count(messages, tools=tools) if tools else count(messages))


class _Said(NamedTuple):
    """What a message says, as far as a client counts it."""

    kind: str
    name: str
    texts: tuple[str, ...]
    calls: tuple[tuple[str, str, str], ...] = ()
    closes: tuple[str, ...] = ()


class ClientCounter:
    """Counts as a model's client does.

    What a message takes is what the client counts of a prompt with that message more than of one with none, so that its
    own framing is in it. Messages are made anew of what the engine knows of them; of images that is their number.

    Args:
        client: The client.

    Attributes:
        types: The types of the messages that it knows.
    """

    method: Literal["estimated"] = "estimated"
    generation: int = 0

    def __init__(self, client: CountingClient) -> None:
        self.client = client
        self.name = type(client).__name__
        self.types = types_of(client)
        self._none: int | None = None
        self._counted = lru_cache(maxsize=_REMEMBERED)(self._count)

    @property
    def priming(self) -> int:
        """What a prompt of no messages takes."""
        if self._none is None:
            self._none = counted(self.client.count_tokens, [], ())
        return self._none

    def count(self, text: str) -> int:
        """The tokens of a text, without what stands around it."""
        empty = self._counted(_Said(EventKind.REQUEST, "user", ("",)))
        return max(0, self._counted(_Said(EventKind.REQUEST, "user", (text,))) - empty)

    def message(self, facts: EventFacts) -> int:
        """The tokens of a message, with all that the client adds to it."""
        return self._counted(_said(facts))

    def prompt(self, text: str) -> int:
        """The tokens of a system message."""
        return self._counted(_Said(EventKind.SYSTEM, "", (text,)))

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """The tokens of tool definitions."""
        return max(0, counted(self.client.count_tokens, [], list(schemas)) - self.priming)

    def window(self) -> int:
        """How many tokens the client says that a prompt may take.

        Raises:
            ConfigurationError: It does not say.
        """
        most = counted(self.remaining, [], ()) + self.priming
        if most < 1:
            raise ConfigurationError(f"{self.name} says that {most} tokens are left for any prompt; give token_limit")
        return most

    @property
    def remaining(self) -> Any:
        """The client's method that says how many tokens are left."""
        return self.client.remaining_tokens  # type: ignore[attr-defined]  # not every client has it

    def _count(self, said: _Said) -> int:
        message = self._made(said)
        return max(0, counted(self.client.count_tokens, [message], ()) - self.priming)

    def made(self, event: Any) -> Any:
        """A message as the client knows it: the same object where it is one, else one that says the same."""
        types = self.types
        if isinstance(event, types.system | types.user | types.assistant | types.results):
            return event
        return self._made(_said(describe(event)))

    def _made(self, said: _Said) -> Any:
        types, (kind, name, texts, calls, closes) = self.types, said
        if kind == EventKind.SYSTEM:
            return types.system(content=texts[0])
        if calls:
            asked = [types.call(id=one, arguments=arguments, name=tool) for one, arguments, tool in calls]
            return types.assistant(content=asked, thought=texts[0] or None, source="assistant")
        if kind == EventKind.RESPONSE:
            return types.assistant(content=texts[0], source="assistant")
        if kind == EventKind.TOOL_RESULT:
            answers = zip(closes, texts, strict=False)
            results = [types.result(content=text, name="", call_id=call, is_error=None) for call, text in answers]
            return types.results(content=results)
        return types.user(content=texts[0] if len(texts) == 1 else list(texts), source=name or "user")


def _said(facts: EventFacts) -> _Said:
    calls = tuple((call.id, call.arguments, call.name) for call in facts.calls)
    return _Said(facts.kind, facts.name, (facts.text, *facts.fields), calls, tuple(facts.closes))


class _ClientMeter(TokenMeter):
    """Measures whole messages as the client counts them."""

    __slots__ = ("_client",)

    def __init__(self, client: ClientCounter) -> None:
        super().__init__(client)
        self._client = client

    @property
    def priming(self) -> int:
        return self._client.priming

    def event(self, facts: EventFacts) -> int:
        return self._client.message(facts) + facts.media_tokens if facts.rendered else 0

    def prompt(self, text: str) -> int:
        return self._client.prompt(text)

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        return self._client.tools(schemas) if schemas else 0


class ClientAssembler(Assembler):
    """An assembler that counts as a model's client does.

    Args:
        policies: The chain.
        client: What counts.
        recorder: As `Assembler` takes it.
    """

    def __init__(
        self, policies: Sequence[DecidingPolicy], client: ClientCounter, *, recorder: Recorder | None = None
    ) -> None:
        super().__init__(policies, counter=client, recorder=recorder)

    def _new_meter(self, counter: TokenCounter, client: ClientRules) -> TokenMeter:
        return _ClientMeter(counter) if isinstance(counter, ClientCounter) else super()._new_meter(counter, client)


class ClientBudgetPolicy(DecidingPolicy):
    """A `TokenBudgetPolicy` of as many tokens as a model's client says; it is asked once, when that is first needed.

    Args:
        client: The client's counter.
    """

    name: str = TokenBudgetPolicy.name
    limit: ClassVar[PolicyLimit | None] = TokenBudgetPolicy.limit
    replayable: ClassVar[bool] = True

    def __init__(self, client: ClientCounter) -> None:
        self._client = client
        self._budget: TokenBudgetPolicy | None = None

    @property
    def budget(self) -> TokenBudgetPolicy:
        """The policy that it stands for.

        Raises:
            ConfigurationError: The client does not say how many tokens there are.
        """
        if self._budget is None:
            self._budget = TokenBudgetPolicy(self._client.window())
        return self._budget

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """That policy's settings."""
        return self.budget.config

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what fits.

        Raises:
            ContextOverflowError: As `TokenBudgetPolicy` raises it.
            ConfigurationError: The client does not say how many tokens there are.
        """
        return await self.budget.decide(prompts, events, context)
