"""Token counting with a model client's own ``count_tokens`` method, cached by message."""

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

#: The most messages whose counts are cached. A state that is loaded again needs no new counts.
_REMEMBERED: Final = 16_384


class CountingClient(Protocol):
    """An object that counts tokens, such as AutoGen's model clients.

    It can also have a method ``remaining_tokens`` with the same arguments. It returns the tokens that are left in the
    model's context window after these messages.
    """

    def count_tokens(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> int:
        """Return the tokens of a prompt with these messages."""


def counted(count: Any, messages: Sequence[Any], tools: Sequence[Any]) -> int:
    """Call a client's counting method, without the argument `tools` if there are no tools."""
    return int(count(messages, tools=tools) if tools else count(messages))


class _Said(NamedTuple):
    """The parts of a message that a client counts."""

    kind: str
    name: str
    texts: tuple[str, ...]
    calls: tuple[tuple[str, str, str], ...] = ()
    closes: tuple[str, ...] = ()


class ClientCounter:
    """A counter that uses a model client.

    The tokens of a message are the count of a prompt with this message minus the count of an empty prompt. They include
    the client's framing. The client counts new messages that are built from `EventFacts`. Images are not included: they
    count as `EventFacts.media_tokens`.

    Args:
        client: The client.

    Attributes:
        types: The types of messages that the client accepts.
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
        """The tokens of an empty prompt."""
        if self._none is None:
            self._none = counted(self.client.count_tokens, [], ())
        return self._none

    def count(self, text: str) -> int:
        """Return the tokens of a text, without framing."""
        empty = self._counted(_Said(EventKind.REQUEST, "user", ("",)))
        return max(0, self._counted(_Said(EventKind.REQUEST, "user", (text,))) - empty)

    def message(self, facts: EventFacts) -> int:
        """Return the tokens of a message, including framing."""
        return self._counted(_said(facts))

    def prompt(self, text: str) -> int:
        """Return the tokens of a system message, including framing."""
        return self._counted(_Said(EventKind.SYSTEM, "", (text,)))

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of tool definitions."""
        return max(0, counted(self.client.count_tokens, [], list(schemas)) - self.priming)

    def window(self) -> int:
        """Return the most tokens of a prompt, by the client's ``remaining_tokens``.

        Raises:
            ConfigurationError: The client returns a number below 1.
        """
        most = counted(self.remaining, [], ()) + self.priming
        if most < 1:
            raise ConfigurationError(f"{self.name} says that {most} tokens are left for any prompt; give token_limit")
        return most

    @property
    def remaining(self) -> Any:
        """The client's method ``remaining_tokens``."""
        return self.client.remaining_tokens  # type: ignore[attr-defined]  # not every client has it

    def _count(self, said: _Said) -> int:
        message = self._made(said)
        return max(0, counted(self.client.count_tokens, [message], ()) - self.priming)

    def made(self, event: Any) -> Any:
        """Return an event as a message that the client accepts; the event itself if it has one of these types."""
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
    """A meter that counts whole messages with the client."""

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
    """An assembler that counts tokens with a model client.

    Args:
        policies: The policies, in order.
        client: The client's counter.
        recorder: The recorder, as for `Assembler`.
    """

    def __init__(
        self, policies: Sequence[DecidingPolicy], client: ClientCounter, *, recorder: Recorder | None = None
    ) -> None:
        super().__init__(policies, counter=client, recorder=recorder)

    def _new_meter(self, counter: TokenCounter, client: ClientRules) -> TokenMeter:
        return _ClientMeter(counter) if isinstance(counter, ClientCounter) else super()._new_meter(counter, client)


class ClientBudgetPolicy(DecidingPolicy):
    """A `TokenBudgetPolicy` whose limit comes from a model client, which is called once, at the first use.

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
        """The policy with the client's limit.

        Raises:
            ConfigurationError: The client returns no valid limit.
        """
        if self._budget is None:
            self._budget = TokenBudgetPolicy(self._client.window())
        return self._budget

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings of the policy."""
        return self.budget.config

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that fit the budget.

        Raises:
            ContextOverflowError: The messages that must be kept exceed the budget, as for `TokenBudgetPolicy`.
            ConfigurationError: The client returns no valid limit.
        """
        return await self.budget.decide(prompts, events, context)
