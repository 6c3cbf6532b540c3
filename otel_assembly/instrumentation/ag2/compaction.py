"""Compaction and aggregation: what AG2 does with a history after a turn, and what its summariser's calls took.

Compaction is an assembly of its own, of one step, in the ledger of the prompts: what it takes out, no later prompt has.
Aggregation takes nothing out; it reads a history and writes memory, in a ledger of its own. No model is called with
either; their name says what they are.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.ag2.conversation import asker_of, in_run_of, model_of, turn_of
from otel_assembly.instrumentation.ag2.messages import package_of
from otel_assembly.instrumentation.clients import client
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.known_reducers import KnownReducer
from otel_assembly.instrumentation.model_call import ModelCall, Sent
from otel_assembly.instrumentation.reducers import unsummed
from otel_assembly.instrumentation.reductions import Reducer, reducing
from otel_assembly.instrumentation.upkeep import keeps_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation


def _history(_: Any, /, events: Sequence[Any], context: Any, store: Any = None) -> Sequence[Any]:
    return events


@contextmanager
def _call_of(
    name: str, instrumentation: Instrumentation, _: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> Iterator[ModelCall]:
    """In the place of a prompt, or beside all of them, with an asker of its own."""
    of_prompts, turn = name == "compaction", turn_of(context)
    with in_run_of(context):
        asker = asker_of(context, "" if of_prompts else name)
        call = ModelCall(instrumentation, asker, model=model_of(context), name=name)
        call.came(events, prompts=list(context.prompt) if of_prompts else ())
        call.knows(tools=(turn and turn.tools) or () if of_prompts else ())
        yield call


def _settings(strategy: Any, /, *_: Any, **__: Any) -> dict[str, Any]:
    return KnownReducer(settings={"target": "_target"}).config(strategy)


def _compacted(
    compacted: Iterable[Any], _: Any, /, events: Sequence[Any], context: Any, store: Any = None
) -> list[Any]:
    """What the history is now: AG2 puts back its records of tokens, in the releases that write them."""
    of_agents = sys.modules.get(f"{package_of(context.stream.history)}.agent")
    put_back = getattr(of_agents, "_with_usage_events", None) if turn_of(context) is not None else None
    compacted = list(compacted)
    return compacted if put_back is None else list(put_back(before=events, compacted=compacted, spent_during=[]))


def _why(before: Sequence[Any], after: Sequence[Any], strategy: Any, /, *_: Any, **__: Any) -> dict[str, Any]:
    if type(strategy).__name__ == "TailWindowCompact":
        return {"reason": DecisionReason.OUTSIDE_WINDOW}
    lost = unsummed(before, after, lambda event: str(event.summary or "") if hasattr(event, "summary") else None)
    return {"verdicts": lost} if lost else {}


_COMPACTS: Final = Reducer(_history, _compacted, "compaction", config=_settings, said=_why)
_AGGREGATES: Final = Reducer(_history, policy="aggregation", kind=None, config=_settings, always=True)

#: Around a strategy's ``compact``, and its ``aggregate``.
compact = keeps_up(_COMPACTS, partial(_call_of, "compaction"))
aggregate = keeps_up(_AGGREGATES, partial(_call_of, "aggregation"))


def _read(strategy: Any, /, *args: Any, **kwargs: Any) -> Sent | None:
    """What a strategy of AG2's own has summarised: the last list among the arguments."""
    if reducing() is None:
        return None
    events = next(given for given in reversed((*args, *kwargs.values())) if isinstance(given, list))
    return Sent(events, model=type(strategy).__name__)


#: Around the summariser's call of a strategy of AG2's own.
summarize = client(_read, str)


@around_awaited
def on_turn(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around the middlewares that run strategies: those of users are known when they are met."""
    for method, wrap in (("compact", compact), ("aggregate", aggregate)):
        instrumentation.take(type(middleware._strategy), method, wrap)  # noqa: SLF001  # nothing else names it
    yield
