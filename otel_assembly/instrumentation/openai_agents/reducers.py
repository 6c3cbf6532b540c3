"""What reduces in a run: sessions, handoffs and the sandbox for all calls that follow, a filter for each by itself."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.clients import summariser_call
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredReduction
from otel_assembly.instrumentation.hooks import observe_any_hook, observe_async_hook
from otel_assembly.instrumentation.instrumented import argument, context_value
from otel_assembly.instrumentation.message_alignment import locate, same
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.openai_agents.messages import items_of
from otel_assembly.instrumentation.openai_agents.runs import RUN, id_of, prepares
from otel_assembly.instrumentation.openai_agents.stored_histories import StoredHistories
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import FRAMEWORK, is_ours, is_own, left_for, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, Reduction, reducer
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("agents",)


def _named(by: Any, otherwise: str = "") -> str:
    """The name of what a program gives, which may be a function without one."""
    name = policy_name(by, _PACKAGES)
    return otherwise if name.startswith("<") else name


def _filter(*_: Any, run_config: Any, **__: Any) -> Any:
    """What a program filters each call with; a plug-in of ours tells itself what it does."""
    by = run_config.call_model_input_filter
    return None if is_ours(by) else by


_filtered: Final = reducer(
    Reducer(
        lambda *_, input_items, system_instructions, **__: ClientRequest(input_items, as_prompts(system_instructions)),
        lambda result, *_, **__: ClientRequest(result.input, as_prompts(result.instructions)),
        lambda by: _named(by, "call_model_input_filter"),
        config=lambda by: settings_of(by) if is_own(by, _PACKAGES) else {},
        by=_filter,
    )
)


def prepared(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of what prepares a call, in which a program's filter runs."""
    return prepares(_filtered(original, instrumentation), instrumentation)


def _waits(*_: Any, **__: Any) -> InvokingAgent | None:
    run = RUN.get()
    return run.waits if run is not None else None


#: A capability of the sandbox cuts what an agent goes on with.
cuts: Final = reducer(
    Reducer(lambda _, context: context, lambda result, *_: result, lambda by, _: _named(by), invoking_agent=_waits)
)


@observe_async_hook
def hands_off(_: Instrumentation, *__: Any, **given: Any) -> Observation:
    """A handoff, of which a filter, or the history that is nested for it, changes what the next agent goes on with."""
    result, invoking_agent = (yield), _waits()
    before = items_of(given["original_input"], [*given["pre_step_items"], *given["new_step_items"]])
    after = items_of(result.original_input, [*result.pre_step_items, *result.new_step_items])
    if invoking_agent is not None and not same(before, after):
        by = given["run_handoffs"][0].handoff.input_filter or given["run_config"].handoff_input_filter
        policy = "nest_handoff_history" if by is None else _named(by, "handoff_input_filter")
        DEFERRED_REDUCTIONS.put(invoking_agent, DeferredReduction(policy, before, after))


#: Where that goes which a run reads of its session.
_LOADED: Final[ContextVar[list[Any] | None]] = ContextVar("otel_assembly_openai_agents_loaded", default=None)
_ADDS: Final = ContextVar("otel_assembly_openai_agents_adds", default=False)
_STORED: Final = StoredHistories("session_limit")


@observe_async_hook
def loads(instrumentation: Instrumentation, *args: Any, **given: Any) -> Observation:
    """A run begins with what its session holds, as far as a program's callback, or the framework, leaves it in."""
    invoking_agent, session, loaded = _waits(), argument(args, given, 1, "session"), list[Any]()
    if invoking_agent is None or session is None:
        return
    instrumentation.take(type(session), "get_items", _reads)
    instrumentation.take(type(session), "add_items", _adds)
    callback = argument(args, given, 2, "session_input_callback")
    policy, kind = (FRAMEWORK, None) if callback is None else (_named(callback, "session_input_callback"), "reduction")
    reduction = Reduction(instrumentation, policy, (), kind=kind)
    with context_value(_LOADED, loaded), reduction.tracked():
        result = yield
    if given.get("include_history_in_prepared_input", True):
        reduction.before, after = [*loaded, *items_of(argument(args, given, 0, "input"))], items_of(result[0])
        if callback is None:
            places = locate(reduction.before, after) or ()
            reduction.verdicts = left_for(reduction.before, [reduction.before[place] for place in places], _orphaned)
        reduction.done(after, invoking_agent=invoking_agent)


def _orphaned(item: Any) -> DecisionReason | None:
    """Why the framework leaves an item of a session out: it has lost its other half."""
    facts = describe(item)
    if facts.closes:
        return DecisionReason.ORPHANED_TOOL_RESULT
    return DecisionReason.ORPHANED_TOOL_CALL if facts.opens else None


@observe_any_hook
def _reads(_: Instrumentation, session: Any, limit: int | None = None, **__: Any) -> Observation:
    loaded = _LOADED.get()
    if loaded is None:  # for something else, or by a session that stands around this one
        return
    with context_value(_LOADED, None):
        items = yield
    loaded += items
    invoking_agent, name = _waits(), id_of(session)
    limit = limit if limit is not None else getattr(getattr(session, "session_settings", None), "limit", None)
    if invoking_agent is not None and name is not None and (limit is not None or hasattr(session, "run_compaction")):
        _STORED.read(name, items, invoking_agent, limit)


@observe_any_hook
def _adds(_: Instrumentation, session: Any, items: Sequence[Any], *__: Any, **___: Any) -> Observation:
    if _ADDS.get():  # by a session that stands around this one, and may have encrypted them
        return
    with context_value(_ADDS, True):
        yield
    _STORED.added(id_of(session) or "", items)


@observe_async_hook
def compacts(instrumentation: Instrumentation, session: Any, *_: Any, **__: Any) -> Observation:
    """A session may have the provider compact what it holds."""
    reduction = Reduction(instrumentation, "responses_compaction", ())
    with reduction.tracked():
        yield
    _STORED.changed(id_of(session) or "", reduction)


#: What the provider is given to compact; nothing that is known where it goes by what it holds itself.
compaction_called: Final = summariser_call(
    lambda _, *, model, input=None, **__: ClientRequest(items_of(input or []), model=model)  # noqa: A006  # as it is named there
)
