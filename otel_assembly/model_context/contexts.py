"""AutoGen's model contexts without AutoGen. An assembler reduces the messages of each context."""

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
    component_read,
    config_as,
    named_in,
    provider_of,
)
from otel_assembly.model_context.memory import asked_by_memory
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
    """The abstract base of model contexts (as in AutoGen): stores messages and selects those for the model.

    Subclasses implement `get_messages`.

    Args:
        initial_messages: The first messages of the conversation. The list is copied.

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
        self._hold(self._initial_messages or ())

    def _hold(self, messages: Sequence[LLMMessage]) -> None:
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
        self._hold(())

    async def save_state(self) -> Mapping[str, Any]:
        """Return all messages as JSON. AutoGen's contexts can load it too."""
        return ChatCompletionContextState(messages=self._messages).model_dump()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all messages by those of a saved state, from any of our or AutoGen's contexts.

        Args:
            state: The return value of `save_state`, or an agent's state that contains it as ``llm_context``.

        Raises:
            ConfigurationError: The state is invalid. The messages are not replaced.
        """
        self._hold(read_state(ChatCompletionContextState, state).messages)

    def _to_config(self) -> BaseModel:
        raise ConfigurationError(f"{type(self).__qualname__} has no configuration; write _to_config and _from_config")

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        raise ConfigurationError(f"{cls.__qualname__} has no configuration; write _to_config and _from_config")

    def dump_component(self, *, provider: Provider = "otel_assembly") -> ComponentModel:
        """Return the configuration of this context for `load_component`, including its initial messages.

        Args:
            provider: ``autogen`` for a configuration that AutoGen's own `load_component` accepts.

        Raises:
            ConfigurationError: The context has no configuration.
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
        """Create a context from a dumped configuration. No module is imported.

        Args:
            component: The return value of `dump_component` of our or AutoGen's contexts.
            model_client: The client of a `TokenLimitedChatCompletionContext` that was dumped with a client.

        Raises:
            ConfigurationError: The class is unknown or not a subclass of this class, or the client is missing.
        """
        read = component_read(component)
        kind = named_in(CONTEXTS, read.provider)
        if kind is None and read.provider == f"{cls.__module__}.{cls.__qualname__}":
            kind = cls
        if kind is None:
            raise ConfigurationError(
                f"component.provider: {read.provider!r} is none of the known contexts ({', '.join(CONTEXTS)}); "
                "load a class of your own by itself: MyContext.load_component(…)"
            )
        if not issubclass(kind, cls):
            found = f"{read.provider!r} is no {cls.__name__}"
            raise ConfigurationError(f"component.provider: {found}; load it with its own class")
        given = dict(read.config)
        if given.get("model_client") is not None and model_client is None and issubclass(kind, TokenLimitedShape):
            raise ConfigurationError(
                "component.config.model_client: a client is not made of its configuration; give load_component(…, "
                "model_client=…)"
            )
        config = read_form(kind.component_config_schema, given, "component.config")
        if model_client is None:
            made = kind._from_config(config)  # noqa: SLF001  # of this table
        elif issubclass(kind, TokenLimitedShape):
            made = kind._from_config(config, model_client)  # noqa: SLF001  # of this table
        else:
            raise ConfigurationError(f"{kind.__name__} takes no model_client; leave it out")
        return made  # type: ignore[no-any-return]  # checked by issubclass above


class _Assembled(Shape, ChatCompletionContext):
    """A context with an assembler, which reduces its messages."""

    types = OURS

    def _history(self) -> History:
        if self._edits != Editable.edits:  # a message was modified, possibly one of these
            self._edits = Editable.edits
            self._log = History(self._messages)
        return super()._history()

    def _start(self, initial_messages: Sequence[Any] | None) -> None:
        ChatCompletionContext.__init__(self, initial_messages)
        self._by = self._assembler()
        self._quietly: Assembler | None = None
        self._context = Context(tools=getattr(self, "_tool_schema", ()))

    @property
    def context(self) -> Context:
        """The context of the assemblies: set the agent's name (``context.agent_name``), or send alerts."""
        return self._context

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages for the model. Each call is recorded as an assembly.

        A call from a memory's ``update_context`` is not recorded.

        Raises:
            ContextOverflowError: In a `TokenLimitedChatCompletionContext`, the newest request, or the newest tool call
                with its results, exceeds the limit. Never raised with ``compat=True``.
            HaltedError: The conversation was halted.
            PolicyFailedError: A client failed to count. With ``compat=True`` its own error is raised.
        """
        if asked_by_memory(self):
            if self._quietly is None:
                self._quietly = self._assembler(NullRecorder())
            by, context = self._quietly, Context(tools=self._context.tools)
        else:
            by, context = self._by, self._context
        with self._failing():
            return self._given((await by.assemble((), self._history(), context)).events)


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
