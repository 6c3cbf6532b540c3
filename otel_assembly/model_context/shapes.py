"""Mixins with the behavior of each model context: settings, reduction of messages, token counting.

otel-assembly implements each of AutoGen's contexts twice: without AutoGen, and on AutoGen's base class. Both classes
derive from the same mixin of this module. Their other base class provides the message classes and `_start`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel

from otel_assembly._internal.arguments import whole_number
from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError, PolicyFailedError
from otel_assembly.history import History
from otel_assembly.messages.event_facts import describe
from otel_assembly.model_context.client_counter import ClientAssembler, ClientBudgetPolicy, ClientCounter
from otel_assembly.model_context.reducers import (
    BufferedAsAutoGen,
    HeadAndTailAsAutoGen,
    TokenLimitedAsAutoGen,
    Unbounded,
    UnboundedAsAutoGen,
)
from otel_assembly.policies import HeadAndTailPolicy, SlidingWindowPolicy, TokenBudgetPolicy
from otel_assembly.tokens import TokenMeter, counter_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.model_context.client_counter import CountingClient
    from otel_assembly.model_context.message_types import MessageTypes
    from otel_assembly.policies.base import DecidingPolicy
    from otel_assembly.recorder import Recorder


class Shape:
    """Base class of the mixins, which implement the settings and the reduction of one kind of model context.

    Attributes:
        types: The classes of the context's messages.
        component_config_schema: The pydantic class of the context's configuration.
        compat: True to behave exactly as AutoGen, including its bugs.
    """

    types: ClassVar[MessageTypes]
    component_config_schema: Any
    compat: bool
    _messages: list[Any]
    _initial_messages: list[Any] | None
    _log: History
    #: True if a caller received the internal list of messages and may have changed it.
    _list_is_shared: bool = False

    def _start(self, initial_messages: Sequence[Any] | None) -> None:
        """Initialize the other base class with the first messages; called after the settings are assigned."""
        raise NotImplementedError

    def _reducer(self) -> DecidingPolicy:
        """Return the policy that selects the messages for the model."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """Return the settings, by their names in the configuration."""
        return {}

    def _assembler(self, recorder: Recorder | None = None) -> Assembler:
        return Assembler([self._reducer()], recorder=recorder)

    def _history(self) -> History:
        """Return the messages as a `History`, which is rebuilt only if earlier messages were replaced or removed."""
        log, messages = self._log, self._messages
        recorded = len(log)
        edited = recorded > len(messages) or (recorded and log.events[recorded - 1] is not messages[recorded - 1])
        if not edited and self._list_is_shared:
            edited = any(event is not message for event, message in zip(log.events, messages, strict=False))
        if edited:
            log = self._log = History(messages)
        elif recorded < len(messages):
            log.extend(messages[recorded:])
        return log

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """With `compat`, raise the model client's own error instead of `PolicyFailedError`, as AutoGen does."""
        try:
            yield
        except PolicyFailedError as error:
            if self.compat and error.__cause__ is not None:
                raise error.__cause__ from None
            raise

    def _given(self, events: Sequence[Any]) -> list[Any]:
        """Return the selected messages as a new list. With `compat`, return the internal list if AutoGen does so."""
        if self.compat and self._returns_internal_list():
            self._list_is_shared = True
            return self._messages
        return list(events)

    def _returns_internal_list(self) -> bool:
        """Return True if AutoGen's context returns its internal list of messages instead of a copy."""
        return False

    def _to_config(self) -> Any:
        return self.component_config_schema(
            initial_messages=self._initial_messages, compat=self.compat, **self._settings()
        )

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        return cls(**{name: getattr(config, name) for name in type(config).model_fields})


class UnboundedShape(Shape):
    """A model context that keeps all messages. Only unpaired tool calls and results are dropped.

    Args:
        initial_messages: The first messages of the conversation.
        compat: Behave exactly as AutoGen, including its bugs.
    """

    def __init__(self, initial_messages: Sequence[Any] | None = None, *, compat: bool = False) -> None:
        self.compat = compat
        self._start(initial_messages)

    def _reducer(self) -> DecidingPolicy:
        return UnboundedAsAutoGen(self.types) if self.compat else Unbounded()

    def _returns_internal_list(self) -> bool:
        return True


class BufferedFields(BaseModel):
    """The settings of a `BufferedChatCompletionContext`; see `BufferedShape`."""

    buffer_size: int


class BufferedShape(Shape):
    """A model context that keeps the last `buffer_size` messages.

    Args:
        buffer_size: The most messages to keep.
        initial_messages: The first messages of the conversation.
        compat: Behave exactly as AutoGen, including its bugs.

    Raises:
        ConfigurationError: `buffer_size` is below 1.
    """

    def __init__(
        self, buffer_size: int, initial_messages: Sequence[Any] | None = None, *, compat: bool = False
    ) -> None:
        self.compat = compat
        self._buffer_size = _positive("buffer_size", buffer_size)
        self._start(initial_messages)

    def _reducer(self) -> DecidingPolicy:
        size = self._buffer_size
        return BufferedAsAutoGen(size, self.types) if self.compat else SlidingWindowPolicy(size)

    def _settings(self) -> dict[str, Any]:
        return {"buffer_size": self._buffer_size}


class HeadAndTailFields(BaseModel):
    """The settings of a `HeadAndTailChatCompletionContext`."""

    head_size: int
    tail_size: int


class HeadAndTailShape(Shape):
    """A model context that keeps the first `head_size` and the last `tail_size` messages.

    A note between them states how many messages were skipped.

    Args:
        head_size: The most messages to keep from the beginning.
        tail_size: The most messages to keep from the end.
        initial_messages: The first messages of the conversation.
        compat: Behave exactly as AutoGen, including its bugs.

    Raises:
        ConfigurationError: A size is below 1.
    """

    def __init__(
        self,
        head_size: int,
        tail_size: int,
        initial_messages: Sequence[Any] | None = None,
        *,
        compat: bool = False,
    ) -> None:
        self.compat = compat
        self._head_size = _positive("head_size", head_size)
        self._tail_size = _positive("tail_size", tail_size)
        self._start(initial_messages)

    def _reducer(self) -> DecidingPolicy:
        head, tail, types = self._head_size, self._tail_size, self.types
        return (
            HeadAndTailAsAutoGen(head, tail, types) if self.compat else HeadAndTailPolicy(head, tail, note=types.note)
        )

    def _returns_internal_list(self) -> bool:
        return len(self._messages) <= self._head_size + self._tail_size

    def _settings(self) -> dict[str, Any]:
        return {"head_size": self._head_size, "tail_size": self._tail_size}


class TokenLimitedFields(BaseModel):
    """The settings of a `TokenLimitedChatCompletionContext`, except its model client."""

    model: str | None = None
    token_limit: int | None = None
    tool_schema: list[dict[str, Any]] | None = None


class TokenLimitedShape(Shape):
    """A model context that keeps the newest messages, at most `token_limit` tokens. The newest request is always kept.

    Args:
        model_client: The client that counts tokens: any object with ``count_tokens(messages, *, tools)``.
        model: The name of the model whose tokenizer counts if there is no client.
        token_limit: The most tokens. None: the number of tokens that the client's ``remaining_tokens`` allows.
        tool_schema: The schemas of the tools, which count towards the limit.
        initial_messages: The first messages of the conversation.
        compat: Behave exactly as AutoGen, including its bugs.

    Raises:
        ConfigurationError: The limit is below 1 or missing, or the client has no ``count_tokens``.
    """

    def __init__(
        self,
        model_client: CountingClient | None = None,
        *,
        model: str | None = None,
        token_limit: int | None = None,
        tool_schema: Sequence[Mapping[str, Any]] | None = None,
        initial_messages: Sequence[Any] | None = None,
        compat: bool = False,
    ) -> None:
        self.compat = compat
        self._token_limit = None if token_limit is None else _positive("token_limit", token_limit)
        if model_client is not None and not callable(getattr(model_client, "count_tokens", None)):
            raise ConfigurationError(
                f"model_client is a {type(model_client).__name__}, which has no count_tokens(messages, tools=…); give "
                "a client that counts, or model= and token_limit="
            )
        if model_client is None and token_limit is None:
            raise ConfigurationError("neither token_limit nor model_client is given; give one of them as the limit")
        if token_limit is None and not callable(getattr(model_client, "remaining_tokens", None)):
            raise ConfigurationError(
                f"model_client is a {type(model_client).__name__}, which has no remaining_tokens(messages, tools=…), "
                "so there is no limit; give token_limit"
            )
        self._model_client = model_client
        self._model = model
        self._tool_schema = [dict(schema) for schema in tool_schema or ()]
        self._counter = None if model_client is None else ClientCounter(model_client)
        self._start(initial_messages)

    def _reducer(self) -> DecidingPolicy:
        counter, limit = self._counter, self._token_limit
        if self.compat:
            counter = counter or ClientCounter(_ModelClient(self._model))
            return TokenLimitedAsAutoGen(counter, limit, self._tool_schema, self.types)
        if limit is not None:
            return TokenBudgetPolicy(limit)
        if counter is None:
            raise AssertionError("a context without a limit has a client")
        return ClientBudgetPolicy(counter)

    def _assembler(self, recorder: Recorder | None = None) -> Assembler:
        if self._counter is not None:
            return ClientAssembler([self._reducer()], self._counter, recorder=recorder)
        return Assembler([self._reducer()], model=self._model, recorder=recorder)

    def _settings(self) -> dict[str, Any]:
        settings = {"token_limit": self._token_limit, "tool_schema": self._tool_schema, "model": self._model}
        client = self._model_client
        if client is None:
            return settings
        dump = getattr(client, "dump_component", None)
        if dump is None:
            raise ConfigurationError(
                f"model_client is a {type(client).__name__}, which has no dump_component(), so the context cannot "
                "be dumped; give model= and token_limit= instead"
            )
        dumped = dump()
        return {**settings, "model_client": dumped.model_dump() if isinstance(dumped, BaseModel) else dumped}


class _ModelClient:
    """A `CountingClient` that uses a model's tokenizer; used with `compat` if no client is given."""

    def __init__(self, model: str | None) -> None:
        self._meter = TokenMeter(counter_for(model))

    def count_tokens(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> int:
        meter = self._meter
        return meter.priming + meter.tools(tools) + sum(meter.event(describe(message)) for message in messages)


def _positive(setting: str, value: int) -> int:
    if type(value) is int and value <= 0:  # the wording of AutoGen's error
        raise ConfigurationError(f"{setting} must be greater than 0, got {value}")
    return whole_number(setting, value)
