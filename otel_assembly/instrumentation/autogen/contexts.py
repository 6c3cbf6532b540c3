"""The model contexts of `otel_assembly.model_context`, on AutoGen's base class and with AutoGen's messages.

By default they never separate a tool call from its results, unlike AutoGen's contexts of the same names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

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
from otel_assembly.model_context.memory import is_memory_on_stack
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
    from otel_assembly.instrumentation.plugin import TurnInput


class _InitialMessages(BaseModel):
    initial_messages: list[LLMMessage] | None = None
    compat: bool = False


class UnboundedChatCompletionContextConfig(_InitialMessages):
    """The configuration of `UnboundedChatCompletionContext`."""


class BufferedChatCompletionContextConfig(BufferedFields, _InitialMessages):
    """The configuration of `BufferedChatCompletionContext`."""


class HeadAndTailChatCompletionContextConfig(HeadAndTailFields, _InitialMessages):
    """The configuration of `HeadAndTailChatCompletionContext`."""


class TokenLimitedChatCompletionContextConfig(TokenLimitedFields, _InitialMessages):
    """The configuration of `TokenLimitedChatCompletionContext`."""

    model_client: ComponentModel | None = None


class _InAutoGen(Shape, AssembledChatCompletionContext):
    """Base class of the four contexts, which use an `Assembler` to select the messages for the model."""

    _inserts_alerts: ClassVar[bool] = False  # no policy of these contexts reads alerts
    types = autogens(models, autogen_core)

    def _start(self, initial_messages: Sequence[Any] | None) -> None:
        """Initialize the plug-in; `Shape` calls this after it has assigned the settings that the policies need."""
        initial = None if initial_messages is None else list(initial_messages)
        AssembledChatCompletionContext.__init__(
            self, self._assembler(), initial_messages=initial, tools=getattr(self, "_tool_schema", ())
        )
        self._log = History()
        self._unrecorded_assembler: Assembler | None = None

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model. Each call is recorded as an assembly.

        Calls from the ``update_context`` method of an AutoGen memory are not recorded, because no model call follows.

        Raises:
            ContextOverflowError: In a `TokenLimitedChatCompletionContext`, the newest request, or the newest tool call
                with its results, exceeds the limit. Never raised with ``compat=True``.
            HaltedError: The conversation was halted.
            PolicyFailedError: The model client raised an error while it counted tokens. With ``compat=True``, the
                client's own error is raised instead, as in AutoGen.
        """
        with self._failing():
            return await (self._messages_for_memory() if is_memory_on_stack(self) else super().get_messages())

    async def _read_input(self, request: Any) -> TurnInput:
        return replace(await super()._read_input(request), messages=self._history())

    def _write_output(self, request: Any, turn_input: TurnInput, prompts: list[str], messages: list[Any]) -> Any:
        return self._given(super()._write_output(request, turn_input, prompts, messages))

    async def _messages_for_memory(self) -> list[LLMMessage]:
        """Return the same messages as for the model, selected by an assembler that records nothing."""
        if self._unrecorded_assembler is None:
            self._unrecorded_assembler = self._assembler(NullRecorder())
        context = Context(tools=self._tools)
        assembly = await self._unrecorded_assembler.assemble(self._prompts, self._history(), context)
        return self._given(assembly.events)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all messages by those of a saved state, of a context of otel-assembly or of AutoGen.

        Args:
            state: The return value of `save_state`, or an agent's state that contains it as ``llm_context``.

        Raises:
            ConfigurationError: The state is invalid. The messages are not replaced.
        """
        self._messages = read_state(ChatCompletionContextState, state).messages
        self._log = History()

    async def clear(self) -> None:
        """Remove all messages, including the initial ones."""
        await super().clear()
        self._log = History()

    def dump_component(self, *, provider: Provider = "otel_assembly") -> ComponentModel:
        """Return the configuration of this context for `load_component`, including its initial messages.

        Args:
            provider: ``otel_assembly`` for a configuration that names this package's class; ``autogen`` for one that
                AutoGen's own `load_component` accepts.

        Raises:
            ConfigurationError: The context cannot be dumped, for example because its model client cannot.
        """
        dumped = super().dump_component()
        dumped.provider = provider_of(type(self), CONTEXTS, provider)
        dumped.config = config_as(dumped.config, provider)
        return dumped

    @classmethod
    def load_component(cls, model: ComponentModel | dict[str, Any], expected: type[Any] | None = None) -> Any:
        """Create a context from a dumped configuration.

        If the configuration names one of the four contexts, of otel-assembly or of AutoGen, a context of this package
        is created. AutoGen loads any other component.

        Args:
            model: The return value of `dump_component`.
            expected: The class of which the context must be an instance. None: this class.

        Raises:
            ConfigurationError: The configuration is invalid, or the context is no instance of the expected class. For
                other components, AutoGen raises the error.
        """
        component = read_form(ComponentModel, model, "component") if isinstance(model, dict) else model
        context_class = named_in(CONTEXTS, component.provider)
        if context_class is None:
            return super().load_component(component, expected)
        if not issubclass(context_class, expected or cls):
            problem = f"{component.provider!r} is no {(expected or cls).__name__}"
            raise ConfigurationError(f"component.provider: {problem}; load it with its own class")
        config = read_form(context_class.component_config_schema, component.config, "component.config")
        return context_class._from_config(config)  # noqa: SLF001  # a class of this module


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


#: The contexts by name, for `load_component`.
CONTEXTS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        UnboundedChatCompletionContext,
        BufferedChatCompletionContext,
        HeadAndTailChatCompletionContext,
        TokenLimitedChatCompletionContext,
    )
}
