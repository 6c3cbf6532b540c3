"""What reduces in a run: sessions, handoffs and the sandbox once for the calls that follow, a filter for each call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.registry import Registry
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.clients import summariser_call
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.model_call import Sent
from otel_assembly.instrumentation.openai_agents.messages import items_of
from otel_assembly.instrumentation.openai_agents.runs import RUN, id_of, prepares
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import FRAMEWORK, is_ours, is_own, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, Reduction, reducer
from otel_assembly.instrumentation.splicing import same
from otel_assembly.instrumentation.waiting import WAITING, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.conversation import Asker
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("agents",)


def _named(by: Any, otherwise: str) -> str:
    """The name of what a program gives, which may be a function without one."""
    name = policy_name(by, _PACKAGES)
    return otherwise if name.startswith("<") else name


def _settings(by: Any) -> Mapping[str, Any]:
    return settings_of(by) if is_own(by, _PACKAGES) else {}


def _filter(*_: Any, run_config: Any, **__: Any) -> Any:
    """What a program filters each call with; a plug-in of ours tells itself what it does."""
    by = run_config.call_model_input_filter
    return None if is_ours(by) else by


_filtered: Final = reducer(
    Reducer(
        lambda *_, input_items, system_instructions, **__: Sent(input_items, as_prompts(system_instructions)),
        lambda result, *_, **__: Sent(result.input, as_prompts(result.instructions)),
        lambda by: _named(by, "call_model_input_filter"),
        config=_settings,
        by=_filter,
    )
)


def prepared(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of what prepares a call, in which a program's filter runs."""
    return prepares(_filtered(original, instrumentation), instrumentation)


def _waits(*_: Any, **__: Any) -> Asker | None:
    run = RUN.get()
    return run.waits if run is not None else None


@around_awaited
def hands_off(_: Instrumentation, *args: Any, **given: Any) -> Observation:
    """A handoff, whose filter, or the history that is nested for it, stands for all that the run holds."""
    result, run = (yield), RUN.get()
    before = items_of(given["original_input"], [*given["pre_step_items"], *given["new_step_items"]])
    after = items_of(result.original_input, [*result.pre_step_items, *result.new_step_items])
    if run is None or same(before, after):
        return
    by = given["run_handoffs"][0].handoff.input_filter or given["run_config"].handoff_input_filter
    policy = "nest_handoff_history" if by is None else _named(by, "handoff_input_filter")
    WAITING.put(run.waits, Waiting(policy, before, after))


#: A capability of the sandbox cuts what the agent goes on with.
cuts: Final = reducer(
    Reducer(lambda _, context: context, lambda result, *_: result, lambda by, _: _named(by, ""), asker=_waits)
)


@around_awaited
def loads(instrumentation: Instrumentation, *args: Any, **given: Any) -> Observation:
    """A run begins with what its session holds, as far as a program's callback, or the framework, leaves it in."""
    run, callback = RUN.get(), argument(args, given, 2, "session_input_callback")
    if run is None or argument(args, given, 1, "session") is None:
        return
    run.loaded, run.reads = [], True
    policy, kind = (FRAMEWORK, None) if callback is None else (_named(callback, "session_input_callback"), "reduction")
    reduction = Reduction(instrumentation, policy, (), kind=kind, agent_name=run.name)
    with reduction.followed():
        prepared, _ = yield
    if given.get("include_history_in_prepared_input", True):
        reduction.before = [*run.loaded, *items_of(argument(args, given, 0, "input"))]
        reduction.done(items_of(prepared), asker=run.waits)


@dataclass(slots=True)
class _Stored:
    """What this process has read of a session and added to it, and the compaction since, if there was one."""

    items: list[Any] = field(default_factory=list)
    compaction: Reduction | None = None


#: Sessions of which only the newest items are read, or that are compacted, and what is known of each.
_STORED: Final[Registry[str, _Stored]] = Registry(1_000)
#: So many items of each are known.
_KNOWN: Final = 1_000


@around_awaited
def reads(_: Instrumentation, session: Any, limit: Any = None, **__: Any) -> Observation:
    """A session is read: that it was compacted, or is read up to a limit, shows in what it held before."""
    items, run, name = (yield), RUN.get(), id_of(session)
    if run is None or not run.reads:
        return
    run.loaded, run.reads = items, False
    limited = isinstance(limit, int)
    if name is None or not (limited or hasattr(session, "run_compaction")):
        return
    stored = _STORED.of(name, _Stored)
    held, compaction, stored.compaction = list(stored.items), stored.compaction, None
    if compaction is not None and not same(held, items):
        compaction.before = held
        compaction.done(items, asker=run.waits)
    elif limited and limit == len(items) < len(held) and same(held[-limit:], items):
        said = {"reason": DecisionReason.OUTSIDE_WINDOW}
        WAITING.put(run.waits, Waiting("session_limit", held, list(items), config={"limit": limit}, said=said))
        return
    stored.items = list(items)[-_KNOWN:]


@around_awaited
def adds(_: Instrumentation, session: Any, items: Sequence[Any], **__: Any) -> Observation:
    """A run adds to its session what was asked and answered."""
    yield
    stored = _STORED.get(id_of(session) or "")
    if stored is not None:
        stored.items = [*stored.items, *items][-_KNOWN:]


@around_awaited
def compacts(instrumentation: Instrumentation, session: Any, *_: Any, **__: Any) -> Observation:
    """A session may have the provider compact what it holds: what that changes, the next one finds that reads it."""
    reduction = Reduction(instrumentation, "responses_compaction", ())
    with reduction.followed():
        yield
    stored = _STORED.get(id_of(session) or "")
    if stored is not None and (stored.compaction is None or reduction.attempt is not None):
        stored.compaction = reduction


#: What the provider is given to compact; nothing that is known where it goes by what it holds itself.
compaction_called: Final = summariser_call(
    lambda _, *, model, input=None, **__: Sent(items_of(input or []), model=model)  # noqa: A006  # as it is named there
)
