"""What an allocator decided of blocks, and what became of its attempts to compact, where those spans are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.page.numbers import integer, known, text
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_lists import whole
from otel_assembly.telemetry.store_reader import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.telemetry.ledger_lists import SpanLike

    _Children = Mapping[tuple[str, str | None], Sequence[SpanLike]]

_COMPACTION: Final = "assembly.compaction."
_DEEPEST: Final = 6


def allocations_of(assembly: SpanLike, children: _Children) -> list[dict[str, Any]]:
    """Each allocation below an assembly, with its blocks in the order in which they were decided."""
    found = []
    for span, policy in ((assembly, None), *_below(assembly, children, None, _DEEPEST)):
        if span.name.startswith(names.SPAN_ALLOCATE_BUDGET):
            held = span.attributes
            below = _children(span, children)
            found.append(
                known(
                    {
                        "policy": policy,
                        "window": integer(held.get(names.BUDGET_WINDOW)),
                        "reserve": integer(held.get(names.BUDGET_OUTPUT_RESERVE)),
                        "budget": integer(held.get(names.BUDGET_TOKENS)),
                        "fixed": integer(held.get(names.BUDGET_FIXED)),
                        "used": integer(held.get(names.BUDGET_USED)),
                        "remaining": integer(held.get(names.BUDGET_REMAINING)),
                        "kept": integer(held.get(names.BLOCKS_KEPT)),
                        "compacted": integer(held.get(names.BLOCKS_COMPACTED)),
                        "dropped": integer(held.get(names.BLOCKS_DROPPED)),
                        "blocks": [
                            _block(child, children)
                            for child in below
                            if child.name.startswith(names.SPAN_ALLOCATE_BLOCK)
                        ],
                        "others": _others(whole(span, below)),
                        "attempts": [
                            _attempt(child) for child in below if child.name.startswith(names.SPAN_COMPACT_BLOCK)
                        ],
                    }
                )
            )
    return found


def attempts_of(assembly: SpanLike, children: _Children) -> list[dict[str, Any]]:
    """Attempts to compact that belong to no allocation: those of policies."""
    return [
        _attempt(span) | known({"policy": policy})
        for span, policy in _below(assembly, children, None, _DEEPEST, into_allocations=False)
        if span.name.startswith(names.SPAN_COMPACT_BLOCK)
    ]


def _below(
    span: SpanLike, children: _Children, policy: str | None, depth: int, *, into_allocations: bool = True
) -> Iterator[tuple[SpanLike, str | None]]:
    """Descendants with the policy that they work for; only so deep, for a false circle of parents has no end."""
    for child in _children(span, children) if depth else ():
        whose = text(child.attributes.get(names.POLICY_NAME)) or policy
        yield child, whose
        if into_allocations or not child.name.startswith(names.SPAN_ALLOCATE_BUDGET):
            yield from _below(child, children, whose, depth - 1, into_allocations=into_allocations)


def _children(span: SpanLike, children: _Children) -> Sequence[SpanLike]:
    return children.get((span.trace_id, span.span_id), ())


def _block(span: SpanLike, children: _Children) -> dict[str, Any]:
    held = span.attributes
    return known(
        {
            "name": text(held.get(names.BLOCK_NAME)),
            "kind": text(held.get(names.BLOCK_KIND)),
            "priority": integer(held.get(names.BLOCK_PRIORITY)),
            "cuttable": text(held.get(names.BLOCK_CUTTABLE)),
            "floor": integer(held.get(names.BLOCK_MIN_TOKENS)),
            "in": integer(held.get(names.TOKENS_IN)),
            "out": integer(held.get(names.TOKENS_OUT)),
            "outcome": text(held.get(names.DECISION_OUTCOME)),
            "reason": text(held.get(names.DECISION_REASON)),
            "remaining": integer(held.get(names.BUDGET_REMAINING)),
            "itemsIn": integer(held.get(names.ITEMS_IN)),
            "itemsOut": integer(held.get(names.ITEMS_OUT)),
            "attempts": [
                _attempt(child)
                for child in _children(span, children)
                if child.name.startswith(names.SPAN_COMPACT_BLOCK)
            ],
        }
    )


def _others(held: Mapping[str, Any]) -> list[list[Any]]:
    """Blocks past the number that have a span each."""
    columns = (names.BLOCKS_NAMES, names.BLOCKS_OUTCOMES, names.BLOCKS_REASONS, names.BLOCKS_TOKENS)
    return [list(row) for row in zip(*(as_list(held.get(column)) for column in columns), strict=False)]


def _attempt(span: SpanLike) -> dict[str, Any]:
    """An attempt's own attributes, whatever they are called: what is new there is shown without being known here."""
    held = span.attributes
    said = {
        key.removeprefix(_COMPACTION): ", ".join(map(str, as_list(value)))
        for key, value in held.items()
        if key.startswith(_COMPACTION)
    }
    return known(
        {
            "kind": span.name.removeprefix(names.SPAN_COMPACT_BLOCK).strip() or None,
            "in": integer(held.get(names.TOKENS_IN)),
            "out": integer(held.get(names.TOKENS_OUT)),
            "error": text(held.get(names.ERROR_TYPE)),
            "said": said or None,
        }
    )
