"""A framework while it is instrumented: what is replaced in it, and what all that observes it asks and reports to."""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from otel_assembly._internal.fork_safety import lazy_property, new_lock
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.instrumentation.replacements import replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextvars import ContextVar, Token

    from opentelemetry.trace import SpanContext

    from otel_assembly import observe
    from otel_assembly.observe.conversations import ObservedAssembler, suppress_errors
    from otel_assembly.recorder import Recorder
    from otel_assembly.telemetry import recorder as telemetry
    from otel_assembly.telemetry.run import OpenRun
else:  # the engine and telemetry: a process that never imports the framework needs neither
    observe, telemetry = LazyModule("otel_assembly.observe"), LazyModule("otel_assembly.telemetry.recorder")

logger = logging.getLogger("otel_assembly")

_NOTHING: Final = object()
T = TypeVar("T")


#: The attribute of a replacement that says which `Patches` has put it there, its own identity, and what it replaced.
#: Its identity, for wrappers around it copy its attributes.
_BEFORE: Final = "_otel_assembly_before"


class Patches:
    """Attributes that were replaced, so that the identical objects can be put back.

    Each replacement holds what it replaced, and nothing here holds a class: one that nobody else holds is collected.
    """

    def __init__(self) -> None:
        self._replaced: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
        self._lock = new_lock()
        self._restored = False

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Replace a function of a module, or one that a class itself defines; False where there is none.

        Whatever stands there goes on to be called as Python calls it, another one's wrapper included.
        """
        there = vars(owner).get(name, _NOTHING)
        ours = None if there is _NOTHING else replacement(owner, there, make)
        if ours is None:
            return False
        if ours is not there:
            vars(ours)[_BEFORE] = self, id(ours), there
            self._replaced.setdefault(owner, []).append(name)
            setattr(owner, name, ours)
        return True

    def take(self, met: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a method in the class that defines it, once: for classes of users, which are known when they are met.

        Nothing is wrapped any more once everything was put back.
        """
        owner = next((one for one in met.__mro__ if name in vars(one)), None)
        if owner is None or self.holds(owner, name):
            return
        with self._lock:
            if not self._restored and not self.holds(owner, name):
                self.wrap(owner, name, make)

    def unwrap(self, owner: Any, name: str) -> bool:
        """Put back what a replacement of ours has replaced, also in a class that a decorator has copied it into.

        Returns:
            Whether one stood there.
        """
        ours = vars(owner).get(name)
        *mark, before = getattr(ours, "__dict__", {}).get(_BEFORE, (None,))
        if mark != [self, id(ours)]:
            return False
        setattr(owner, name, before)
        return True

    def holds(self, owner: Any, name: str) -> bool:
        """Whether this attribute was replaced."""
        return name in self._replaced.get(owner, ())

    def restore(self) -> None:
        """Put everything back; what somebody has wrapped since stays wrapped, and is inert."""
        with self._lock:
            self._restored = True
        for owner, names in list(self._replaced.items()):
            for name in names:
                if not self.unwrap(owner, name):
                    logger.debug("%s was replaced again after it was instrumented: it stays, and does nothing", name)
        self._replaced.clear()


class Instrumentation:
    """One framework while it is instrumented: what its wrappers ask, and where they report.

    Attributes:
        open: False once the framework is not instrumented any more: wrappers that something still holds are then inert.
        framework: The framework's name.
        patches: What was replaced.
        ends: Called before it goes: they tell what waits.
    """

    def __init__(self, framework: str, recorder: Recorder | None = None) -> None:
        self.open = True
        self.framework = framework
        self._recorder = recorder
        self.patches = Patches()
        self.ends: set[Callable[[], None]] = set()

    @lazy_property
    def observed(self) -> ObservedAssembler:
        """Where assemblies are reported."""
        return observe.ObservedAssembler(self.framework, recorder=self._recorder)

    @property
    def recorder(self) -> Recorder:
        """Where everything is recorded."""
        return self.observed.recorder

    def is_enabled(self) -> bool:
        """Whether a provider is configured: every wrapper asks this first, so that it must cost next to nothing."""
        return self.open and self.observed.is_enabled()

    @lazy_property
    def suppress_errors(self) -> Callable[[], suppress_errors]:
        """A block of ours whose failure is a warning and a count, never the agent's."""
        return self.observed.suppress_errors

    def take(
        self, met: type, name: str, wrap: Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]
    ) -> None:
        """Wrap a method of a class that is met as the framework runs, as a hook wraps one."""
        self.patches.take(met, name, lambda made: wrap(made, self))

    def begin_run(
        self,
        agent_name: str,
        *,
        conversation_id: str | None = None,
        force_span: bool = False,
        link: SpanContext | None = None,
    ) -> OpenRun | None:
        """One run of an agent: an ``invoke_agent`` span where no span is current; None where no provider is configured.

        ``with run.current():`` around what runs in it, and never across a ``yield``; then ``run.end(error)``.

        Args:
            agent_name: The agent's name.
            conversation_id: The conversation's real id, if it has one.
            force_span: Start a span even if one is current; the current span becomes its parent.
            link: The span that caused the run, if it is in another trace.
        """
        recorder, run = self.recorder, None
        if self.open and isinstance(recorder, telemetry.OpenTelemetryRecorder):
            with self.suppress_errors():
                run = recorder.begin_run(
                    agent_name,
                    framework=self.framework,
                    conversation_id=conversation_id,
                    force_span=force_span,
                    link=link,
                )
        return run

    def watch_model_calls(self) -> None:
        """Have the model calls' spans looked at, also where no assembly has been recorded yet."""
        recorder = self.recorder
        if isinstance(recorder, telemetry.OpenTelemetryRecorder):
            recorder.emitter.linking_processor()


@contextmanager
def on_exit(end: Callable[[BaseException | None], None]) -> Iterator[None]:
    """A block at whose end `end` is called, with what was raised in it."""
    try:
        yield
    except BaseException as error:
        end(error)
        raise
    end(None)


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any = None) -> Any:
    """One argument of a call, however it was given."""
    return args[place] if len(args) > place else kwargs.get(name, default)


def signature_accepts(original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function takes these arguments; one that does not refuses them itself, and that is no failure of ours.

    Asked only where reading the arguments has failed: it takes longer than the call.
    """
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):  # it has none that Python knows
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def call_if_accepted(
    original: Callable[..., Any], read: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> T | None:
    """What `read` makes of what a function is called with; None where the function will refuse that."""
    try:
        return read(*args, **kwargs)
    except TypeError:
        if signature_accepts(original, args, kwargs):
            raise
        return None


class context_value(Generic[T]):  # noqa: N801  # read as a word: with bound(VARIABLE, value)
    """A context variable has a value in this block; never left open across the ``yield`` of a generator."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # a coroutine that nobody awaited to its end is closed in another context
            self._variable.reset(self._token)
