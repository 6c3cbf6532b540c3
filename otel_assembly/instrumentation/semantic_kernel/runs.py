"""The runs of Semantic Kernel: agents, group chats and orchestrations, each with all its spans in one trace.

The instrumentation hooks `Agent.invoke` and its variants, `AgentGroupChat.invoke`, `OrchestrationBase.invoke` and the
methods of `InProcessRuntime` that deliver a message. A run has an ``invoke_agent`` span unless the framework has one.
"""

from __future__ import annotations

import re
import weakref
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.semantic_kernel.calls import GROUP_CHAT, HISTORY_OWNER, HistoryOwner

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: Imported when they are needed: the hooks are installed while the framework's packages are only partly imported.
_DIAGNOSTICS: Final = "semantic_kernel.utils.telemetry.agent_diagnostics.decorators"
_PROPAGATION: Final = "semantic_kernel.agents.runtime.core.telemetry.propagation"
#: The random suffix of the default name of an orchestration; span names must not contain it.
_RANDOM_SUFFIX: Final = re.compile("_[0-9a-f]{32}$")


def agent_run(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of the methods that run an agent; it adds a span only if the framework's diagnostics create none."""
    decorated = getattr(original, "__agent_diagnostics__", False)

    def begin_run(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
        has_span = decorated and import_module(_DIAGNOSTICS).are_model_diagnostics_enabled()
        name = None if has_span else agent.name
        return ContextBoundRun(instrumentation, name, {HISTORY_OWNER: HistoryOwner(agent), CALL: None})

    return run_hook(begin_run)(original, instrumentation)


@run_hook
def group_chat_run(instrumentation: Instrumentation, chat: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    """The hook of the methods that run a group chat, in which agents take turns until the chat is complete."""
    return ContextBoundRun(instrumentation, type(chat).__name__, {GROUP_CHAT: chat})


class _OrchestrationRun(ContextBoundRun):
    """The run of an orchestration, which `invoke` starts in the background: it ends when its result is set."""

    _is_started = False

    def on_result(self, answer: Any) -> None:
        """End the run when `OrchestrationResult.event` is set, or when the program drops the result without it."""
        # A weak reference: a cycle would delay the finalizer until the garbage collector runs.
        self._is_started, result_ref = True, weakref.ref(answer)
        set_event, finalizer = answer.event.set, weakref.finalize(answer, super().end)

        def end_and_set() -> None:
            result = result_ref()
            if finalizer.detach() is not None:
                ContextBoundRun.end(self, getattr(result, "exception", None))
            set_event()

        answer.event.set = end_and_set

    def end(self, error: BaseException | None = None) -> None:
        """End the run if `invoke` raised; if `invoke` returned, the run goes on in the background."""
        if not self._is_started:
            super().end(error)


@run_hook
def orchestration_run(instrumentation: Instrumentation, orchestration: Any, /, *_: Any, **__: Any) -> ContextBoundRun:
    return _OrchestrationRun(instrumentation, _RANDOM_SUFFIX.sub("", orchestration.name), {})


@observe_async_hook
def observe_delivery(_: Instrumentation, __: Any, envelope: Any, /) -> Observation:
    """The hook of the methods that deliver a message: the receiver runs in the sender's trace, also in another task."""
    sender_span = trace.get_current_span(import_module(_PROPAGATION).get_telemetry_context(envelope.metadata))
    with trace.use_span(sender_span) if sender_span.get_span_context().is_valid else nullcontext():
        yield
