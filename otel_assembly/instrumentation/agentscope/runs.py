"""One reply of an agent of AgentScope, as one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.instrumentation.agentscope.conversation import not_called, remembered
from otel_assembly.instrumentation.hooks import instead
from otel_assembly.instrumentation.runs import followed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


@instead
def reply(
    instrumentation: Instrumentation, original: Callable[..., Any], agent: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """In the place of ``Agent._reply_impl``, inside all middlewares: where one of them traces, its span is current."""
    run = instrumentation.begin_run(agent.name, conversation_id=agent.state.session_id)
    items = original(agent, *args, **kwargs)
    return items if run is None else followed(_Reply(instrumentation, agent, run), items)


class _Reply:
    """One reply, while it is followed: what was prepared in it for a model that is not called ends with it."""

    def __init__(self, instrumentation: Instrumentation, agent: Any, run: OpenRun) -> None:
        self._instrumentation = instrumentation
        self._agent = agent
        self._run = run
        self._began = False

    def current(self) -> AbstractContextManager[None]:
        """A step of it."""
        if not self._began:
            self._began = True
            remembered(self._agent).replies += 1
        return self._run.current()

    def end(self, error: BaseException | None = None) -> None:
        """It came to its end."""
        with self._instrumentation.contained():
            if self._began:
                remembered(self._agent).replies -= 1
            not_called(self._agent)
        self._run.end(error)
