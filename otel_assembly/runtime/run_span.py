"""Records a turn of an `Agent` as one run: an ``invoke_agent`` span."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.errors import is_failure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from otel_assembly.events import Event


def record_as_run(
    turn: AsyncGenerator[Event, None], agent_name: str, conversation_id: str | None
) -> AsyncGenerator[Event, None]:
    """Record a turn as a run, with an ``invoke_agent`` span if no span is current; return its events.

    Without a recorder that records runs, the turn is returned unchanged.
    """
    begin = getattr(DEFAULT.recorder, "begin_run", None)
    run = begin(agent_name, conversation_id=conversation_id) if begin is not None else None
    return turn if run is None else _yield_in_span(run, turn)


async def _yield_in_span(run: Any, turn: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield the turn's events. The span is current only while the turn runs, not while the caller handles an event."""
    error: BaseException | None = None
    try:
        async with aclosing(turn):
            while True:
                with run.current():
                    try:
                        event = await anext(turn)
                    except StopAsyncIteration:
                        return
                yield event
    except BaseException as raised:
        error = raised
        raise
    finally:
        run.end(error if error is not None and is_failure(error) else None)
