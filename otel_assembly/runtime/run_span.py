"""Records a turn of an agent's loop as one run."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.errors import is_failure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from otel_assembly.events import Event


def in_a_run(
    turn: AsyncGenerator[Event, None], agent_name: str, conversation_id: str | None
) -> AsyncGenerator[Event, None]:
    """Record the turn as a run, with an ``invoke_agent`` span if no span is current."""
    begin = getattr(DEFAULT.recorder, "begin_run", None)
    opened = begin(agent_name, conversation_id=conversation_id) if begin is not None else None
    return turn if opened is None else _within(opened, turn)


async def _within(opened: Any, turn: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Yield the turn's events; the span is current only while the turn itself runs, not in the reader's code."""
    error: BaseException | None = None
    try:
        async with aclosing(turn):
            while True:
                with opened.current():
                    try:
                        event = await anext(turn)
                    except StopAsyncIteration:
                        return
                yield event
    except BaseException as raised:
        error = raised
        raise
    finally:
        opened.end(error if error is not None and is_failure(error) else None)
