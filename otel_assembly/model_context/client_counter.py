"""Token counting with a model client's own ``count_tokens`` method; counts are cached by message content."""

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

#: The most messages whose counts are cached. The key is the content, so the messages of a loaded state are found too.
_CACHE_SIZE: Final = 16_384


class CountingClient(Protocol):
    """An object that counts tokens, such as AutoGen's model clients.

    A client can also have a method ``remaining_tokens`` with the same arguments, which returns the number of tokens
    that are left in the model's context window after these messages.
    """

    def count_tokens(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> int:
        """Return the number of tokens of a prompt with these messages."""


def call_counter(count: Any, messages: Sequence[Any], tools: Sequence[Any]) -> int:
    """Call a client's counting method; the argument `tools` is omitted if there are no tools."""
    return int(count(messages, tools=tools) if tools else count(messages))


class _Content(NamedTuple):
    """The content of a message that a client counts, as a cache key."""

    kind: str
    name: str
    texts: tuple[str, ...]
    #: The id, the arguments and the tool's name of each call.
    calls: tuple[tuple[str, str, str], ...] = ()
    #: The ids of the calls that the message contains results of.
    closes: tuple[str, ...] = ()


class ClientCounter:
    """A token counter that uses a model client's ``count_tokens`` method.

    The tokens of a message are the count of a prompt with only this message, minus the count of an empty prompt. They
    include the tokens that the client adds for each message. The client receives a message of its own type, which is
    built from the `EventFacts` of the original. Images are not passed to the client: they count as
    `EventFacts.media_tokens`.

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
        self._empty_prompt_tokens: int | None = None
        self._cached_count = lru_cache(maxsize=_CACHE_SIZE)(self._count)

    @property
    def priming(self) -> int:
        """The tokens of an empty prompt."""
        if self._empty_prompt_tokens is None:
            self._empty_prompt_tokens = call_counter(self.client.count_tokens, [], ())
        return self._empty_prompt_tokens

    def count(self, text: str) -> int:
        """Return the tokens of a text, without those that the client adds for a message."""
        empty = self._cached_count(_Content(EventKind.REQUEST, "user", ("",)))
        return max(0, self._cached_count(_Content(EventKind.REQUEST, "user", (text,))) - empty)

    def message(self, facts: EventFacts) -> int:
        """Return the tokens of a message, including those that the client adds for each message."""
        return self._cached_count(_content_of(facts))

    def prompt(self, text: str) -> int:
        """Return the tokens of a system message, including those that the client adds for each message."""
        return self._cached_count(_Content(EventKind.SYSTEM, "", (text,)))

    def tools(self, schemas: Sequence[Mapping[str, Any]]) -> int:
        """Return the tokens of tool definitions."""
        return max(0, call_counter(self.client.count_tokens, [], list(schemas)) - self.priming)

    def window(self) -> int:
        """Return the most tokens that a prompt can have, calculated with the client's ``remaining_tokens``.

        Raises:
            ConfigurationError: The client returns a number below 1.
        """
        max_tokens = call_counter(self.remaining, [], ()) + self.priming
        if max_tokens < 1:
            raise ConfigurationError(
                f"remaining_tokens() of {self.name} leaves {max_tokens} tokens for a prompt; give token_limit"
            )
        return max_tokens

    @property
    def remaining(self) -> Any:
        """The client's bound method ``remaining_tokens``."""
        return self.client.remaining_tokens  # type: ignore[attr-defined]  # not every client has it

    def _count(self, content: _Content) -> int:
        message = self._new_message(content)
        return max(0, call_counter(self.client.count_tokens, [message], ()) - self.priming)

    def as_client_message(self, event: Any) -> Any:
        """Return the event as a message that the client accepts; the event itself if its class is accepted."""
        types = self.types
        if isinstance(event, types.system | types.user | types.assistant | types.results):
            return event
        return self._new_message(_content_of(describe(event)))

    def _new_message(self, content: _Content) -> Any:
        types, (kind, name, texts, calls, closes) = self.types, content
        if kind == EventKind.SYSTEM:
            return types.system(content=texts[0])
        if calls:
            requested = [types.call(id=call_id, arguments=arguments, name=tool) for call_id, arguments, tool in calls]
            return types.assistant(content=requested, thought=texts[0] or None, source="assistant")
        if kind == EventKind.RESPONSE:
            return types.assistant(content=texts[0], source="assistant")
        if kind == EventKind.TOOL_RESULT:
            results = [
                types.result(content=text, name="", call_id=call_id, is_error=None)
                for call_id, text in zip(closes, texts, strict=False)
            ]
            return types.results(content=results)
        return types.user(content=texts[0] if len(texts) == 1 else list(texts), source=name or "user")


def _content_of(facts: EventFacts) -> _Content:
    calls = tuple((call.id, call.arguments, call.name) for call in facts.calls)
    return _Content(facts.kind, facts.name, (facts.text, *facts.fields), calls, tuple(facts.closes))


class _ClientMeter(TokenMeter):
    """A `TokenMeter` that lets the client count whole messages instead of their texts."""

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
    """An assembler that counts tokens with the token counting of a model client.

    Args:
        policies: The policies, in order.
        client: Counts tokens with the model client.
        recorder: The recorder, as for `Assembler`.
    """

    def __init__(
        self, policies: Sequence[DecidingPolicy], client: ClientCounter, *, recorder: Recorder | None = None
    ) -> None:
        super().__init__(policies, counter=client, recorder=recorder)

    def _new_meter(self, counter: TokenCounter, rules: ClientRules) -> TokenMeter:
        return _ClientMeter(counter) if isinstance(counter, ClientCounter) else super()._new_meter(counter, rules)


class ClientBudgetPolicy(DecidingPolicy):
    """A `TokenBudgetPolicy` whose limit is a model client's context window.

    The client is asked for the limit once, when the policy is first used.

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
        """The `TokenBudgetPolicy` with the client's limit.

        Raises:
            ConfigurationError: The client returns no valid limit.
        """
        if self._budget is None:
            self._budget = TokenBudgetPolicy(self._client.window())
        return self._budget

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings of the policy, for telemetry."""
        return self.budget.config

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that fit the budget, and verdicts for the dropped ones.

        Raises:
            ContextOverflowError: The messages that must be kept exceed the budget, as for `TokenBudgetPolicy`.
            ConfigurationError: The client returns no valid limit.
        """
        return await self.budget.decide(prompts, events, context)
