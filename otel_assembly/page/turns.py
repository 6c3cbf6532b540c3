"""The data of one turn on a page: its numbers, its policies, its signals and its allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import OverflowCause
from otel_assembly.page.fields import nonempty
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import as_list, below, integer, pairs, text, whole_attributes
from otel_assembly.tokens import input_price

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.page.fields import Texts
    from otel_assembly.telemetry.ledger_history import ReportedStep, ReportedTurn
    from otel_assembly.telemetry.span_values import SpanLike

    _Children = Mapping[tuple[str, str | None], Sequence[SpanLike]]

_COMPACTION: Final = "assembly.compaction."
_DEEPEST: Final = 6


def turn_row(turn: ReportedTurn, span: SpanLike, children: _Children, texts: Texts) -> dict[str, Any]:
    """Return the data of a turn, without its differences from the previous turn."""
    attributes = turn.attributes
    policies = [child for child in below(span, children) if child.name.startswith(names.SPAN_APPLY_POLICY)]
    signals = _signals(span, policies)
    return nonempty(
        {
            "n": turn.number,
            "trace": turn.trace_id,
            "span": turn.span_id,
            "unsent": not turn.sent,
            "partial": turn.missing > 0,
            "start": span.start_ns // 1_000_000,
            "us": max(0, span.end_ns - span.start_ns) // 1_000,
            **_measures(attributes),
            "method": text(attributes.get(names.TOKENS_METHOD)),
            "encoding": text(attributes.get(names.TOKENS_ENCODING)),
            "model": text(attributes.get(names.MODEL)),
            "budget": integer(attributes.get(names.BUDGET_LIMIT)),
            "used": integer(attributes.get(names.BUDGET_USED)),
            "window": integer(attributes.get(names.MODEL_WINDOW)),
            "needs": _needs(turn, signals),
            "fixed": integer(attributes.get(names.BUDGET_FIXED)),
            "prefix": integer(attributes.get(names.PREFIX_TOKENS)),
            "cost": _cost(attributes) if turn.sent else None,
            "break": text(attributes.get(names.PREFIX_BREAK)),
            "kinds": pairs(attributes.get(names.KIND_NAMES), attributes.get(names.KIND_TOKENS)),
            "prompts": pairs(attributes.get(names.PROMPT_SOURCES), attributes.get(names.PROMPT_TOKENS)),
            "said": texts.instructions(attributes),
            "offered": turn.offered.texts if turn.offered is not None else None,
            "kept": turn.kept.texts,
            "new": integer(attributes.get(names.NEWLY_DROPPED_COUNT)) or None,
            "resumed": integer(attributes.get(names.RESUMED_COUNT)),
            "steps": [_step(step) for step in turn.steps],
            "signals": signals,
            "allocations": _allocations(span, children),
            "attempts": _attempts(span, children),
        }
    )


def _needs(turn: ReportedTurn, signals: Iterable[Mapping[str, Any]]) -> int | None:
    """Return how many tokens the prompt of an overflowed turn needed; None if that is not more than was sent."""
    budget, sent = integer(turn.attributes.get(names.BUDGET_LIMIT)), integer(turn.attributes.get(names.TOKENS_OUT))
    overflows = (
        signal for signal in signals if signal["what"] == "overflow" and signal.get("cause") != OverflowCause.WINDOW
    )
    excess = max((signal.get("tokens", 0) for signal in overflows), default=0)
    needs = budget + excess if budget and excess else 0
    return needs if needs > (sent or 0) or not turn.sent else None


def _cost(attributes: Mapping[str, Any]) -> float | None:
    """Return the input cost of the prompt in US dollars; None if the model has no list price."""
    model, tokens = text(attributes.get(names.MODEL)), integer(attributes.get(names.TOKENS_OUT))
    price = input_price(model) if model is not None and tokens is not None else None
    if price is None or tokens is None:
        return None
    return round(price.of_prompt(tokens, integer(attributes.get(names.PREFIX_TOKENS)) or 0).total, 9)


def _step(step: ReportedStep) -> dict[str, Any]:
    attributes = step.attributes
    return nonempty(
        {
            "policy": step.policy,
            "index": step.index,
            "kind": text(attributes.get(names.POLICY_KIND)),
            "config": text(attributes.get(names.POLICY_CONFIG)),
            **_measures(attributes),
            "drops": [[reason, items.texts] for reason, items in step.dropped.items()],
            "gone": step.compacted.texts,
            "made": step.injected.texts,
            "rest": list(step.rest),
            "error": text(attributes.get(names.ERROR_TYPE)),
        }
    )


def _measures(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "in": integer(attributes.get(names.TOKENS_IN)),
        "out": integer(attributes.get(names.TOKENS_OUT)),
        "eventsIn": integer(attributes.get(names.EVENTS_IN)),
        "eventsOut": integer(attributes.get(names.EVENTS_OUT)),
        "inserted": integer(attributes.get(names.EVENTS_INJECTED)) or None,
        "injectedTokens": integer(attributes.get(names.INJECTED_TOKENS)) or None,
        "dropped": integer(attributes.get(names.DROPPED_COUNT)) or None,
        "droppedTokens": integer(attributes.get(names.DROPPED_TOKENS)) or None,
        "compacted": integer(attributes.get(names.COMPACTED_COUNT)) or None,
        "compactedTokens": integer(attributes.get(names.COMPACTED_TOKENS)) or None,
        "inputUnknown": attributes.get(names.INPUT_UNKNOWN) is True,
    }


def _signals(assembly: SpanLike, policies: Iterable[SpanLike]) -> list[dict[str, Any]]:
    """Return the signals of a turn without duplicates: alerts, halts, overflows and errors.

    If a policy's span and the assembly's span record the same signal, that of the policy is kept: it names the policy.
    """
    signals: list[dict[str, Any]] = []
    for span in (*policies, assembly):
        for signal in (*_event_signals(span), *_errors(span)):
            if not any(_is_same_signal(signal, known_signal) for known_signal in signals):
                signals.append(signal)
    count = integer(assembly.attributes.get(names.ALERTS_DELIVERED)) or 0
    without_event = count - sum(signal["what"] == "alert" for signal in signals)
    if without_event > 0:
        signals.append({"what": "alert", "count": without_event, "untold": True})
    halts = integer(assembly.attributes.get(names.HALTS_EMITTED)) or 0
    if not any(signal["what"] == "halt" for signal in signals):
        if halts:
            signals.append({"what": "halt", "untold": True})
        elif assembly.attributes.get(names.ERROR_TYPE) == names.ERROR_ASSEMBLY_HALT:  # halted before this turn
            signals.append({"what": "error", "says": names.ERROR_ASSEMBLY_HALT})
    return signals


def halts_of(span: SpanLike) -> list[dict[str, Any]]:
    """Return the halts among the events of a span, such as the span of an agent's run."""
    return [signal for signal in _event_signals(span) if signal["what"] == "halt"]


def _event_signals(span: SpanLike) -> Iterator[dict[str, Any]]:
    policy = text(span.attributes.get(names.POLICY_NAME))
    for event in getattr(span, "events", ()):
        signal = signal_of(event)
        if signal is not None:
            yield signal | nonempty({"policy": policy})


def signal_of(event: Any) -> dict[str, Any] | None:
    """Return the signal of an event with an alert or a halt; None for other events."""
    attributes = event.attributes
    if event.name == names.EVENT_ALERT:
        return nonempty(
            {
                "what": "alert",
                "severity": text(attributes.get(names.ALERT_SEVERITY)),
                "source": text(attributes.get(names.ALERT_SOURCE)),
                "says": text(attributes.get(names.ALERT_MESSAGE)),
            }
        )
    if event.name == names.EVENT_HALT:
        return nonempty(
            {
                "what": "halt",
                "source": text(attributes.get(names.HALT_SOURCE)),
                "says": text(attributes.get(names.HALT_REASON)),
            }
        )
    return None


def _errors(span: SpanLike) -> Iterator[dict[str, Any]]:
    """Yield overflows and errors from span attributes, which are set even if events are exported as logs."""
    attributes = span.attributes
    policy = text(attributes.get(names.POLICY_NAME))
    if attributes.get(names.OVERFLOWED) is True:
        yield nonempty(
            {
                "what": "overflow",
                "cause": text(attributes.get(names.OVERFLOW_CAUSE)),
                "tokens": integer(attributes.get(names.OVERFLOW_TOKENS)),
                "policy": policy,
            }
        )
    error = text(attributes.get(names.ERROR_TYPE))
    if error is not None and error not in (names.ERROR_CONTEXT_OVERFLOW, names.ERROR_ASSEMBLY_HALT):
        yield nonempty({"what": "error", "says": error, "policy": policy})


def _is_same_signal(signal: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two signals differ only in their policy; an alert of a policy never equals another alert."""
    if signal["what"] == "alert" and signal.get("policy") is not None:
        return False
    return {**signal, "policy": None} == {**other, "policy": None}


def _allocations(assembly: SpanLike, children: _Children) -> list[dict[str, Any]]:
    """Return the budget allocations of an assembly, each with its blocks in the order in which they were decided."""
    allocations = []
    for span, policy in ((assembly, None), *_descendants(assembly, children, None, _DEEPEST)):
        if span.name.startswith(names.SPAN_ALLOCATE_BUDGET):
            attributes = span.attributes
            inside = below(span, children)
            allocations.append(
                nonempty(
                    {
                        "policy": policy,
                        "window": integer(attributes.get(names.BUDGET_WINDOW)),
                        "reserve": integer(attributes.get(names.BUDGET_OUTPUT_RESERVE)),
                        "budget": integer(attributes.get(names.BUDGET_LIMIT)),
                        "fixed": integer(attributes.get(names.BUDGET_FIXED)),
                        "used": integer(attributes.get(names.BUDGET_USED)),
                        "remaining": integer(attributes.get(names.BUDGET_REMAINING)),
                        "kept": integer(attributes.get(names.BLOCKS_KEPT)),
                        "compacted": integer(attributes.get(names.BLOCKS_COMPACTED)),
                        "dropped": integer(attributes.get(names.BLOCKS_DROPPED)),
                        "blocks": [
                            _block(child, children)
                            for child in inside
                            if child.name.startswith(names.SPAN_ALLOCATE_BLOCK)
                        ],
                        "others": _blocks_without_span(whole_attributes(span, inside)),
                        "attempts": [
                            _attempt(child) for child in inside if child.name.startswith(names.SPAN_COMPACT_BLOCK)
                        ],
                    }
                )
            )
    return allocations


def _attempts(assembly: SpanLike, children: _Children) -> list[dict[str, Any]]:
    """Return the compactions that policies made outside budget allocations."""
    return [
        _attempt(span) | nonempty({"policy": policy})
        for span, policy in _descendants(assembly, children, None, _DEEPEST, into_allocations=False)
        if span.name.startswith(names.SPAN_COMPACT_BLOCK)
    ]


def _descendants(
    span: SpanLike, children: _Children, policy: str | None, depth: int, *, into_allocations: bool = True
) -> Iterator[tuple[SpanLike, str | None]]:
    """Yield the descendants of a span, each with the name of the policy that it belongs to.

    Only `depth` levels are read, because damaged spans can have a cycle of parents.
    """
    for child in below(span, children) if depth else ():
        child_policy = text(child.attributes.get(names.POLICY_NAME)) or policy
        yield child, child_policy
        if into_allocations or not child.name.startswith(names.SPAN_ALLOCATE_BUDGET):
            yield from _descendants(child, children, child_policy, depth - 1, into_allocations=into_allocations)


def _block(span: SpanLike, children: _Children) -> dict[str, Any]:
    attributes = span.attributes
    return nonempty(
        {
            "name": text(attributes.get(names.BLOCK_NAME)),
            "kind": text(attributes.get(names.BLOCK_KIND)),
            "priority": integer(attributes.get(names.BLOCK_PRIORITY)),
            "cuttable": text(attributes.get(names.BLOCK_CUTTABLE)),
            "floor": integer(attributes.get(names.BLOCK_MIN_TOKENS)),
            "in": integer(attributes.get(names.TOKENS_IN)),
            "out": integer(attributes.get(names.TOKENS_OUT)),
            "outcome": text(attributes.get(names.DECISION_OUTCOME)),
            "reason": text(attributes.get(names.DECISION_REASON)),
            "remaining": integer(attributes.get(names.BUDGET_REMAINING)),
            "itemsIn": integer(attributes.get(names.ITEMS_IN)),
            "itemsOut": integer(attributes.get(names.ITEMS_OUT)),
            "attempts": [
                _attempt(child) for child in below(span, children) if child.name.startswith(names.SPAN_COMPACT_BLOCK)
            ],
        }
    )


def _blocks_without_span(attributes: Mapping[str, Any]) -> list[list[Any]]:
    """Return name, outcome, reason and tokens of each block that has no span of its own."""
    columns = (names.BLOCKS_NAMES, names.BLOCKS_OUTCOMES, names.BLOCKS_REASONS, names.BLOCKS_TOKENS)
    return [list(row) for row in zip(*(as_list(attributes.get(column)) for column in columns), strict=False)]


def _attempt(span: SpanLike) -> dict[str, Any]:
    """Return a compaction with all attributes under ``assembly.compaction.``; new attributes need no new code."""
    attributes = span.attributes
    details = {
        key.removeprefix(_COMPACTION): ", ".join(map(str, as_list(value)))
        for key, value in attributes.items()
        if key.startswith(_COMPACTION)
    }
    return nonempty(
        {
            "kind": span.name.removeprefix(names.SPAN_COMPACT_BLOCK).strip() or None,
            "in": integer(attributes.get(names.TOKENS_IN)),
            "out": integer(attributes.get(names.TOKENS_OUT)),
            "error": text(attributes.get(names.ERROR_TYPE)),
            "said": details or None,
        }
    )
