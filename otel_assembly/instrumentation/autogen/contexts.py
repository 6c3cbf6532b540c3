"""AutoGen's model contexts, safe by default, on AutoGen's own base and with its own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import autogen_core
from autogen_core import ComponentModel, models
from autogen_core.model_context import ChatCompletionContextState
from autogen_core.models import ChatCompletionClient, LLMMessage
from pydantic import BaseModel

from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError
from otel_assembly.history import History
from otel_assembly.instrumentation.autogen.plugin import AssembledChatCompletionContext
from otel_assembly.model_context.component import INSIDE_AUTOGEN, Provider, config_as, named_in, provider_of
from otel_assembly.model_context.message_types import autogens
from otel_assembly.model_context.shapes import (
    BufferedFields,
    BufferedShape,
    HeadAndTailFields,
    HeadAndTailShape,
    Shape,
    TokenLimitedFields,
    TokenLimitedShape,
    UnboundedShape,
)
from otel_assembly.model_context.state import read_form, read_state
from otel_assembly.recorder import NullRecorder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.assembler import Assembler


class _InitialMessages(BaseModel):
    initial_messages: list[LLMMessage] | None = None
    compat: bool = False


class UnboundedChatCompletionContextConfig(_InitialMessages):
    """What `UnboundedChatCompletionContext` is dumped as."""


class BufferedChatCompletionContextConfig(BufferedFields, _InitialMessages):
    """What `BufferedChatCompletionContext` is dumped as."""


class HeadAndTailChatCompletionContextConfig(HeadAndTailFields, _InitialMessages):
    """What `HeadAndTailChatCompletionContext` is dumped as."""


class TokenLimitedChatCompletionContextConfig(TokenLimitedFields, _InitialMessages):
    """What `TokenLimitedChatCompletionContext` is dumped as."""

    model_client: ComponentModel | None = None


class _InAutoGen(Shape, AssembledChatCompletionContext):
    """A context of the table as a plug-in of AutoGen's."""

    types = autogens(models, autogen_core)

    def _start(self, initial_messages: Sequence[Any] | None) -> None:
        initial = None if initial_messages is None else list(initial_messages)
        AssembledChatCompletionContext.__init__(
            self, self._assembler(), initial_messages=initial, tools=getattr(self, "_tool_schema", ())
        )
        self._talk.delivers = False  # its policies read no alerts
        self._log = History()
        self._quietly: Assembler | None = None

    async def get_messages(self) -> list[LLMMessage]:
        """See `AssembledChatCompletionContext`; with ``compat=True`` a client's own error is raised, as by AutoGen."""
        with self._failing():
            return await super().get_messages()

    def _held(self) -> Sequence[LLMMessage]:
        return self._history()

    async def _for_memory(self) -> list[LLMMessage]:
        if self._quietly is None:
            self._quietly = self._assembler(NullRecorder())
        assembly = await self._quietly.assemble(self._prompts, self._history(), Context(tools=self._tools))
        return self._given(assembly.events)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Hold the messages of a state, of any context of ours or AutoGen's, instead of those that are here.

        Args:
            state: What `save_state` returned, or an agent's state that has it as ``llm_context``.

        Raises:
            ConfigurationError: It is no such state; the messages that are here stay.
        """
        self._messages = read_state(ChatCompletionContextState, state).messages
        self._log = History()

    async def clear(self) -> None:
        """Take all messages out; the initial ones do not come back."""
        await super().clear()
        self._log = History()

    def dump_component(self, *, provider: Provider = "otel_assembly") -> ComponentModel:
        """The configuration by which `load_component` makes the same context anew, with its initial messages.

        Args:
            provider: ``autogen`` for one that AutoGen makes its own context of.

        Raises:
            ConfigurationError: No configuration stands for it.
        """
        dumped = super().dump_component()
        dumped.provider = provider_of(type(self), CONTEXTS, provider)
        dumped.config = config_as(dumped.config, provider)
        return dumped

    @classmethod
    def load_component(cls, model: ComponentModel | dict[str, Any], expected: type[Any] | None = None) -> Any:
        """The context that a configuration stands for, ours or AutoGen's; any other component as AutoGen loads it.

        Raises:
            ConfigurationError: The configuration is none of that context's, or the context is of another class.
        """
        given = ComponentModel(**model) if isinstance(model, dict) else model
        kind = named_in(CONTEXTS, given.provider)
        if kind is None:
            return super().load_component(given) if expected is None else super().load_component(given, expected)
        if not issubclass(kind, expected or cls):
            found = f"{given.provider!r} is no {(expected or cls).__name__}"
            raise ConfigurationError(f"component.provider: {found}; load it with its own class")
        config = read_form(kind.component_config_schema, given.config, "component.config")
        return kind._from_config(config)  # noqa: SLF001  # of this table


class UnboundedChatCompletionContext(UnboundedShape, _InAutoGen):
    __doc__ = UnboundedShape.__doc__
    component_provider_override = f"{INSIDE_AUTOGEN}.UnboundedChatCompletionContext"
    component_config_schema = UnboundedChatCompletionContextConfig  # type: ignore[assignment]


class BufferedChatCompletionContext(BufferedShape, _InAutoGen):
    __doc__ = BufferedShape.__doc__
    component_provider_override = f"{INSIDE_AUTOGEN}.BufferedChatCompletionContext"
    component_config_schema = BufferedChatCompletionContextConfig  # type: ignore[assignment]


class HeadAndTailChatCompletionContext(HeadAndTailShape, _InAutoGen):
    __doc__ = HeadAndTailShape.__doc__
    component_provider_override = f"{INSIDE_AUTOGEN}.HeadAndTailChatCompletionContext"
    component_config_schema = HeadAndTailChatCompletionContextConfig  # type: ignore[assignment]


class TokenLimitedChatCompletionContext(TokenLimitedShape, _InAutoGen):
    __doc__ = TokenLimitedShape.__doc__
    component_provider_override = f"{INSIDE_AUTOGEN}.TokenLimitedChatCompletionContext"
    component_config_schema = TokenLimitedChatCompletionContextConfig  # type: ignore[assignment]

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        settings = {name: getattr(config, name) for name in type(config).model_fields}
        if config.model_client is not None:
            settings["model_client"] = ChatCompletionClient.load_component(config.model_client)
        return cls(**settings)


#: The contexts by their names.
CONTEXTS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        UnboundedChatCompletionContext,
        BufferedChatCompletionContext,
        HeadAndTailChatCompletionContext,
        TokenLimitedChatCompletionContext,
    )
}
