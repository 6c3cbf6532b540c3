"""The facts that a span tree shows about each span and event, such as tokens and dropped items."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.decision import DecisionOutcome, OverflowCause
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import ItemRanges, as_list, integer, pairs, whole_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.cli.terminal import Glyphs
    from otel_assembly.telemetry.store_reader import SpanNode, StoredEvent, StoredSpan

__all__ = ["CONTENT", "Fact", "event_line", "kind_tokens", "span_facts"]

CONTENT = (
    names.ARRIVED_CONTENTS,
    names.GEN_AI_SYSTEM_INSTRUCTIONS,
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.tool.definitions",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
)
"""The span attributes that contain captured content, in the order in which a tree shows them."""

_SEVERITIES = {"info": "cyan", "warning": "yellow", "critical": "bold red", "fatal": "bold white on red"}


_CLEARED = (
    (names.PROVIDER_EDIT_CLEARED_TOKENS, "tokens"),
    (names.PROVIDER_EDIT_CLEARED_TOOL_USES, "tool uses"),
    (names.PROVIDER_EDIT_CLEARED_THINKING_TURNS, "turns of reasoning"),
    (names.PROVIDER_EDIT_CLEARED_BLOCKS, "blocks of reasoning"),
)
"""The counts of what a provider removed from a request, and their units."""


class Fact(NamedTuple):
    """A short text about a span, which may be unsafe to print, and its style; empty for the default style."""

    text: str
    style: str = ""


def span_facts(node: SpanNode, glyphs: Glyphs) -> list[Fact]:
    """Return the facts of a span of this package, which depend on its operation; an empty list for other spans."""
    facts = _FACTS.get(node.span.name.partition(" ")[0])
    return facts(node, glyphs) if facts else []


def event_line(span: StoredSpan, event: StoredEvent, glyphs: Glyphs) -> tuple[Fact, str]:
    """Return the mark of a span event, such as ``HALT``, and its detail, such as the reason of the halt."""
    attributes = event.attributes
    if event.name == names.EVENT_ALERT:
        severity = str(attributes.get(names.ALERT_SEVERITY, "")).lower()
        mark = glyphs.stop if severity == "fatal" else glyphs.warning
        fact = Fact(f"{mark} {severity.upper()} alert", _SEVERITIES.get(severity, "yellow"))
        return fact, _join_texts(attributes.get(names.ALERT_SOURCE), attributes.get(names.ALERT_MESSAGE))
    if event.name == names.EVENT_HALT:
        detail = _join_texts(attributes.get(names.HALT_SOURCE), attributes.get(names.HALT_REASON))
        return Fact(f"{glyphs.stop} HALT", "bold red"), detail
    if event.name == names.EVENT_OVERFLOW:
        return Fact(f"{glyphs.stop} OVERFLOW", "bold red"), overflow_text({**span.attributes, **attributes})
    if event.name == names.EVENT_PROVIDER_EDIT:
        counts = [(_number(attributes, name), unit) for name, unit in _CLEARED]
        cleared = ", ".join(f"{count:,} {unit}" for count, unit in counts if count is not None)
        texts = (attributes.get(names.PROVIDER_EDIT_TYPE), attributes.get(names.PROVIDER_EDIT_REASON), cleared)
        return Fact(f"{glyphs.note} edited by the provider", "yellow"), _join_texts(*texts)
    return Fact(f"{glyphs.note} {event.name}", "dim"), ""


def overflow_text(attributes: Mapping[str, Any]) -> str:
    """Return why and by how many tokens a prompt exceeded a limit, from the attributes of a turn or a step."""
    return _join_texts(str(attributes.get(names.OVERFLOW_CAUSE, "")).replace("_", " "), _excess(attributes))


def _excess(attributes: Mapping[str, Any]) -> str:
    """Describe which limit a prompt exceeded, and by how many tokens.

    A framework's own limit may not count the whole prompt; then the text names the tokens that it does not count.
    """
    over, budget = _number(attributes, names.OVERFLOW_TOKENS), _budget(attributes)
    if over is None:
        return ""
    excess = f"{over:,} token{'s' * (over != 1)} over"
    if attributes.get(names.OVERFLOW_CAUSE) == OverflowCause.WINDOW:
        window = _number(attributes, names.MODEL_WINDOW)
        return f"{excess} the model window of {window:,}" if window is not None else excess
    if not budget:
        return excess
    excess = f"{excess} the budget of {budget:,}"
    sent = _number(attributes, names.TOKENS_OUT) or 0
    if attributes.get(names.OVERFLOW_CAUSE) != OverflowCause.FRAMEWORK or sent <= budget + over:
        return excess
    tokens = kind_tokens(attributes)
    uncounted = [(kind, tokens[kind]) for kind in ("prompt", "tool_schemas", "framing") if tokens[kind]]
    is_complete = sent - budget - over == sum(count for _, count in uncounted)
    uncounted_text = ", without " + ", ".join(f"{kind} {count:,}" for kind, count in uncounted) if is_complete else ""
    return f"{excess}; the framework counts {budget + over:,} of the {sent:,} tokens{uncounted_text}"


def _budget(attributes: Mapping[str, Any]) -> int | None:
    """Return the token limit of a turn, or of a step, whose limit is in the settings of its policy."""
    budget = _number(attributes, names.BUDGET_LIMIT)
    with suppress(ValueError, TypeError, AttributeError):
        return budget or integer(json.loads(attributes.get(names.POLICY_CONFIG, "")).get("max_tokens"))
    return budget


def kind_tokens(attributes: Mapping[str, Any]) -> Counter[str]:
    """Return the tokens of each kind of content in the prompt, in prompt order, without zeros."""
    tokens: Counter[str] = Counter()
    for name, count in pairs(attributes.get(names.KIND_NAMES), attributes.get(names.KIND_TOKENS)):
        if count > 0:
            tokens[name] += count
    return tokens


def _assembly(node: SpanNode, glyphs: Glyphs) -> list[Fact]:
    attributes = node.span.attributes
    turn, budget, dropped, tokens = (
        _number(attributes, key) for key in (names.TURN, names.BUDGET_LIMIT, names.DROPPED_COUNT, names.DROPPED_TOKENS)
    )
    window, used = (_number(attributes, key) for key in (names.MODEL_WINDOW, names.BUDGET_USED))
    facts = [] if turn is None else [Fact(f"turn {turn}")]
    if flow := _flow(attributes, glyphs):
        of = f" / {budget:,}" if budget and used is None else f" / {window:,} (model window)" if window else ""
        facts.append(Fact(f"tokens {flow}{of}"))
    if used is not None and budget is not None:
        facts.append(Fact(f"messages {used:,} / {budget:,}"))
    if dropped:
        details = [*([f"{tokens:,} tokens"] if tokens else []), *_newly_dropped(attributes)]
        facts.append(Fact(f"dropped {dropped:,}" + (f" ({', '.join(details)})" if details else ""), "yellow"))
    before, after, compacted = (
        _number(attributes, key) for key in (names.TOKENS_IN, names.TOKENS_OUT, names.COMPACTED_TOKENS)
    )
    added = (after or 0) + (tokens or 0) + (compacted or 0) - (before or 0)
    facts += _counts(attributes)
    if after and before and added > 0:
        events = _number(attributes, names.EVENTS_INJECTED)
        if events:
            facts[-1] = Fact(f"injected {events:,} ({added:,} tokens)")
        else:
            facts.append(Fact(f"injected {added:,} tokens"))
    return facts


def _policy(node: SpanNode, glyphs: Glyphs) -> list[Fact]:
    attributes = node.span.attributes
    flow = _flow(attributes, glyphs)
    facts = [Fact(flow)] if flow else []
    reasons = _reasons(node)
    dropped = _number(attributes, names.DROPPED_COUNT)
    dropped = reasons.total() if dropped is None else dropped
    if dropped:
        reason_counts = ", ".join(f"{reason} {glyphs.times}{count:,}" for reason, count in reasons.most_common())
        details = "; ".join(filter(None, [", ".join(_newly_dropped(attributes)), reason_counts]))
        facts.append(Fact(f"dropped {dropped:,}" + (f" ({details})" if details else ""), "yellow"))
    facts += _counts(attributes)
    if alerts := _number(attributes, names.ALERTS_DELIVERED):
        facts.append(Fact(f"{alerts:,} alert" + "s" * (alerts > 1), "yellow"))
    return facts


def _allocation(node: SpanNode, glyphs: Glyphs) -> list[Fact]:
    attributes = node.span.attributes
    used, budget, fixed = (
        _number(attributes, key) for key in (names.BUDGET_USED, names.BUDGET_LIMIT, names.BUDGET_FIXED)
    )
    facts = [] if used is None or budget is None else [Fact(f"{used:,} of {budget:,}")]
    if fixed is not None:
        facts.append(Fact(f"fixed {fixed:,}"))
    return facts


def _block(node: SpanNode, glyphs: Glyphs) -> list[Fact]:
    attributes = node.span.attributes
    name, kind = (str(attributes.get(key, "")) for key in (names.BLOCK_NAME, names.BLOCK_KIND))
    facts = [Fact(name)] if name and name != kind else []
    if flow := _flow(attributes, glyphs):
        facts.append(Fact(flow))
    outcome, reason = (str(attributes.get(key, "")) for key in (names.DECISION_OUTCOME, names.DECISION_REASON))
    total, kept = _number(attributes, names.ITEMS_IN), _number(attributes, names.ITEMS_OUT)
    is_whole = outcome == DecisionOutcome.KEPT and total == kept
    if outcome and not is_whole:
        items = f" {kept:,} of {total:,} items" if total and kept and total > 1 else ""
        facts.append(Fact(outcome + items + (f" ({reason})" if reason != outcome else ""), "yellow"))
    return facts


def _attempt(node: SpanNode, glyphs: Glyphs) -> list[Fact]:
    attributes = node.span.attributes
    facts = [Fact(str(attributes.get(names.COMPACTION_COMPACTOR, "")))]
    if flow := _flow(attributes, glyphs):
        facts.append(Fact(flow))
    outcome = str(attributes.get(names.COMPACTION_OUTCOME, ""))
    return [*facts, Fact(outcome, "" if outcome == CompactionOutcome.COMPACTED else "yellow")]


_FACTS: dict[str, Callable[[SpanNode, Glyphs], list[Fact]]] = {
    names.SPAN_ASSEMBLE_CONTEXT: _assembly,
    names.SPAN_APPLY_POLICY: _policy,
    names.SPAN_ALLOCATE_BUDGET: _allocation,
    names.SPAN_ALLOCATE_BLOCK: _block,
    names.SPAN_COMPACT_BLOCK: _attempt,
}


def _flow(attributes: Mapping[str, Any], glyphs: Glyphs) -> str:
    before, after = _number(attributes, names.TOKENS_IN), _number(attributes, names.TOKENS_OUT)
    if before is None or after is None:
        return ""
    return f"{before:,}{glyphs.arrow}{after:,}"


def _counts(attributes: Mapping[str, Any]) -> list[Fact]:
    counts = ("compacted", names.COMPACTED_COUNT), ("injected", names.EVENTS_INJECTED)
    return [Fact(f"{what} {count:,}") for what, key in counts if (count := _number(attributes, key))]


def _newly_dropped(attributes: Mapping[str, Any]) -> list[str]:
    """Return texts on how many items are newly dropped, and how many were dropped before the ledger was resumed."""
    newly, resumed = _number(attributes, names.NEWLY_DROPPED_COUNT), _number(attributes, names.RESUMED_COUNT)
    return [*([f"{newly:,} newly"] if newly else []), *([f"{resumed:,} before resuming"] if resumed else [])]


def _reasons(node: SpanNode) -> Counter[str]:
    """Count a policy's dropped items by reason.

    A span lists a limited number of items. The others have one entry, which names all their reasons.
    """
    attributes = whole_attributes(node.span, (child.span for child in node.children))
    reasons: Counter[str] = Counter()
    for text, reason in zip(
        as_list(attributes.get(names.DROPPED_ITEMS)), as_list(attributes.get(names.DROPPED_REASONS)), strict=False
    ):
        with suppress(ValueError):
            reasons[str(reason)] += len(ItemRanges([text]))
    unlisted_reasons = " or ".join(map(str, as_list(attributes.get(names.DROPPED_UNLISTED_REASONS))))
    if unlisted_reasons:
        reasons[unlisted_reasons] += max(0, (_number(attributes, names.DROPPED_COUNT) or 0) - reasons.total())
    return reasons


def _join_texts(*parts: Any) -> str:
    return ": ".join(str(part) for part in parts if part)


def _number(attributes: Mapping[str, Any], key: str) -> int | None:
    return integer(attributes.get(key))
