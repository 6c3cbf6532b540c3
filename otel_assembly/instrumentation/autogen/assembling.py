"""``get_messages`` of a model context, as an assembly."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.autogen.calls import WITHIN, current_call
from otel_assembly.instrumentation.autogen.contexts import (
    Inner,
    Reading,
    Within,
    is_same,
    reducer_of,
    stored_messages,
)
from otel_assembly.instrumentation.autogen.conversation import begin
from otel_assembly.instrumentation.wrapping import bound, told_whole
from otel_assembly.matching.event_index import Matcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from otel_assembly.instrumentation.autogen.contexts import Reducer
    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly


def watched_context(
    original: Callable[..., Awaitable[Any]], owner: type, instrumentation: Instrumentation
) -> Callable[..., Awaitable[Any]]:
    """``get_messages`` of one class."""
    reducer = reducer_of(owner)

    @functools.wraps(original)
    async def get_messages(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, *args, **kwargs)
        if getattr(self, "otel_assembly_plugin", False):
            return await original(self, *args, **kwargs)
        work = functools.partial(original, self, *args, **kwargs)
        within = WITHIN.get()
        if within is not None:
            return await _inside(within, self, reducer, work)
        watched = _Watched(instrumentation, self, reducer)
        with bound(WITHIN, watched.within):
            return await watched.run(work)

    return get_messages


async def _inside(within: Within, context: Any, reducer: Reducer, work: Callable[[], Awaitable[Any]]) -> Any:
    inputs = [*(stored_messages(context) or ())]
    result = await work()
    within.inner.append(Inner(context, reducer, inputs, result))
    return result


class _Watched:
    """One run of the outermost ``get_messages``."""

    def __init__(self, instrumentation: Instrumentation, context: Any, reducer: Reducer) -> None:
        self._instrumentation = instrumentation
        self._context = context
        self._reducer = reducer
        call = current_call()
        self._call = call if call is not None and call.context is context else None
        self.within = Within()

    async def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        stored = stored_messages(self._context)
        if self._reducer.read is not None or (stored and not _stores_itself(self._context)):
            return await self._as_it_runs(work, stored or [])
        return await self._afterwards(work)

    async def _as_it_runs(self, work: Callable[[], Awaitable[Any]], stored: list[Any]) -> Any:
        assembly: Any = None
        config: Mapping[str, Any] = {}
        with self._instrumentation.contained():
            config = self._reducer.config(self._context)
            assembly = self._begin(stored)
        if assembly is None:
            return await work()
        inputs = assembly.events
        try:
            with assembly.step(self._reducer.policy, kind="reduction", config=config) as step:
                result = await work()
                with told_whole(assembly):
                    self._reading(inputs, result).tell(step, inputs, result)
        except BaseException as error:
            assembly.end(error)
            raise
        self._close(assembly)
        return result

    def _reading(self, inputs: list[Any], result: Sequence[Any]) -> Reading:
        own = Inner(self._context, self._reducer, inputs, result)
        try:
            return own.reading(self.within.of(self._context))
        except Exception as error:  # noqa: BLE001  # what it did can still be told, if not why
            self._instrumentation.failed(error)
            return Reading()

    async def _afterwards(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Where the input may stand elsewhere: what came out, or a context that was asked, says what it was."""
        started_ns = time.time_ns()
        stored = [*(stored_messages(self._context) or ())]
        try:
            result = await work()
        except BaseException as error:
            with self._instrumentation.contained():
                self._tell_failure(stored, started_ns, error)
            raise
        with self._instrumentation.contained():
            self._tell(stored, result, started_ns)
        return result

    def _tell_failure(self, stored: list[Any], started_ns: int, error: BaseException) -> None:
        assembly = self._begin(stored, started_ns, unknown=not stored)
        if assembly is None:
            return
        step = assembly.step(self._reducer.policy, kind="reduction", started_ns=started_ns)
        step.__enter__()
        step.__exit__(type(error), error, error.__traceback__)
        assembly.end(error)

    def _tell(self, stored: list[Any], result: Sequence[Any], started_ns: int) -> None:
        inputs: Sequence[Any] = stored
        chain = [Inner(self._context, self._reducer, stored, result)]
        asked = self.within.other_than(self._context)
        if not stored and asked is not None:
            inputs = asked.inputs
            chain = [asked] if is_same(asked.result, result) else [asked, *chain]
            unknown = not inputs
        else:
            unknown = not inputs or None in Matcher(inputs).match(result)
        if unknown:
            inputs, chain = [*result], chain[-1:]
        assembly = self._begin(inputs, started_ns, unknown=unknown and bool(result))
        if assembly is None:
            return
        for one in chain:
            step = assembly.step(
                one.reducer.policy, kind="reduction", config=one.reducer.config(one.context), started_ns=started_ns
            )
            with step, told_whole(assembly):
                one.reading(self.within.of(one.context)).tell(step, assembly.events, one.result)
        self._close(assembly)

    def _begin(
        self, events: Sequence[Any], started_ns: int | None = None, *, unknown: bool = False
    ) -> ObservedAssembly | None:
        return begin(
            self._instrumentation, self._context, events, call=self._call, started_ns=started_ns, unknown=unknown
        )

    def _close(self, assembly: ObservedAssembly) -> None:
        if self._call is not None:
            self._call.take(assembly)
        else:
            assembly.end()


def _stores_itself(context: Any) -> bool:
    """Whether a class takes messages in by a method of its own, so that nobody else knows where they stand."""
    owner = next((one for one in type(context).__mro__ if "add_message" in vars(one)), None)
    return owner is None or not owner.__module__.startswith("autogen_core.")
