"""Runs of AG2's agents, and the views of a network's channels that come before them.

A run has a span of ours only where neither AG2 nor the program opened one. It is opened innermost, around the loop
itself: by then whoever wants a span around a turn has opened it. It ends with the turn, whose compaction and
aggregation come after that loop and belong to it. A turn of a network has no span while its view is worked out: the
view is reported as soon as the run that follows has one.
"""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_assembly.instrumentation.hooks import around, around_awaited, instead
from otel_assembly.instrumentation.instrumented import argument, bound, ending

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


#: Whether AG2 renders the message that asks for this turn, which is no part of the history.
_CURRENT_INPUT: Final[ContextVar[bool]] = ContextVar("otel_assembly_ag2_current_input", default=False)
#: Whether a view runs already: a view that asks another one reports for both.
_PROJECTING: Final[ContextVar[bool]] = ContextVar("otel_assembly_ag2_projecting", default=False)
#: What this turn's projections have to report, once it has a span; None outside of a turn.
_WAITING: Final[ContextVar[list[Callable[[], None]] | None]] = ContextVar("otel_assembly_ag2_waiting", default=None)


def report_projections() -> None:
    """Report the projections of this turn, which has its span now."""
    waiting = _WAITING.get()
    while waiting:
        waiting.pop(0)()


@around_awaited
def project(
    instrumentation: Instrumentation, view: Any, /, *args: Any, participant_id: Any, channel: Any, **rest: Any
) -> Observation:
    """Around a view's ``project``."""
    if _CURRENT_INPUT.get() or _PROJECTING.get():
        return
    started_ns, events, name_for = time.time_ns(), (), rest.get("name_for")

    def projected(error: BaseException | None) -> None:
        report = partial(
            instrumentation.observed.project,
            str(getattr(view, "name", "") or type(view).__name__),
            f"{channel.channel_id}\0{participant_id}",
            envelopes_in=len(argument(args, rest, 0, "wal")),
            events=events,
            agent_name=str(name_for(participant_id)) if name_for is not None else None,
            conversation_id=str(channel.channel_id),
            started_ns=started_ns,
            error=error,
        )
        waiting = _WAITING.get()
        if waiting is None or error is not None or trace.get_current_span().get_span_context().is_valid:
            report()
        else:
            waiting.append(report)

    with ending(projected), bound(_PROJECTING, True):
        events = yield


@around_awaited
def current_input(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the rendering of the message that asks for a turn, for which AG2 asks the view once more."""
    with bound(_CURRENT_INPUT, True):
        yield


@around
def view_policy(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
    """Around what finds the view for a turn: the views of users are known when they are met."""
    view = yield
    instrumentation.take(type(view), "project", project)
    _WAITING.set([])


#: The dependencies by which AG2 gives a run a network's channel, and the client whose turn it is there.
_CHANNEL: Final = "ag2.network.channel"
_CLIENT: Final = "ag2.network.agent_client"

#: AG2's names of agents that it makes for one task: as many names as tasks.
_SUBTASK: Final = re.compile(r"(subtask)-[0-9a-f]{8}")

AGENT_RUN: Final[ContextVar[AgentRun | None]] = ContextVar("otel_assembly_ag2_ask", default=None)


class AgentRun:
    """One turn of an agent, from its first middleware to its last."""

    __slots__ = ("_instrumentation", "_run", "agent", "context", "tools")

    def __init__(self, instrumentation: Instrumentation, agent: Any, context: Any) -> None:
        self._instrumentation = instrumentation
        self._run: OpenRun | None = None
        self.agent = agent
        self.context = context
        #: The schemas of the tools of this turn, as AG2 and as we hold them, once they were needed.
        self.tools: tuple[Any, tuple[dict[str, Any], ...]] | None = None

    def open(self) -> None:
        """The agent's loop begins."""
        with self._instrumentation.contained():
            if self._run is None:
                self._run = self._instrumentation.begin_run(
                    name_of(self.agent), conversation_id=conversation_id(self.context, self.agent)
                )
                with self.current():
                    report_projections()

    def current(self) -> AbstractContextManager[None]:
        """What runs in this block belongs to the run."""
        return nullcontext() if self._run is None else _current(self._run)

    def end(self, error: BaseException | None = None) -> None:
        """The turn came to its end."""
        if self._run is not None:
            self._run.end(error)


@contextmanager
def _current(run: OpenRun) -> Iterator[None]:
    with run.current():
        if trace.get_current_span().get_span_context().is_valid:
            yield
            return
        # A span of AG2's own that stood around the loop alone has ended; its trace goes on.
        token = otel_context.attach(trace.set_span_in_context(run.run.span))
        try:
            yield
        finally:
            otel_context.detach(token)


def agent_run_of(context: Any) -> AgentRun | None:
    """The run that goes on here, if it is the one that this context of AG2's is made for."""
    agent_run = AGENT_RUN.get()
    return agent_run if agent_run is not None and agent_run.context is context else None


def name_of(agent: Any) -> str:
    """An agent's name, of low cardinality."""
    return _SUBTASK.sub(r"\1", str(agent.name))


def channel_of(context: Any, agent: Any) -> str | None:
    """The id of the network's channel in which it is this agent's turn; an agent that it asks has its own stream."""
    channel, client = context.dependencies.get(_CHANNEL), context.dependencies.get(_CLIENT)
    return str(channel.channel_id) if channel is not None and getattr(client, "agent", None) is agent else None


def conversation_id(context: Any, agent: Any) -> str | None:
    """The channel's id in a network, else the stream's: by it AG2 keeps histories and names its logs."""
    identity = channel_of(context, agent) or getattr(context.stream, "id", None)
    return None if identity is None else str(identity)


@instead
def turn_scope(
    instrumentation: Instrumentation, original: Any, agent: Any, /, event: Any, *, context: Any, **rest: Any
) -> Any:
    """In the place of `Agent._turn_scope`, which hands out what drives a turn; every run goes through it."""
    scope = original(agent, event, context=context, **rest)
    return _observed_scope(scope, AgentRun(instrumentation, agent, context))


@asynccontextmanager
async def _observed_scope(scope: Any, agent_run: AgentRun) -> AsyncGenerator[Callable[[], Awaitable[Any]], None]:
    async with scope as drive:

        async def driven() -> Any:
            return await _driven(agent_run, drive())

        yield driven


@instead
async def execute(
    instrumentation: Instrumentation, original: Any, agent: Any, /, event: Any, *, context: Any, **rest: Any
) -> Any:
    """In the place of `Agent._execute` of the versions in which every run goes through that."""
    turn = original(agent, event, context=context, **rest)
    if hasattr(type(agent), "_turn_scope"):
        return await turn
    return await _driven(AgentRun(instrumentation, agent, context), turn)


async def _driven(agent_run: AgentRun, turn: Awaitable[Any]) -> Any:
    with ending(agent_run.end), bound(AGENT_RUN, agent_run):
        return await turn


@around_awaited
def execute_turn(instrumentation: Instrumentation, event: Any, context: Any) -> Observation:
    """Around the agent's loop itself."""
    agent_run = agent_run_of(context)
    if agent_run is not None:
        agent_run.open()
        with agent_run.current():
            yield
