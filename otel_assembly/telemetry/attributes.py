"""Build span attributes from the record of an assembly and from a budget report."""

from __future__ import annotations

import json
import math
from collections import Counter
from enum import Enum
from functools import lru_cache
from itertools import chain, islice, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly._internal.slices import LISTED
from otel_assembly.decision import DecisionOutcome
from otel_assembly.history.tool_pairs import REASONED, broken_in
from otel_assembly.history.view import Range, View, difference, is_in, merged, to_ranges
from otel_assembly.ledger.record import tokens_by_kind
from otel_assembly.ledger.snapshot import FIRST_MADE, item_id_ranges, item_text, subtract_groups
from otel_assembly.messages.event_facts import EventKind, sendable
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.emitter import Arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly._internal.slices import Slices
    from otel_assembly.decision import BudgetEntry, BudgetReport, Overflow
    from otel_assembly.ledger.figures import Prefix, Totals
    from otel_assembly.ledger.record import Departures, Record
    from otel_assembly.ledger.snapshot import ItemGroup, NumberedHistory, Snapshot, Step, Tag
    from otel_assembly.telemetry.emitter import Attributes, Emitter


#: The maximum number of ranges of dropped items that a step's span lists.
_MAX_RANGES: Final = 64


def assembly_attributes(
    record: Record,
    totals: Totals,
    prefix: Prefix,
    departures: Departures,
    halts: int,
    content: Callable[[str], str] | None,
) -> Attributes:
    """Return the attributes of an ``assemble_context`` span, except the arrays that list items.

    `departures` are the items that left the prompt in this turn. `halts` is the number of halts in the assembly.
    `content` redacts a text before export; None if content is not exported.
    """
    attributes: Attributes = {
        names.FORMAT_VERSION: names.READ_FORMAT,
        names.ID: record.assembly_id,
        names.LEDGER_ID: record.ledger.id,
        names.TURN: record.turn,
        names.STEPS: len(record.steps),
        names.TOKENS_IN: totals.tokens_in,
        names.TOKENS_OUT: totals.tokens_out,
        names.TOKENS_METHOD: totals.method,
        names.TOKENS_ENCODING: totals.encoding,
        names.EVENTS_IN: totals.events_in,
        names.EVENTS_OUT: totals.events_out,
        names.EVENTS_INJECTED: totals.events_injected,
        names.PROMPTS_IN: totals.prompts_in,
        names.PROMPTS_OUT: totals.prompts_out,
        names.DROPPED_COUNT: totals.dropped,
        names.DROPPED_TOKENS: totals.dropped_tokens,
        names.NEWLY_DROPPED_COUNT: departures.dropped,
        names.COMPACTED_COUNT: totals.compacted,
        names.COMPACTED_TOKENS: totals.compacted_tokens,
        names.INJECTED_TOKENS: totals.injected_tokens,
        names.ALERTS_DELIVERED: totals.alerts_delivered,
        names.HALTS_EMITTED: halts,
        names.OVERFLOWED: totals.overflow is not None,
    }
    if totals.overflow is not None:
        attributes |= overflow_event(totals.overflow)
    if departures.resumed:  # items that left the prompt before this ledger began
        attributes[names.RESUMED_COUNT] = sum([group.view.length for group in departures.resumed])
    if record.held_events is not None:
        attributes[names.PROVIDER_HELD_EVENTS] = record.held_events
    if record.allowed_edits:
        attributes[names.PROVIDER_ALLOWED_EDITS] = record.allowed_edits
    if record.observed:
        if record.model is not None:  # the model may have been unknown when the span started
            attributes[names.MODEL] = record.model
        _adapt_to_observed(attributes, record, record.sent.view)
    optional = (
        (names.PREVIOUS_ID, record.ledger.recorded_id),
        (names.MODEL_WINDOW, totals.window),
        (names.BUDGET_LIMIT, totals.budget),
        (names.BUDGET_USED, totals.used),
        (names.BUDGET_UTILIZATION, totals.utilization),
        (names.BUDGET_FIXED, totals.fixed),
    )
    for name, value in optional:
        if value is not None:
            attributes[name] = value
    if record.error is None:
        if record.maintenance_error is None:
            attributes[names.PREFIX_TOKENS] = prefix.tokens
            events = record.sent.view.part(0, prefix.events)
            attributes[names.PREFIX_HASH] = record.ledger.prefix_hash(record.sent.prompts[: prefix.prompts], events)
            if prefix.cause is not None:
                attributes[names.PREFIX_BREAK] = prefix.cause
        kinds = tokens_by_kind(record)
        if kinds:
            attributes[names.KIND_NAMES] = tuple(kinds)
            attributes[names.KIND_TOKENS] = tuple(kinds.values())
    if content is not None and (prompts := record.sent.prompts):
        parts = [{"type": "text", "content": content(prompt)} for prompt in prompts]
        attributes[names.GEN_AI_SYSTEM_INSTRUCTIONS] = json.dumps(parts, ensure_ascii=False)
    return attributes


#: The attributes for the fields of `StepTotals`, in their order.
_STEP_TOTALS: Final = (
    names.TOKENS_IN,
    names.TOKENS_OUT,
    names.EVENTS_INJECTED,
    names.INJECTED_TOKENS,
    names.DROPPED_COUNT,
    names.DROPPED_TOKENS,
    names.COMPACTED_COUNT,
    names.COMPACTED_TOKENS,
)


def step_attributes(record: Record, step: Step, departed: Iterable[ItemGroup], halts: int) -> Attributes:
    """Return the attributes that an ``apply_policy`` span gets at its end, except the arrays that list items.

    `departed` are the items that left the prompt by this step in this turn. `halts` is the number of halts in the step.
    """
    newly_dropped = 0
    for group in departed:
        if group.outcome is DecisionOutcome.DROPPED:
            newly_dropped += group.view.length
    # A policy that raised and was skipped passed its input on unchanged.
    out = step.error is None or record.error is None
    attributes: Attributes = {
        **dict(zip(_STEP_TOTALS, record.step_totals[step.index], strict=True)),
        names.EVENTS_IN: step.before.view.length,
        names.EVENTS_OUT: step.after.view.length if out else 0,
        names.PROMPTS_IN: len(step.before.prompts),
        names.PROMPTS_OUT: len(step.after.prompts) if out else 0,
        names.NEWLY_DROPPED_COUNT: newly_dropped,
        names.ALERTS_DELIVERED: len(step.alerts) if record.error is None else 0,
        names.HALTS_EMITTED: halts,
        names.OVERFLOWED: step.overflow is not None,
    }
    if step.overflow is not None:
        attributes |= overflow_event(step.overflow)
    if record.observed:
        _adapt_to_observed(attributes, record, step.after.view)
    if step.reported is not None:
        attributes[names.DROPPED_REPORTED_COUNT] = step.reported
    if step.kind is not None:
        attributes[names.POLICY_KIND] = step.kind
    if step.config:
        attributes[names.POLICY_CONFIG] = config_json(step.config)
    return attributes


#: Attributes that depend on the input; absent if the input is unknown.
_INPUT_ATTRIBUTES: Final = (
    *(names.TOKENS_IN, names.EVENTS_IN, names.EVENTS_INJECTED, names.PROMPTS_IN, names.INJECTED_TOKENS),
    *(
        names.DROPPED_COUNT,
        names.DROPPED_TOKENS,
        names.NEWLY_DROPPED_COUNT,
        names.COMPACTED_COUNT,
        names.COMPACTED_TOKENS,
    ),
)


def _adapt_to_observed(attributes: Attributes, record: Record, view_out: View) -> None:
    """Adapt the attributes of a span to an assembly that an instrumentation observed in a framework.

    Add the number of messages that lost their counterpart, such as a tool result without its call. If the input is
    unknown, remove the attributes that describe it.
    """
    # If the provider stores earlier messages, it also stores the calls whose results are sent, so no pair is broken.
    broken = _broken(record, view_out) if record.error is None and not record.unknown else 0
    if broken:
        attributes[names.PAIRS_BROKEN] = broken
    if record.unknown:
        attributes.pop(names.RESUMED_COUNT, None)
        attributes[names.INPUT_UNKNOWN] = True
        for name in _INPUT_ATTRIBUTES:
            attributes.pop(name, None)


def _broken(record: Record, view: View) -> int:
    """Return the number of events in a view that lost the other half of their tool pair or reasoning.

    If a step inserted or reordered events, the pairing of its output does not show the reasoning that lost its
    following item, or the reverse: nothing marks absent reasoning there, and it may precede another answer.
    """
    source, ids = record.ledger_input.view, record.ledger_input.numbered.item_ids
    before, now, separated = source.history.pairing, view.history.pairing, set[int]()
    if not before.reasoned or view.history is source.history:
        return broken_in(view)
    numbered = next(step.after.numbered for step in record.steps if step.after.view is view)
    places = {numbered.item_ids.of(position): position for position in view.positions()}
    for atom in before.reasoned:
        members = [at for at in before.members(atom) if before.flags[at] & REASONED and source.holds(at)]
        present = [places[item] for item in map(ids.of, members) if item in places]
        joined = len({now.atoms[at] for at in present}) == 1 and all(now.flags[at] & REASONED for at in present)
        if len(present) < len(members) or not joined:
            separated.update(present)
    return broken_in(view, separated)


def config_json(config: Mapping[str, Any]) -> str:
    """Return a policy's settings as JSON; the caller passes only numbers, booleans and enum values."""
    return _config_json(*config, *config.values())


@lru_cache(maxsize=256, typed=True)
def _config_json(*names_and_values: Any) -> str:
    half = len(names_and_values) // 2
    settings = sorted(zip(names_and_values[:half], names_and_values[half:], strict=True))
    plain = {name: _plain(value) for name, value in settings}
    return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str | int | float) else value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def overflow_attributes(overflow: Overflow | None) -> Attributes:
    """Return the attributes that record whether a limit was exceeded and, if it was, why and by how many tokens."""
    return {names.OVERFLOWED: False} if overflow is None else {names.OVERFLOWED: True, **overflow_event(overflow)}


def overflow_event(overflow: Overflow) -> Attributes:
    """Return the attributes of an ``assembly.overflow`` event: the cause and, for a limit in tokens, the excess."""
    attributes: Attributes = {names.OVERFLOW_CAUSE: overflow.cause.value}
    if overflow.unit == "tokens":
        attributes[names.OVERFLOW_TOKENS] = overflow.excess
    return attributes


def assembly_arrays(record: Record, departures: Departures, content: Callable[[str], str] | None) -> Slices[Arrays]:
    """Compute the arrays that list items on an ``assemble_context`` span; yield after each slice of the work.

    The arrays list the items of the input, the items of the prompt, and the new items. The first two are complete on
    every turn, so a reader needs no other turn to know the prompt's items. `content` redacts a text before export; None
    if content is not exported.
    """
    groups: list[tuple[Sequence[str], Sequence[list[Any]]]] = []
    if not record.unknown:
        groups.append(([names.OFFERED_ITEMS], [texts_of(record.ledger_input.ranges)]))
    if record.error is None:
        groups.append(([names.KEPT_ITEMS], [texts_of(item_id_ranges(record.sent.view, record.sent.numbered))]))
        if departures.resumed:
            resumed = chain.from_iterable(group.numbered.of(group.view) for group in departures.resumed)
            groups.append(([names.RESUMED_ITEMS], [ranges_of(resumed)]))
        sources = list(map(sendable, record.sent.sources))
        tokens = [record.prompt_tokens([prompt]) for prompt in record.sent.prompts]
        groups.append(([names.PROMPT_SOURCES, names.PROMPT_TOKENS], [sources, tokens]))
    arrived = yield from _arrivals(record)
    if not arrived:
        return Arrays(groups)
    columns: list[list[Any]] = [[] for _ in _ARRIVED]
    items, kinds, counts, sizes, atoms, calls, origins = columns
    contents: list[str] = []
    estimated: list[int] = []
    replaced: Mapping[int, Iterable[Range]] | None = None
    for number, (item, numbered, position) in enumerate(arrived, 1):
        history, text, origin = numbered.history, f"{item}", ""
        table = history.table(record.meter)
        atom = history.pairing.atoms[position]
        if item >= FIRST_MADE:
            text = item_text(item)
            replaced = _replaced(record) if replaced is None else replaced
            origin = ",".join(texts_of(replaced.get(item, ())))
        items.append(text)
        kinds.append(_KIND_NAMES[history.kind(position)])
        counts.append(table.known(position))
        sizes.append(history.sizes[position])
        atoms.append(text if atom == position else item_text(numbered.item_ids.of(atom)))
        calls.append(history.calls(position))
        origins.append(origin)
        if content is not None:
            contents.append(content("\n".join(history.facts(position).texts)))
        if table.estimated and is_in(table.estimated, position):
            estimated.append(item)
        if number % LISTED == 0:
            yield
    if content is None:
        groups.append((_ARRIVED, columns))
    else:
        groups.append(((*_ARRIVED, names.ARRIVED_CONTENTS), [*columns, contents]))
    if estimated:
        groups.append(([names.TOKENS_ESTIMATED_ITEMS], [ranges_of(estimated)]))
    return Arrays(groups)


def _arrivals(record: Record) -> Slices[list[tuple[int, NumberedHistory, int]]]:
    """Return the items of an assembly that its span has to describe, because they are not exported as they are now.

    These are new or changed items, items that steps created, and exported items whose token count changed.
    """
    ledger, source = record.ledger, record.ledger_input
    numbered, end, item_id = source.numbered, source.view.end, source.numbered.item_ids.of
    counter, table = record.meter.counter, numbered.history.table(record.meter)
    exported = ledger.exported if ledger.exported_by == (counter.name, counter.generation) else []
    last_table, corrections = ledger.exported_table or (table, 0)
    if exported and (corrected := table.corrected[corrections if last_table is table else 0 :]):
        exported = difference(exported, merged((item_id(at), item_id(at) + 1) for at in corrected))
    new = difference(merged(source.ranges), exported)
    positions = numbered.item_ids.find(chain.from_iterable(starmap(range, new)))
    places: dict[int, tuple[NumberedHistory, int]] = {}
    while batch := list(islice(positions, LISTED)):
        for position in batch:
            if position < end:  # later events arrived after the input was read
                places[item_id(position)] = numbered, position
        if len(batch) == LISTED:
            yield
    for step in record.steps:
        for item, position in step.created.items():
            if not is_in(exported, item):
                places.setdefault(item, (step.after.numbered, position))
    return [(item, *place) for item, place in places.items()]


def mark_exported(record: Record) -> None:
    """Mark the items of an assembly's input, and those that its steps created, as exported by its span.

    If another counter counted the tokens than before, all other items have to be exported again.
    """
    ledger, source = record.ledger, record.ledger_input
    exported = list(source.ranges)
    for step in record.steps:
        if step.created:
            exported += [(item, item + 1) for item in step.created]
    counter, table = record.meter.counter, source.view.history.table(record.meter)
    if ledger.exported_by == (counter.name, counter.generation):
        exported += ledger.exported
    ledger.exported, ledger.exported_by = merged(exported), (counter.name, counter.generation)
    ledger.exported_table = table, len(table.corrected)
    ledger.recorded_id = record.assembly_id


#: The parallel arrays that describe new items.
_ARRIVED: Final = (
    names.ARRIVED_ITEMS,
    names.ARRIVED_KINDS,
    names.ARRIVED_TOKENS,
    names.ARRIVED_BYTES,
    names.ARRIVED_ATOMS,
    names.ARRIVED_CALLS,
    names.ARRIVED_SOURCES,
)
#: `Enum.value` is a Python function.
_KIND_NAMES: Final = {kind: kind.value for kind in EventKind}


def _replaced(record: Record) -> Mapping[int, Iterable[Range]]:
    """Map the item id of each summary to the ids of the items that the summary replaces."""
    replaced: dict[int, Iterable[Range]] = dict(record.ledger.leaves)
    for step in record.steps:
        replaced.update(step.provenance)
        replaced.update((compaction.result, compaction.provenance) for compaction in step.compactions)
    return replaced


def step_arrays(record: Record, step: Step) -> Arrays:
    """Return the arrays of an ``apply_policy`` span: the items that the policy drops, compacts and injects."""
    if record.error is not None and step.error is not None:
        return Arrays()
    dropped: list[str] = []
    reasons: list[str] = []
    compacted: list[str] = []
    unlisted_reasons: list[str] = []
    if step.exits:
        listed, unlisted_reasons = _listed_exits(step, record.last)
        for (outcome, reason), ranges in listed:
            texts = texts_of(ranges)
            if outcome is DecisionOutcome.DROPPED:
                dropped += texts
                reasons += [reason.value] * len(texts)
            else:
                compacted += texts
    return Arrays(
        [
            ([names.DROPPED_ITEMS, names.DROPPED_REASONS], [dropped, reasons]),
            ([names.DROPPED_UNLISTED_REASONS], [unlisted_reasons]),
            ([names.COMPACTED_ITEMS], [compacted]),
            ([names.INJECTED_ITEMS], [ranges_of(step.created) if step.created else []]),
        ]
    )


def _listed_exits(step: Step, last: Snapshot) -> tuple[list[tuple[Tag, list[Range]]], list[str]]:
    """Return the items that left by a step, for its span, and the reasons of dropped items that are not listed.

    The items are ranges of item ids by outcome and reason. At most `_MAX_RANGES` ranges of dropped items are listed.
    """
    dropped: list[ItemGroup] = []
    compacted: list[tuple[Tag, list[Range]]] = []
    for group in step.exits:
        if group.outcome is DecisionOutcome.DROPPED:
            dropped.append(group)
        else:
            compacted.append((group.tag, item_id_ranges(group.view, group.numbered)))
    chosen, unlisted = _newest(dropped, _MAX_RANGES + 1), Counter[str]()
    if len(chosen) > _MAX_RANGES:
        chosen = _ranges_to_list(step, dropped, last)
        for group in dropped:
            unlisted[group.reason.value] += group.view.length
        for _, tag, (start, stop) in chosen:
            unlisted[tag[1].value] -= stop - start
    listed: dict[Tag, list[Range]] = {}
    for _, tag, (start, stop) in sorted(chosen, key=itemgetter(0)):
        ranges = listed.setdefault(tag, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    return [*listed.items(), *compacted], list(+unlisted)


def _ranges_to_list(step: Step, dropped: Sequence[ItemGroup], last: Snapshot) -> list[tuple[int, Tag, Range]]:
    """Return the ranges to list: items that another rule dropped before, then newly dropped, then the newest others.

    To explain an item that a turn does not list, a reader of spans uses the latest earlier turn that lists it. That is
    correct only if each change of step or reason is listed in the turn in which it happened.
    """
    changed = subtract_groups(dropped, last.exits_of(step))
    newly_dropped = subtract_groups(changed, last.exits, tagged=False)
    other_rule = subtract_groups(changed, newly_dropped, tagged=False)
    unchanged = subtract_groups(dropped, changed, tagged=False)
    chosen: list[tuple[int, Tag, Range]] = []
    for groups in (other_rule, newly_dropped, unchanged):
        chosen += _newest(groups, _MAX_RANGES - len(chosen))
    return chosen


def _newest(groups: Sequence[ItemGroup], count: int) -> list[tuple[int, Tag, Range]]:
    """Return the newest ranges of item ids in groups, each with its position and the group's outcome and reason."""
    ranges: list[tuple[int, Tag, Range]] = []
    for group in groups:
        tag = group.outcome, group.reason
        for position, start, stop in group.numbered.item_ids.newest_ranges(group.view, count):
            ranges.append((position, tag, (start, stop)))
    return sorted(ranges, key=itemgetter(0))[-count:] if count else []


def texts_of(ranges: Iterable[Range]) -> list[str]:
    """Return ranges of item ids as texts, which include the last id: ``7``, ``4-9`` or ``m0-m2``."""
    texts: list[str] = []
    for start, stop in ranges:
        if start >= FIRST_MADE:
            first, last = item_text(start), item_text(stop - 1)
            texts.append(first if first == last else f"{first}-{last}")
        else:
            texts.append(f"{start}-{stop - 1}" if start < stop - 1 else f"{start}")
    return texts


def ranges_of(items: Iterable[int]) -> list[str]:
    """Return item ids as ranges such as ``4-9``, in ascending order."""
    return ranges_in_order(sorted(set(items)))


def ranges_in_order(items: Iterable[int]) -> list[str]:
    """Return item ids as ranges such as ``4-9``, in the order of the argument."""
    return texts_of(to_ranges(items))


class BlockItems:
    """The item ids of the blocks in a budget report, and the arrays that describe these items on spans.

    A block is identified by its index in the report. This base class is for reports without items, such as the report
    of a failed allocation.
    """

    def ids(self, place: int) -> Sequence[int]:
        """Return the item ids of the block at this index, in the block's order."""
        return ()

    def put_state(self, arrays: Arrays) -> None:
        """Add the arrays of offered and kept items, and the descriptions of new items."""

    def put_changes(self, places: Iterable[int], arrays: Arrays) -> None:
        """Add the arrays of dropped, compacted and injected items of the blocks at these indexes."""


class StepItems(BlockItems):
    """The item ids of a budget report that a policy in a chain made.

    The arrays are empty, because the spans of the policy and of the assembly list the same items.
    """

    def __init__(self, step: Step, report: BudgetReport) -> None:
        self._entries = report.entries
        self._ids: dict[int, int] = {}
        if any(len(entry.items) for entry in report.entries):
            ids = step.before.numbered.of(step.before.view)
            self._ids = {id(event): item for event, item in zip(step.before.view, ids, strict=True)}

    def ids(self, place: int) -> Sequence[int]:
        """Return the item ids of the block at this index, in the block's order."""
        return [self._ids[id(event)] for event in self._entries[place].items]


def put_budget(
    emitter: Emitter, span: Span, context: OtelContext, report: BudgetReport, items: BlockItems, started_ns: int
) -> None:
    """Set a budget report's attributes on its span, and record its blocks as child spans.

    Args:
        emitter: Starts the child spans.
        span: The ``allocate_budget`` span.
        context: The context of that span.
        report: The budget report.
        items: The item ids of the report's blocks.
        started_ns: When the allocator began, in nanoseconds since 1970.
    """
    if not span.is_recording():
        return
    entries = list(report.entries)
    # Only `MAX_BLOCK_SPANS` blocks get a span; blocks that were kept unchanged come last, because they explain least.
    whole = [entry.outcome is DecisionOutcome.KEPT and entry.items_in == entry.items_out for entry in entries]
    shown = set(sorted(range(len(entries)), key=lambda index: (whole[index], index))[: names.MAX_BLOCK_SPANS])
    rest = [entry for index, entry in enumerate(entries) if index not in shown]
    arrays = Arrays()
    items.put_state(arrays)
    arrays.add(
        [names.BLOCKS_NAMES, names.BLOCKS_OUTCOMES, names.BLOCKS_REASONS, names.BLOCKS_TOKENS],
        [
            [entry.name for entry in rest],
            [entry.outcome.value for entry in rest],
            [entry.reason.value for entry in rest],
            [entry.tokens_out for entry in rest],
        ],
    )
    emitter.put(span, context, report_attributes(report), arrays, started_ns)
    if rest:
        # These blocks have no span, so the parent lists their items.
        changes = Arrays()
        items.put_changes([index for index in range(len(entries)) if index not in shown], changes)
        emitter.put(span, context, None, changes, started_ns)
    places = {entry.name: index for index, entry in enumerate(entries)}
    for number, index in enumerate(sorted(shown)):
        # Different start times keep the order in backends that store microseconds.
        at_ns = started_ns + number * names.SIBLING_INTERVAL_NS
        entry = entries[index]
        block = emitter.start_span(f"{names.SPAN_ALLOCATE_BLOCK} {entry.kind}", context, at_ns, {})
        arrays = Arrays()
        if ids := items.ids(index):
            arrays.add([names.BLOCK_ITEMS], [ranges_of(ids)])
            survivors = [item_text(ids[place]) for place in entry.order]
            arrays.add([names.BLOCK_RANKED_ITEMS, names.BLOCK_RANKED_TOKENS], [survivors, list(entry.charges)])
            if any(size > 1 for size in entry.atoms):
                arrays.add([names.BLOCK_ATOM_SIZES], [list(entry.atoms)])
            losers = [item_text(ids[place]) for place, _ in entry.winners]
            winners = [item_text(items.ids(places[name])[place]) for _, (name, place) in entry.winners]
            arrays.add([names.BLOCK_SUPERSEDED_ITEMS, names.BLOCK_SUPERSEDED_BY], [losers, winners])
        items.put_changes([index], arrays)
        emitter.put(block, trace.set_span_in_context(block, context), entry_attributes(entry), arrays, at_ns)
        block.end(at_ns)


def report_attributes(report: BudgetReport) -> Attributes:
    """Return the attributes of an ``allocate_budget`` span, without arrays."""
    outcomes = Counter(entry.outcome for entry in report.entries)
    budget = report.window - report.output_reserve
    utilization = report.utilization
    return {
        names.BUDGET_WINDOW: report.window,
        names.BUDGET_OUTPUT_RESERVE: report.output_reserve,
        names.BUDGET_LIMIT: budget,
        names.BUDGET_FIXED: report.fixed,
        names.BUDGET_USED: report.used,
        names.BUDGET_REMAINING: budget - report.used,
        **({} if utilization is None else {names.BUDGET_UTILIZATION: utilization}),
        names.BLOCKS_KEPT: outcomes[DecisionOutcome.KEPT],
        names.BLOCKS_COMPACTED: outcomes[DecisionOutcome.COMPACTED],
        names.BLOCKS_DROPPED: outcomes[DecisionOutcome.DROPPED],
        **overflow_attributes(report.overflow),
    }


def entry_attributes(entry: BudgetEntry) -> Attributes:
    """Return the attributes of an ``allocate_block`` span, without arrays."""
    return {
        names.BLOCK_NAME: entry.name,
        names.BLOCK_KIND: entry.kind,
        names.BLOCK_PRIORITY: entry.priority,
        names.BLOCK_CUTTABLE: entry.cuttable,
        **({names.BLOCK_CUT_STRATEGY: entry.cut} if entry.cut else {}),
        names.BLOCK_MIN_TOKENS: entry.min_tokens,
        **({names.BLOCK_TOTAL_TOKENS: entry.cost} if entry.cost not in {None, entry.tokens_in} else {}),
        **({names.BLOCK_MIN_ITEMS: entry.enough} if entry.enough else {}),
        **({names.BLOCK_MESSAGE_COUNT: entry.events} if entry.events else {}),
        names.TOKENS_IN: entry.tokens_in,
        names.TOKENS_OUT: entry.tokens_out,
        names.DECISION_OUTCOME: entry.outcome.value,
        names.DECISION_REASON: entry.reason.value,
        names.BUDGET_REMAINING: entry.room,
        names.ITEMS_IN: entry.items_in,
        names.ITEMS_OUT: entry.items_out,
        names.ITEMS_INJECTED: entry.items_injected,
    }
