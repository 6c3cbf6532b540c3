"""Model contexts with the interface of AutoGen's. AutoGen is not required.

A model context stores a conversation. An `Assembler` selects the messages that the model receives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic import BaseModel

from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError
from otel_assembly.history import History
from otel_assembly.model_context.component import (
    OURS as PACKAGE,
)
from otel_assembly.model_context.component import (
    ComponentModel,
    Provider,
    config_as,
    named_in,
    provider_of,
    read_component,
)
from otel_assembly.model_context.memory import is_memory_on_stack
from otel_assembly.model_context.message_types import OURS
from otel_assembly.model_context.messages import ChatCompletionContextState, Editable, LLMMessage
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
    """The configuration of `UnboundedChatCompletionContext`."""


class BufferedChatCompletionContextConfig(BufferedFields, _InitialMessages):
    """The configuration of `BufferedChatCompletionContext`."""


class HeadAndTailChatCompletionContextConfig(HeadAndTailFields, _InitialMessages):
    """The configuration of `HeadAndTailChatCompletionContext`."""


class TokenLimitedChatCompletionContextConfig(TokenLimitedFields, _InitialMessages):
    """The configuration of `TokenLimitedChatCompletionContext`."""

    model_client: ComponentModel | None = None


class ChatCompletionContext(ABC):
    """Abstract base class of model contexts: stores messages and selects those for the model, as in AutoGen.

    Subclasses implement `get_messages`.

    Args:
        initial_messages: The first messages of the conversation. The list is copied. None: no messages.

    Raises:
        DescribeError: An item is not a message.
    """

    component_type: ClassVar[str] = "chat_completion_context"
    component_version: ClassVar[int] = 1
    component_provider_override: ClassVar[str | None] = None
    component_config_schema: type[BaseModel]

    def __init__(self, initial_messages: Sequence[LLMMessage] | None = None) -> None:
        self._initial_messages = None if initial_messages is None else list(initial_messages)
        self._messages: list[LLMMessage] = []
        self._replace_messages(self._initial_messages or ())

    def _replace_messages(self, messages: Sequence[LLMMessage]) -> None:
        self._edits = Editable.edits
        self._log = History(messages)
        self._messages = list(messages)

    async def add_message(self, message: LLMMessage) -> None:
        """Add a message to the conversation.

        Raises:
            DescribeError: The argument is not a message. Nothing is added.
        """
        if len(self._log) == len(self._messages):
            self._log.append(message)
        self._messages.append(message)

    @abstractmethod
    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model."""

    async def clear(self) -> None:
        """Remove all messages, including the initial ones."""
        self._replace_messages(())

    async def save_state(self) -> Mapping[str, Any]:
        """Return all messages as JSON values. AutoGen's contexts can load these values too."""
        return ChatCompletionContextState(messages=self._messages).model_dump()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all messages by those of a saved state, of a context of otel-assembly or of AutoGen.

        Args:
            state: The return value of `save_state`, or an agent's state that contains it as ``llm_context``.

        Raises:
            ConfigurationError: The state is invalid. The messages are not replaced.
        """
        self._replace_messages(read_state(ChatCompletionContextState, state).messages)

    def _to_config(self) -> BaseModel:
        raise ConfigurationError(f"{type(self).__qualname__} cannot be dumped; implement _to_config and _from_config")

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        raise ConfigurationError(f"{cls.__qualname__} cannot be loaded; implement _to_config and _from_config")

    def dump_component(self, *, provider: Provider = "otel_assembly") -> ComponentModel:
        """Return the configuration of this context for `load_component`, including its initial messages.

        Args:
            provider: ``otel_assembly`` for a configuration that names this package's class; ``autogen`` for one that
                AutoGen's own `load_component` accepts.

        Raises:
            ConfigurationError: The class does not implement `_to_config`, or its model client cannot be dumped.
        """
        kind = type(self)
        return ComponentModel(
            provider=provider_of(kind, CONTEXTS, provider),
            component_type=self.component_type,
            version=self.component_version,
            component_version=self.component_version,
            description=(kind.__doc__ or "").strip().partition("\n\n")[0] or None,
            label=kind.__name__,
            config=config_as(self._to_config().model_dump(exclude_none=True), provider),
        )

    @classmethod
    def load_component(cls, component: ComponentModel | Mapping[str, Any], *, model_client: Any = None) -> Self:
        """Create a context from a dumped configuration. For safety, no module is imported.

        Args:
            component: The return value of `dump_component`, of a context of otel-assembly or of AutoGen.
            model_client: The client for a `TokenLimitedChatCompletionContext` that was dumped with a client; None for
                any other component.

        Raises:
            ConfigurationError: The component's class is unknown or not a subclass of this class, or `model_client` is
                missing or not accepted.
        """
        loaded = read_component(component)
        kind = named_in(CONTEXTS, loaded.provider)
        if kind is None and loaded.provider == f"{cls.__module__}.{cls.__qualname__}":
            kind = cls
        if kind is None:
            raise ConfigurationError(
                f"component.provider: {loaded.provider!r} is not a known context ({', '.join(CONTEXTS)}); "
                "load a class of your own with its own method: MyContext.load_component(…)"
            )
        if not issubclass(kind, cls):
            raise ConfigurationError(
                f"component.provider: {loaded.provider!r} is no {cls.__name__}; load it with its own class"
            )
        settings = dict(loaded.config)
        if settings.get("model_client") is not None and model_client is None and issubclass(kind, TokenLimitedShape):
            raise ConfigurationError(
                "component.config.model_client: the client cannot be created from its configuration; pass it: "
                "load_component(…, model_client=…)"
            )
        config = read_form(kind.component_config_schema, settings, "component.config")
        if model_client is None:
            context = kind._from_config(config)  # noqa: SLF001  # of this table
        elif issubclass(kind, TokenLimitedShape):
            context = kind._from_config(config, model_client)  # noqa: SLF001  # of this table
        else:
            raise ConfigurationError(f"{kind.__name__} takes no model_client; remove the argument")
        return context  # type: ignore[no-any-return]  # checked by issubclass above


class _Assembled(Shape, ChatCompletionContext):
    """Base class of the four contexts, which use an `Assembler` to select the messages for the model."""

    types = OURS

    def _history(self) -> History:
        if self._edits != Editable.edits:  # a message was modified, maybe one of this context
            self._edits = Editable.edits
            self._log = History(self._messages)
        return super()._history()

    def _start(self, initial_messages: Sequence[Any] | None) -> None:
        ChatCompletionContext.__init__(self, initial_messages)
        self._recorded_assembler = self._assembler()
        self._unrecorded_assembler: Assembler | None = None
        self._context = Context(tools=getattr(self, "_tool_schema", ()))

    @property
    def context(self) -> Context:
        """The `Context` of the recorded assemblies. Use it to set ``agent_name`` or to send alerts."""
        return self._context

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model. Each call is recorded as an assembly.

        Calls from the ``update_context`` method of an AutoGen memory are not recorded, because no model call follows.

        Raises:
            ContextOverflowError: In a `TokenLimitedChatCompletionContext`, the newest request, or the newest tool call
                with its results, exceeds the limit. Never raised with ``compat=True``.
            HaltedError: The conversation was halted.
            PolicyFailedError: The model client raised an error while it counted tokens. With ``compat=True``, the
                client's own error is raised instead.
        """
        if is_memory_on_stack(self):
            if self._unrecorded_assembler is None:
                self._unrecorded_assembler = self._assembler(NullRecorder())
            assembler, context = self._unrecorded_assembler, Context(tools=self._context.tools)
        else:
            assembler, context = self._recorded_assembler, self._context
        with self._failing():
            return self._given((await assembler.assemble((), self._history(), context)).events)


class UnboundedChatCompletionContext(UnboundedShape, _Assembled):
    __doc__ = UnboundedShape.__doc__
    component_provider_override = f"{PACKAGE}.UnboundedChatCompletionContext"
    component_config_schema = UnboundedChatCompletionContextConfig


class BufferedChatCompletionContext(BufferedShape, _Assembled):
    __doc__ = BufferedShape.__doc__
    component_provider_override = f"{PACKAGE}.BufferedChatCompletionContext"
    component_config_schema = BufferedChatCompletionContextConfig


class HeadAndTailChatCompletionContext(HeadAndTailShape, _Assembled):
    __doc__ = HeadAndTailShape.__doc__
    component_provider_override = f"{PACKAGE}.HeadAndTailChatCompletionContext"
    component_config_schema = HeadAndTailChatCompletionContextConfig


class TokenLimitedChatCompletionContext(TokenLimitedShape, _Assembled):
    __doc__ = TokenLimitedShape.__doc__
    component_provider_override = f"{PACKAGE}.TokenLimitedChatCompletionContext"
    component_config_schema = TokenLimitedChatCompletionContextConfig

    @classmethod
    def _from_config(cls, config: Any, model_client: Any = None) -> Self:
        settings = {name: getattr(config, name) for name in type(config).model_fields}
        return cls(**{**settings, "model_client": model_client})


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
