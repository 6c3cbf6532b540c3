"""Middleware that stands around what is behind it: what it changes in what it goes on with, each time that it does."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.reductions import REDUCTION, Reduction
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextvars import ContextVar

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import Sent


class MiddlewareReduction(Reduction):
    """What a middleware does to messages, which need be no reducer at all.

    Args:
        instrumentation: Where it is reported.
        policy: Its name, of low cardinality.
        before: What it takes in.
        summarises: Whether a model that it calls is its own, such as a summariser's; else that is a call of its own.
        kind: ``reduction`` where it is known to reduce: that it found nothing to do, or failed, is then worth telling.
        said: What else `Reduction` takes.
    """

    __slots__ = ("_summarises",)

    def __init__(
        self,
        instrumentation: Instrumentation,
        policy: str,
        before: Sequence[Any],
        *,
        summarises: bool = False,
        kind: str | None = None,
        **said: Any,
    ) -> None:
        super().__init__(instrumentation, policy, before, kind=kind, **said)
        self._summarises = summarises

    @contextmanager
    def running(self) -> Iterator[None]:
        """It runs in this block."""
        with super().running() if self._summarises else nullcontext():
            yield

    def failed(self, error: BaseException) -> None:
        """It raised; of what is not known to be a reducer that says nothing, unless it reduced."""
        if self._kind is not None or self.step is not None:
            super().failed(error)


class GoingOn:
    """One call of a middleware, as a `Run`: it goes on with a request, perhaps another one, and perhaps several times.

    Args:
        instrumentation: Where it is reported.
        reduces: Makes what is reported of it, from the messages that it takes in.
        reads: The messages of a request, and the system prompts with them.
        request: What it is called with.
        inside: What context variables are in it.
        behind: What they are behind it.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        reduces: Callable[[Sequence[Any]], Reduction],
        reads: Callable[[Any], Sent],
        request: Any,
        inside: Mapping[ContextVar[Any], Any],
        behind: Mapping[ContextVar[Any], Any],
    ) -> None:
        self._instrumentation = instrumentation
        self._reduces = reduces
        self._reads = reads
        self._inside = BoundRun(instrumentation, None, inside)
        self._behind = {**behind, REDUCTION: None}
        given = reads(request)
        self._prompts = given.prompts  # a middleware may change the very request
        self._reduction = reduces(given.messages)
        self._went_on = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """The middleware runs in this block."""
        with self._inside.current(), self._reduction.running():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """It has answered, or raised."""
        if error is not None and not self._went_on:
            with self._instrumentation.contained():
                self._reduction.failed(error)

    def goes_on(self, _: Instrumentation, request: Any) -> BoundRun:
        """It asks for what is behind it with this request; it is told for each time that it does."""
        reduction, self._went_on = self._reduction, True
        before, after = self._prompts, self._reads(request)
        call = reduction.works_for() if before != after.prompts else None
        if call is not None:
            call.arrives(call.out if call.messages is not None else reduction.before, prompts=before)
        reduction.done(list(after.messages), prompts=after.prompts if before != after.prompts else None)
        self._reduction = self._reduces(reduction.before)
        return BoundRun(self._instrumentation, None, self._behind)


def going_on(
    original: Callable[..., Any], instrumentation: Instrumentation, begun: Callable[[Any], GoingOn]
) -> Callable[..., Any]:
    """In the place of a middleware's function, awaited or not, which is called with a request and what is behind it.

    Args:
        original: The function.
        instrumentation: Whom it serves.
        begun: One call of it, by its request.
    """

    @wraps(original)
    def watched(request: Any, behind: Callable[[Any], Any]) -> Any:
        run: GoingOn | None = None
        if instrumentation.listening():
            with instrumentation.contained():
                run = begun(request)
        if run is None:
            return original(request, behind)
        goes_on = within(run.goes_on)(behind, instrumentation)
        return within(lambda *_: run)(original, instrumentation)(request, goes_on)

    return watched
