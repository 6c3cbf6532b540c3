"""The state of an instrumented framework, which all of its hooks share.

`Patches` replaces functions of the framework and restores them. `Instrumentation` has the patches and the recorder, and
starts the spans of agent runs. The functions below them help hooks to read the arguments of a call.
"""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import trace

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.fork_safety import lazy_property, new_lock
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.instrumentation.replacements import replacement_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextvars import ContextVar, Token

    from opentelemetry.trace import SpanContext

    from otel_assembly import observe
    from otel_assembly.observe.conversations import ObservedAssembler, suppress_errors
    from otel_assembly.recorder import Recorder
    from otel_assembly.telemetry import recorder as telemetry
    from otel_assembly.telemetry.run import OpenRun
else:  # imported on first use, because a process that never imports the framework needs neither
    observe, telemetry = LazyModule("otel_assembly.observe"), LazyModule("otel_assembly.telemetry.recorder")

logger = logging.getLogger("otel_assembly")

_MISSING: Final = object()
T = TypeVar("T")


#: The attribute of a replacement with the `Patches` that set it, the replacement's own `id`, and the original. The `id`
#: distinguishes the replacement from wrappers around it, which copy its attributes.
_ORIGINAL: Final = "_otel_assembly_before"


class Patches:
    """Attributes of modules and classes that were replaced, so that the original objects can be restored.

    Each replacement refers to its original. Classes are referred to weakly, so that unused ones are collected.
    """

    def __init__(self) -> None:
        self._replaced: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
        self._lock = new_lock()
        self._restored = False

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Replace a function of a module, or a method that the class itself defines; return False if there is none.

        The replacement binds like the original, which may also be another instrumentation's wrapper. `make` returns it
        from the function that it is to call.
        """
        original = vars(owner).get(name, _MISSING)
        new = None if original is _MISSING else replacement_for(owner, original, make)
        if new is None:
            return False
        if new is not original:
            vars(new)[_ORIGINAL] = self, id(new), original
            self._replaced.setdefault(owner, []).append(name)
            setattr(owner, name, new)
        return True

    def wrap_once(self, cls: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a method in the class that defines it, unless it is wrapped already; see `Instrumentation.wrap_once`.

        Does nothing after `restore`.
        """
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if owner is None or self.has_replaced(owner, name):
            return
        with self._lock:
            if not self._restored and not self.has_replaced(owner, name):
                self.wrap(owner, name, make)

    def unwrap(self, owner: Any, name: str) -> bool:
        """Restore the original of one attribute, also in a class that a decorator has copied the replacement into.

        The result is False if the attribute is not a replacement by this object.
        """
        current = vars(owner).get(name)
        patches, replacement_id, original = getattr(current, "__dict__", {}).get(_ORIGINAL, (None, None, None))
        is_own = patches is self and replacement_id == id(current)
        if is_own:
            setattr(owner, name, original)
        return is_own

    def has_replaced(self, owner: Any, name: str) -> bool:
        """Return True if this object has replaced the attribute."""
        return name in self._replaced.get(owner, ())

    def restore(self) -> None:
        """Restore all originals, except where another wrapper was set since: that one keeps calling ours."""
        with self._lock:
            self._restored = True
        for owner, names in list(self._replaced.items()):
            for name in names:
                if not self.unwrap(owner, name):
                    logger.debug(
                        "otel-assembly: %s was wrapped again after it was instrumented, so it cannot be restored; "
                        "the wrapper of otel-assembly stays and only calls the original",
                        name,
                    )
        self._replaced.clear()


class Instrumentation:
    """One framework while it is instrumented: the object through which its hooks record.

    Attributes:
        open: False after the framework is uninstrumented. Wrappers that are still referenced then only call the
            original.
        ends: Functions that are called before the framework is uninstrumented, to record pending reductions or to undo
            other changes.
    """

    def __init__(self, framework: str, recorder: Recorder | None = None) -> None:
        self.open = True
        self.framework = framework
        self._recorder = recorder
        self.patches = Patches()
        self.ends: set[Callable[[], None]] = set()

    @lazy_property
    def observed(self) -> ObservedAssembler:
        """The observed assembler, which records the framework's assemblies and their steps."""
        return observe.ObservedAssembler(self.framework, recorder=self._recorder)

    @property
    def recorder(self) -> Recorder:
        """The recorder of spans, metrics and logs."""
        return DEFAULT.recorder if self._recorder is None else self._recorder

    def is_enabled(self) -> bool:
        """Return True if a telemetry provider is configured. Each wrapper calls this first, so it has to be fast."""
        return self.open and (DEFAULT.recorder if self._recorder is None else self._recorder).is_enabled()

    @lazy_property
    def suppress_errors(self) -> Callable[[], suppress_errors]:
        """A context manager that turns an error of this library into a log warning and a count.

        It keeps an error in a hook from reaching the agent.
        """
        return self.observed.suppress_errors

    def wrap_once(
        self, cls: type, name: str, wrap: Callable[[Callable[..., Any], Instrumentation], Callable[..., Any]]
    ) -> None:
        """Wrap a method of a class that becomes known only while the framework runs, such as a user's.

        A hook calls this each time that it gets an object of the class. Only the first call wraps the method, in the
        class that defines it. `wrap` is like `Hook.wrap`.
        """
        self.patches.wrap_once(cls, name, lambda original: wrap(original, self))

    def begin_run(
        self,
        agent_name: str,
        *,
        conversation_id: str | None = None,
        force_span: bool = False,
        link: SpanContext | None = None,
    ) -> OpenRun | None:
        """Begin a run of an agent, with an ``invoke_agent`` span if no span is current; None without telemetry.

        Enter ``with run.current():`` around the code of the run, but never across a ``yield``; finally call
        ``run.end(error)``. With `force_span`, a span starts even if one is current, which becomes its parent. `link` is
        the span that caused the run, if it is in another trace.
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
        """Start linking the spans of model calls to their assemblies, even if no assembly has been recorded yet."""
        recorder = self.recorder
        if isinstance(recorder, telemetry.OpenTelemetryRecorder):
            recorder.emitter.linking_processor()


#: The instrumentations that are not closed, in the order in which they began.
OPEN_INSTRUMENTATIONS: Final[list[Instrumentation]] = []


def enabled_instrumentation() -> Instrumentation | None:
    """Return an instrumented framework for which a telemetry provider is configured; None if there is none."""
    return next((found for found in [*OPEN_INSTRUMENTATIONS] if found.is_enabled()), None)


@contextmanager
def on_exit(end: Callable[[BaseException | None], None]) -> Iterator[None]:
    """Call `end` at the end of this block, with the exception that was raised in it or None."""
    try:
        yield
    except BaseException as error:
        end(error)
        raise
    end(None)


def has_tracer_provider() -> bool:
    """Return True if a tracer provider is configured, so that a framework's own spans are recorded."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any = None) -> Any:
    """Return one argument of a call, whether it was passed by position or by name; `default` if it was not passed."""
    return args[place] if len(args) > place else kwargs.get(name, default)


def signature_accepts(original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if a function accepts these arguments.

    If it does not, a hook's own `TypeError` for them is no failure of the hook: the function will raise one too. Call
    this only after such an error, because reading a signature is slow.
    """
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):  # `original` has no signature that Python knows
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def call_if_accepted(
    original: Callable[..., Any], read: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> T | None:
    """Call `read`, a hook's function, with the arguments of `original`; return None if `original` rejects them.

    The original then raises its own error, and the hook must not be blamed for the one that `read` raised.
    """
    try:
        return read(*args, **kwargs)
    except TypeError:
        if signature_accepts(original, args, kwargs):
            raise
        return None


class context_value(Generic[T]):  # noqa: N801  # reads as a function: with context_value(VARIABLE, value)
    """Set a context variable to a value in this block, which must not contain a ``yield``."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # an unfinished coroutine is closed in another context
            self._variable.reset(self._token)
