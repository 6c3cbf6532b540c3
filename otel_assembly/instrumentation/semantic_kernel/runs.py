"""Runs of agents, of their chats and of orchestrations: each is one trace."""

from __future__ import annotations

import re
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.semantic_kernel.calls import ASKS, CHAT, Asks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: Imported where they are needed, for the hooks are taken while the framework's packages are on their way.
_DIAGNOSTICS: Final = "semantic_kernel.utils.telemetry.agent_diagnostics.decorators"
_PROPAGATION: Final = "semantic_kernel.agents.runtime.core.telemetry.propagation"
#: What ends the name of an orchestration that its program gives none: another one for each.
_NO_NAME: Final = re.compile("_[0-9a-f]{32}$")


def agent(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """One run of an agent, where it has no span of the framework's."""
    decorated = getattr(original, "__agent_diagnostics__", False)

    def begun(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
        theirs = decorated and import_module(_DIAGNOSTICS).are_model_diagnostics_enabled()
        return ContextBoundRun(instrumentation, None if theirs else runs.name, {ASKS: Asks(runs), CALL: None})

    return run_hook(begun)(original, instrumentation)


#: Agents take turns, until their chat is complete.
group_chat: Final = run_hook(lambda told, runs, *_, **__: ContextBoundRun(told, type(runs).__name__, {CHAT: runs}))


class _Orchestration(ContextBoundRun):
    """A run that goes on behind what its function returns, until there is a result."""

    _goes_on = False

    def returned(self, result: Any) -> None:
        """It has begun, and this will have its result."""
        self._goes_on, held = True, weakref.ref(result)
        done, over = result.event.set, weakref.finalize(result, super().end)

        def ends() -> None:
            found = held()
            if over.detach() is not None:
                ContextBoundRun.end(self, getattr(found, "exception", None))
            done()

        result.event.set = ends

    def end(self, error: BaseException | None = None) -> None:
        """Its function has returned, or raised."""
        if not self._goes_on:
            super().end(error)


def _orchestration(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    return _Orchestration(instrumentation, _NO_NAME.sub("", runs.name), {})


orchestration: Final = run_hook(_orchestration)


@observe_async_hook
def handles(_: Instrumentation, __: Any, envelope: Any, /) -> Observation:
    """Around what handles a message: it goes on with the trace in which that was sent, in whatever task."""
    sent_in = trace.get_current_span(import_module(_PROPAGATION).get_telemetry_context(envelope.metadata))
    if sent_in.get_span_context().is_valid:
        with trace.use_span(sent_in):
            yield
    else:
        yield
