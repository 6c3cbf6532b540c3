"""Where agent-framework reduces: its strategies of compaction, its provider of them, and stores that leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.agent_framework.calls import asker_of
from otel_assembly.instrumentation.reducers import is_own, left_for, limit_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer, reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Wrap

_PACKAGES: Final = ("agent_framework",)
#: By what a strategy notes on a message that it leaves out.
_REASONS: Final[Mapping[str, DecisionReason]] = {
    **dict.fromkeys(("sliding_window", "tool_call_compaction"), DecisionReason.OUTSIDE_WINDOW),
    **dict.fromkeys(
        ("truncation", "token_budget_fallback", "token_budget_fallback_strict"), DecisionReason.OVER_BUDGET
    ),
    **dict.fromkeys(("tool_result_compaction", "summarized"), DecisionReason.COMPACTED),
}


def _said(before: Sequence[Any], after: Sequence[Any], by: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    """Why each message left, as the strategy noted on it; and the limit of one that has it in tokens."""
    counts = getattr(by, "tokenizer", None) is not None
    limits = ("token_budget", "input_budget_tokens", *(("max_n",) if counts else ()))
    return {
        "verdicts": left_for(before, after, lambda message: _why(message.additional_properties)),
        "budget": limit_of(by, *limits),
    }


def _why(noted: Mapping[str, Any]) -> DecisionReason | None:
    """A truncation goes by messages where nothing has counted their tokens."""
    why = str(noted.get("_exclude_reason"))
    counted = isinstance((noted.get("_group") or {}).get("token_count"), int)
    return DecisionReason.OUTSIDE_WINDOW if why == "truncation" and not counted else _REASONS.get(why)


def _compaction(strategy: Callable[..., Any], before: Callable[..., Sequence[Any] | None], **reads: Any) -> Wrap:
    """The hook of what applies a strategy, which is found among its arguments; for a reducer's own call it is left."""
    return reducer(
        Reducer(
            before,
            policy=lambda applied: policy_name(applied, _PACKAGES, "Strategy", "Compaction"),
            config=lambda applied: settings_of(applied) if is_own(applied, _PACKAGES) else {},
            said=_said,
            by=lambda *args, **kwargs: strategy(*args, **kwargs) if reducing() is None else None,
            **reads,
        )
    )


def _stored(provider: Any, /, *, session: Any = None, **_: Any) -> Sequence[Any] | None:
    state = session.state.get(provider.history_source_id) if session is not None else None
    found = state.get("messages") if isinstance(state, dict) else None
    return found if isinstance(found, list) else None


def _in_state(provider: Any, *_: Any, state: Any = None, **__: Any) -> Sequence[Any] | None:
    return list(state.get("messages", ())) if provider.skip_excluded and isinstance(state, dict) else None


#: A client compacts what it is about to send; what earlier rounds have left out is in the list still.
compaction: Final[Wrap] = _compaction(
    lambda *_, compaction_strategy=None, **__: compaction_strategy,
    lambda _, messages, **__: messages,
    after=lambda result, *_, **__: result,
)
#: A provider compacts what the providers in front of it have loaded, once for a run.
before_run: Final[Wrap] = _compaction(
    lambda provider, **_: provider.before_strategy, lambda _, context, **__: context.get_messages()
)
#: A provider compacts what is stored, when a run is over: what that changes there, the next one finds.
after_run: Final[Wrap] = _compaction(
    lambda provider, **_: provider.after_strategy,
    _stored,
    asker=lambda _, agent=None, session=None, **__: asker_of(agent, session),
)
#: A store leaves out what a compaction of what is stored has noted to be left out.
skips_excluded: Final[Wrap] = reducer(
    Reducer(_in_state, lambda result, *_, **__: result, policy="skip_excluded", said=_said)
)
