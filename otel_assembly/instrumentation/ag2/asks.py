"""Asks of AG2's agents: each is one run, with a span of ours only where neither AG2 nor the program opened one.

The span is opened innermost, around the loop itself: by then whoever wants a span around a turn has opened it. It ends
with the turn, whose compaction and aggregation come after that loop and belong to it.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from otel_assembly.instrumentation.ag2.views import tell_what_waits
from otel_assembly.instrumentation.wrapping import bound

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.telemetry.run import OpenRun

#: The dependencies by which AG2 hands a network's channel, and whose turn it is there, to an ask.
_CHANNEL: Final = "ag2.network.channel"
_CLIENT: Final = "ag2.network.agent_client"

#: AG2's names of agents that it makes for one task: as many names as tasks.
_SUBTASK: Final = re.compile(r"(subtask)-[0-9a-f]{8}")

ASK: Final[ContextVar[Ask | None]] = ContextVar("otel_assembly_ag2_ask", default=None)


class Ask:
    """One turn of an agent, from its first middleware to its last."""

    __slots__ = ("_instrumentation", "_run", "agent", "context", "tools")

    def __init__(self, instrumentation: Instrumentation, agent: Any, context: Any) -> None:
        self._instrumentation = instrumentation
        self._run: OpenRun | None = None
        self.agent = agent
        self.context = context
        #: The schemas of the tools of this turn, as AG2 and as we hold them, once somebody has asked.
        self.tools: tuple[Any, tuple[dict[str, Any], ...]] | None = None

    def open(self) -> None:
        """The agent's loop begins."""
        with self._instrumentation.contained():
            if self._run is None:
                self._run = self._instrumentation.begin_run(
                    name_of(self.agent), conversation_id=conversation_id(self.context, self.agent)
                )
                with self.current():
                    tell_what_waits()

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


def turn_scope(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `Agent._turn_scope`, which hands out what drives a turn; every way to ask goes through it."""

    @wraps(original)
    def scope(self: Any, event: Any, *, context: Any, **rest: Any) -> Any:
        if not instrumentation.listening():
            return original(self, event, context=context, **rest)
        return _scope(original(self, event, context=context, **rest), Ask(instrumentation, self, context))

    return scope


@asynccontextmanager
async def _scope(scope: Any, ask: Ask) -> AsyncGenerator[Callable[[], Awaitable[Any]], None]:
    async with scope as drive:

        async def driven() -> Any:
            return await _driven(ask, drive())

        yield driven


def execute(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `Agent._execute` of the versions in which every ask goes through that."""

    @wraps(original)
    async def asked(self: Any, event: Any, *, context: Any, **rest: Any) -> Any:
        if not instrumentation.listening() or hasattr(type(self), "_turn_scope"):
            return await original(self, event, context=context, **rest)
        return await _driven(Ask(instrumentation, self, context), original(self, event, context=context, **rest))

    return asked


async def _driven(ask: Ask, turn: Awaitable[Any]) -> Any:
    try:
        with bound(ASK, ask):
            result = await turn
    except BaseException as error:
        ask.end(error)
        raise
    ask.end()
    return result


def execute_turn(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around the agent's loop itself."""

    @wraps(original)
    async def looped(event: Any, context: Any) -> Any:
        ask = ASK.get()
        if ask is None or ask.context is not context or not instrumentation.listening():
            return await original(event, context)
        ask.open()
        with ask.current():
            return await original(event, context)

    return looped
