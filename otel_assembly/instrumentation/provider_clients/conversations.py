"""`conversation`: names the conversation and the agent of the model calls that a program makes itself.

Without it, both names are those of the run that an instrumented framework has begun, of the current span or a span that
encloses it, or of OpenTelemetry's baggage.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from opentelemetry import baggage, trace

from otel_assembly._internal.arguments import of_type
from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation import PROVIDER_CLIENTS
from otel_assembly.instrumentation.instrumented import OPEN_INSTRUMENTATIONS, context_value, on_exit
from otel_assembly.instrumentation.runs import track_stream
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.model_span_links import enclosing_spans
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder
from otel_assembly.telemetry.run import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.recorder import Recorder
    from otel_assembly.telemetry.run import OpenRun

F = TypeVar("F", bound="Callable[..., Any]")

#: The attributes, on spans and in baggage, that contain an agent's name or a conversation's id; conventions first.
_AGENT_KEYS: Final = (names.GEN_AI_AGENT_NAME, "agent.name")
_CONVERSATION_KEYS: Final = (
    names.GEN_AI_CONVERSATION_ID,
    "session.id",  # OpenInference
    "traceloop.association.properties.session_id",
)


class NamedConversation(NamedTuple):
    """The names of a model call's conversation and agent; None if unknown.

    Attributes:
        find_id: Finds an id that is known only after the run has begun.
    """

    id: str | None = None
    agent: str | None = None
    find_id: Callable[[], str | None] = lambda: None


_NAMED: Final[ContextVar[NamedConversation | None]] = ContextVar("otel_assembly_conversation", default=None)
#: The open blocks of all `conversation` objects in this task or thread, outermost first.
_BLOCKS: Final[ContextVar[tuple[ExitStack, ...]]] = ContextVar("otel_assembly_conversation_blocks", default=())


class conversation:  # noqa: N801  # reads as a function: with conversation("order-17"):
    """Name the conversation and the agent of the model calls in a block, or in a decorated function.

    The block has one ``invoke_agent`` span, so that a whole loop is one trace. The calls of a provider's client in it
    (``openai``, ``anthropic`` and others that are instrumented) belong to this conversation. Which earlier call each
    of them continues is still found by its messages: a guard, a title or a summarizer is a call of the same
    conversation, but continues none. A nested block names the calls in it, and inherits what it does not name.

    The decorator accepts functions, coroutine functions, generators and async generators.

    Args:
        id: The conversation's id, recorded as ``gen_ai.conversation.id``. Use it again for the next turn, in any
            process.
        agent: The agent's name, recorded as ``gen_ai.agent.name``.

    Raises:
        ConfigurationError: An argument is not a string.

    Example:
        >>> with conversation("order-17", agent="support"):
        ...     pass  # client.chat.completions.create(…)
    """

    def __init__(self, id: str | None = None, *, agent: str | None = None) -> None:  # noqa: A002  # as in the conventions
        for name, value in (("id", id), ("agent", agent)):
            if value is not None:
                of_type(name, value, str, 'give conversation("order-17", agent="support")')
        self._given = NamedConversation(id, agent)
        #: The open blocks of this object in all tasks and threads.
        self._blocks: list[ExitStack] = []

    def __enter__(self) -> None:
        block = ExitStack()
        block.enter_context(ConversationRun(self._given).whole())
        block.enter_context(context_value(_BLOCKS, (*_BLOCKS.get(), block)))
        self._blocks.append(block)

    def __exit__(self, *raised: Any) -> None:
        entered_here = [block for block in _BLOCKS.get() if block in self._blocks]
        block = (entered_here or self._blocks)[-1]  # a fixture, for example, may leave a block in another task
        self._blocks.remove(block)
        block.__exit__(*raised)

    def __call__(self, function: F) -> F:
        """Return the function such that each of its calls runs in a block of its own."""
        given = self._given
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):

            @wraps(function)
            def stream(*args: Any, **kwargs: Any) -> Any:
                return track_stream(ConversationRun(given), function(*args, **kwargs))

            return stream  # type: ignore[return-value]
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                with ConversationRun(given).whole():
                    return await function(*args, **kwargs)

            return coroutine  # type: ignore[return-value]

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with ConversationRun(given).whole():
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


class ConversationRun(TrackedRun):
    """A block of `conversation`: its names, and its ``invoke_agent`` span if telemetry is recorded.

    Args:
        instrumentation: The instrumentation of the framework that has begun the run; None for a block of the program.
    """

    def __init__(self, given: NamedConversation, instrumentation: Instrumentation | None = None) -> None:
        outer = _NAMED.get() or NamedConversation()
        self._names = NamedConversation(given.id or outer.id, given.agent or outer.agent, given.find_id)
        self._run: OpenRun | None = None
        if instrumentation is not None:
            self._run = instrumentation.begin_run(
                self._names.agent or "", conversation_id=self._names.id, force_span=True
            )
        elif isinstance(recorder := _recorder(), OpenTelemetryRecorder):
            self._run = recorder.begin_run(self._names.agent, conversation_id=self._names.id, force_span=True)

    @contextmanager
    def current(self) -> Iterator[None]:
        with context_value(_NAMED, self._names), ExitStack() as run:
            if self._run is not None:
                run.enter_context(self._run.current())
            yield

    @contextmanager
    def whole(self) -> Iterator[None]:
        with on_exit(self.end), self.current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        if self._run is not None:
            self._run.end(error)


def _recorder() -> Recorder:
    """Return the recorder of an instrumented client; if none has a telemetry provider, that of a framework."""
    clients_first = sorted(OPEN_INSTRUMENTATIONS, key=lambda opened: opened.framework not in PROVIDER_CLIENTS)
    return next((opened.recorder for opened in clients_first if opened.is_enabled()), None) or DEFAULT.recorder


def current_conversation() -> NamedConversation:
    """Return the names of the conversation and the agent in the current context."""
    named = _NAMED.get() or NamedConversation()
    conversation_id, agent = named.id or named.find_id(), named.agent
    if conversation_id is not None and agent is not None:
        return NamedConversation(conversation_id, agent)
    # Each further source adds the names that are still missing.
    if (run := RUN.get()) is not None:
        conversation_id, agent = conversation_id or run.identity.conversation_id, agent or run.identity.agent_name
    for span in enclosing_spans(trace.get_current_span()):
        if conversation_id is not None and agent is not None:
            break
        attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
        conversation_id = conversation_id or _first_text(attributes.get, _CONVERSATION_KEYS)
        agent = agent or _first_text(attributes.get, _AGENT_KEYS)
    return NamedConversation(
        conversation_id or _first_text(baggage.get_baggage, _CONVERSATION_KEYS),
        agent or _first_text(baggage.get_baggage, _AGENT_KEYS),
    )


def _first_text(value_of: Callable[[str], object], keys: tuple[str, ...]) -> str | None:
    return next((value for value in map(value_of, keys) if isinstance(value, str) and value), None)


hide_frames(globals())
