"""The wrappers of the functions that run an agent: its name, its conversation, and a span for each run."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.provider_clients.agent_runs import AgentRun, current_agent_run
from otel_assembly.instrumentation.reducers import name_of
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The newest run of each of AG2's agents.
_AG2_RUNS: Final[IdentityWeakMap[ref[AgentRun]]] = IdentityWeakMap()
#: The modules of DSPy that call tools in a loop.
_DSPY_AGENTS: Final = frozenset({"ReAct", "ReActV2", "CodeAct", "ProgramOfThought", "RLM", "Avatar"})


@run_hook
def named_run(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> AgentRun:
    """The hook of a method of an agent with the attribute `name`; without a name, it is the name of its class."""
    return AgentRun(instrumentation, agent, name_of(agent))


class _OpenRun(TrackedRun):
    """A function that another thread executes for a run; the run goes on."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    def current(self) -> AbstractContextManager[None]:
        return self._run.current()

    def end(self, error: BaseException | None = None) -> None:
        return


@run_hook
def ag2_run(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> AgentRun:
    """The hook of the methods with which a `ConversableAgent` of AG2 replies, or initiates a chat."""
    run = AgentRun(instrumentation, agent, name_of(agent))
    _AG2_RUNS.put(agent, ref(run))
    return run


@run_hook
def ag2_client(_: Instrumentation, agent: Any, /, *__: Any, **___: Any) -> TrackedRun | None:
    """The hook of the method that calls the client: an asynchronous reply calls it in a thread without the context."""
    reference = _AG2_RUNS.get(agent)
    run = reference() if reference is not None else None
    return None if run is None or current_agent_run() is not None else _OpenRun(run)


def smolagents_timeout(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of the decorator that runs an agent's code in a thread.

    The thread gets the context of the run, because the code may call another agent.
    """

    @wraps(original)
    def timeout(*args: Any, **kwargs: Any) -> Any:
        decorate = original(*args, **kwargs)
        if not instrumentation.is_enabled():
            return decorate

        def decorator(function: Callable[..., Any]) -> Any:
            return decorate(partial(copy_context().run, function))

        return decorator

    return timeout


@run_hook
def agno_run(instrumentation: Instrumentation, agent: Any, /, *_: Any, **arguments: Any) -> AgentRun:
    """The hook of the methods that run an agent or a team of Agno, in a session.

    If the program names no session, the agent's first run sets `session_id`.
    """
    return AgentRun(instrumentation, agent, name_of(agent), lambda: arguments.get("session_id") or agent.session_id)


@run_hook
def crewai_agent_run(instrumentation: Instrumentation, agent: Any, /, *_: Any, **__: Any) -> AgentRun | None:
    """The hook of the methods that run an agent of CrewAI, whose name is its role; one may call another."""
    outer = current_agent_run()
    return None if outer is not None and outer.runner is agent else AgentRun(instrumentation, agent, agent.role.strip())


@run_hook
def crewai_crew_run(instrumentation: Instrumentation, crew: Any, /, *_: Any, **__: Any) -> AgentRun | None:
    """The hook of the methods that run a crew. A crew with a streamed output calls the method again in a thread."""
    return None if crew.stream else AgentRun(instrumentation, crew, name_of(crew))


@run_hook
def dspy_run(instrumentation: Instrumentation, module: Any, /, *_: Any, **__: Any) -> AgentRun | None:
    """The hook of the methods that run a module of DSPy.

    A module that DSPy defines is a step of the module that calls it, unless it is an agent that calls tools.
    """
    name = type(module).__name__
    is_step = type(module).__module__.startswith("dspy.") and name not in _DSPY_AGENTS
    return None if is_step and current_agent_run() is not None else AgentRun(instrumentation, module, name)


hide_frames(globals())
