"""One turn as a page shows it: the numbers of its assembly and of each policy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from otel_assembly.page.allocations import allocations_of, attempts_of
from otel_assembly.page.numbers import integer, known, pairs, runs, text
from otel_assembly.page.signals import turn_signals
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.page.texts import Texts
    from otel_assembly.telemetry.ledger_lists import SpanLike
    from otel_assembly.telemetry.ledger_reader import StepReading, Turn


def turn_row(
    turn: Turn, span: SpanLike, children: Mapping[tuple[str, str | None], Sequence[SpanLike]], texts: Texts
) -> dict[str, Any]:
    """Everything of a turn but its items' histories."""
    held = turn.attributes
    below = children.get((span.trace_id, span.span_id), ())
    policies = [child for child in below if child.name.startswith(names.SPAN_APPLY_POLICY)]
    return known(
        {
            "n": turn.number,
            "trace": turn.trace_id,
            "unsent": not turn.sent,
            "partial": not turn.follows,
            "start": span.start_ns // 1_000_000,
            "us": max(0, span.end_ns - span.start_ns) // 1_000,
            **_measures(held),
            "method": text(held.get(names.TOKENS_METHOD)),
            "encoding": text(held.get(names.TOKENS_ENCODING)),
            "model": text(held.get(names.MODEL)),
            "budget": integer(held.get(names.BUDGET_TOKENS)),
            "fixed": integer(held.get(names.BUDGET_FIXED)),
            "prefix": integer(held.get(names.PREFIX_TOKENS)),
            "break": text(held.get(names.PREFIX_BREAK)),
            "kinds": pairs(held.get(names.KIND_NAMES), held.get(names.KIND_TOKENS)),
            "prompts": pairs(held.get(names.PROMPT_SOURCES), held.get(names.PROMPT_TOKENS)),
            "said": texts.instructions(held),
            "kept": runs(turn.kept),
            "steps": [_step(step) for step in turn.steps],
            "signals": turn_signals(span, policies),
            "allocations": allocations_of(span, children),
            "attempts": attempts_of(span, children),
            "summaries": [[one.result, runs(sorted(one.provenance))] for one in turn.compactions],
        }
    )


def _step(step: StepReading) -> dict[str, Any]:
    held = step.attributes
    reasons = Counter(exit_.reason for exit_ in step.exits.values())
    return known(
        {
            "policy": step.policy,
            "index": step.index,
            "kind": text(held.get(names.POLICY_KIND)),
            "config": text(held.get(names.POLICY_CONFIG)),
            **_measures(held),
            "reasons": [[reason, count] for reason, count in reasons.most_common()],
            "error": text(held.get(names.ERROR_TYPE)),
        }
    )


def _measures(held: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "in": integer(held.get(names.TOKENS_IN)),
        "estimated": held.get(names.TOKENS_IN_ESTIMATED) is True,
        "out": integer(held.get(names.TOKENS_OUT)),
        "eventsIn": integer(held.get(names.EVENTS_IN)),
        "eventsOut": integer(held.get(names.EVENTS_OUT)),
        "inserted": integer(held.get(names.EVENTS_INJECTED)) or None,
        "injectedTokens": integer(held.get(names.INJECTED_TOKENS)) or None,
        "dropped": integer(held.get(names.DROPPED_COUNT)) or None,
        "droppedTokens": integer(held.get(names.DROPPED_TOKENS)) or None,
        "compacted": integer(held.get(names.COMPACTED_COUNT)) or None,
        "compactedTokens": integer(held.get(names.COMPACTED_TOKENS)) or None,
        "diff": text(held.get(names.DIFF)),
    }
