"""From the record of an assembly to the attributes of its spans."""

from __future__ import annotations

import json
import math
import traceback
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome
from otel_assembly.errors import PolicyFailedError, class_name, error_type
from otel_assembly.ledger.interval_diff import ordinal_runs
from otel_assembly.ledger.ledger_diff import arrivals, counted, step_delta
from otel_assembly.ledger.totals import prefix_hash, tokens_by_kind
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.arrays import Arrays, run_text, runs_of
from otel_assembly.telemetry.conventions_model import DiffQuality
from otel_assembly.telemetry.conventions_spans import ASSEMBLE_CONTEXT
from otel_assembly.telemetry.utf8 import sendable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_assembly.decision import DecisionReason, Overflow
    from otel_assembly.history.view import View
    from otel_assembly.ledger.numbers import Prefix, Totals
    from otel_assembly.ledger.record import Record
    from otel_assembly.ledger.snapshot import Departure
    from otel_assembly.ledger.step import Step
    from otel_assembly.telemetry.sums import Sums

Attributes = dict[str, Any]


def assembly_attributes(record: Record, totals: Totals, prefix: Prefix, sums: Sums, halts: int) -> Attributes:
    """What stands on ``assemble_context`` beside the arrays of the ledger."""
    attributes: Attributes = {
        names.ID: record.assembly_id,
        names.LEDGER_ID: record.ledger.id,
        names.TURN: record.turn,
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
        names.COMPACTED_COUNT: totals.compacted,
        names.COMPACTED_TOKENS: totals.compacted_tokens,
        names.INJECTED_TOKENS: totals.injected_tokens,
        names.ALERTS_DELIVERED: totals.alerts_delivered,
        names.HALTS_EMITTED: halts,
        **overflow_attributes(record.overflow),
    }
    if totals.tokens_in_estimated:
        attributes[names.TOKENS_IN_ESTIMATED] = True
    if record.observed:
        attributes[names.STEPS] = len(record.steps)
        if record.model is not None:  # which may have been unknown when it began
            attributes[names.MODEL] = record.model
        _of_others(attributes, record, record.view_out)
    if record.baseline is not None:
        attributes[names.PREVIOUS_ID] = record.baseline.assembly_id
    if totals.budget is not None:
        attributes[names.BUDGET_TOKENS] = totals.budget
        attributes[names.BUDGET_UTILIZATION] = float(totals.utilization or 0.0)
    if totals.fixed is not None:
        attributes[names.BUDGET_FIXED] = totals.fixed
    if record.error is None and record.spared is None:
        attributes[names.PREFIX_TOKENS] = prefix.tokens
        attributes[names.PREFIX_HASH] = prefix_hash(record, prefix)
        if prefix.cause is not None:
            attributes[names.PREFIX_BREAK] = prefix.cause
    if record.error is None:
        kinds = tokens_by_kind(record)
        if kinds:
            attributes[names.KIND_NAMES] = list(kinds)
            attributes[names.KIND_TOKENS] = list(kinds.values())
    return attributes


def step_attributes(record: Record, step: Step, sums: Sums, halts: int) -> Attributes:
    """What stands on ``apply_policy`` beside the arrays of the ledger, and what it was opened with."""
    #: A policy that raised and was skipped let everything through.
    out = step.error is None or record.error is None
    injected, injected_tokens = sums.injected(step)
    dropped = dropped_tokens = compacted = compacted_tokens = 0
    for group in step.exits:
        if group.outcome is DecisionOutcome.DROPPED:
            dropped += len(group.view)
            dropped_tokens += sums.items(group.view)
        else:
            compacted += len(group.view)
            compacted_tokens += sums.items(group.view)
    attributes: Attributes = {
        names.TOKENS_IN: sums.rendered(step.prompts_in, step.view_in) + step.around_in,
        names.TOKENS_OUT: (
            sums.rendered(step.prompts_out, step.view_out) + step.framing + step.separators if out else 0
        ),
        names.EVENTS_IN: len(step.view_in),
        names.EVENTS_OUT: len(step.view_out) if out else 0,
        names.EVENTS_INJECTED: injected,
        names.PROMPTS_IN: len(step.prompts_in),
        names.PROMPTS_OUT: len(step.prompts_out) if out else 0,
        names.DROPPED_COUNT: dropped if out else len(step.view_in),
        names.DROPPED_TOKENS: dropped_tokens if out else sums.items(step.view_in),
        names.COMPACTED_COUNT: compacted,
        names.COMPACTED_TOKENS: compacted_tokens,
        names.INJECTED_TOKENS: injected_tokens,
        names.ALERTS_DELIVERED: len(step.alerts) if record.error is None else 0,
        names.HALTS_EMITTED: halts,
        **overflow_attributes(step.overflow),
    }
    if not all(sums.table(view).complete(view) for view in (step.view_in, step.view_out)):
        attributes[names.TOKENS_IN_ESTIMATED] = True
    if record.observed:
        _of_others(attributes, record, step.view_out)
    if step.reported is not None:
        attributes[names.DROPPED_REPORTED] = step.reported
    if step.kind is not None:
        attributes[names.POLICY_KIND] = step.kind
    if step.config:
        attributes[names.POLICY_CONFIG] = config_json(step.config)
    return attributes


#: What nobody knows where the input could not be known.
_OF_THE_INPUT: Final = frozenset(use.name for use in ASSEMBLE_CONTEXT.attributes if use.unless == names.DIFF)


def _of_others(attributes: Attributes, record: Record, view_out: View) -> None:
    """What is told beside that of a framework's own reducer: pairs that it broke; nothing of an unknown input."""
    broken = record.broken(view_out) if record.error is None else 0
    if broken:
        attributes[names.PAIRS_BROKEN] = broken
    if record.unknown:
        attributes[names.DIFF] = DiffQuality.UNKNOWN.value
        attributes.pop(names.TOKENS_IN_ESTIMATED, None)
        for name in _OF_THE_INPUT:
            attributes.pop(name, None)


def config_json(config: Mapping[str, Any]) -> str:
    """Settings as JSON; the engine has let nothing through but numbers and enum values."""
    return _config_json(*chain.from_iterable(sorted(config.items())))


@lru_cache(maxsize=256, typed=True)
def _config_json(*flat: Any) -> str:
    settings = {name: _plain(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    return json.dumps(settings, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str | int | float) else value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def overflow_attributes(overflow: Overflow | None) -> Attributes:
    """The same on every span, and whether a limit held or not."""
    if overflow is None:
        return {names.OVERFLOWED: False}
    return {names.OVERFLOWED: True, **overflow_event(overflow)}


def overflow_event(overflow: Overflow) -> Attributes:
    """The attributes of the event."""
    attributes: Attributes = {names.OVERFLOW_CAUSE: overflow.cause.value}
    if overflow.unit == "tokens":
        attributes[names.OVERFLOW_TOKENS] = overflow.excess
    return attributes


def assembly_arrays(record: Record, content: Callable[[str], str] | None) -> Arrays:
    """The ledger on ``assemble_context``: the state first, so that the turn stands on its own, then what is new.

    `content` makes a text fit to leave; None where content stays.
    """
    arrays = Arrays()
    if record.error is not None:
        return arrays
    arrays.add([names.KEPT_ITEMS], [[run_text(*run) for run in ordinal_runs(record.view_out, record.frame_out)]])
    prompts = record.prompts_out
    tokens = list(map(record.meter.prompt, prompts))
    arrays.add([names.PROMPT_SOURCES, names.PROMPT_TOKENS], [list(map(sendable, record.sources)), tokens])
    arrays.add([names.WITHDRAWN_ITEMS], [runs_of(record.withdrawn)])
    arrived = arrivals(record, record.baseline)
    columns: dict[str, list[Any]] = {
        names.ARRIVED_ITEMS: [str(one.item) for one in arrived],
        names.ARRIVED_KINDS: [one.kind for one in arrived],
        names.ARRIVED_TOKENS: [one.tokens for one in arrived],
        names.ARRIVED_BYTES: [one.bytes for one in arrived],
        names.ARRIVED_ATOMS: [str(one.atom) for one in arrived],
        names.ARRIVED_CALLS: [one.calls for one in arrived],
    }
    if content is not None:
        columns[names.ARRIVED_CONTENTS] = [
            content("\n".join(one.frame.history.facts(one.position).texts)) for one in arrived
        ]
    arrays.add(list(columns), list(columns.values()))
    again = counted(record, record.baseline, arrived)
    columns = {
        names.COUNTED_ITEMS: [str(item) for item, _ in again],
        names.COUNTED_TOKENS: [tokens for _, tokens in again],
    }
    arrays.add(list(columns), list(columns.values()))
    return arrays


def step_arrays(record: Record, step: Step) -> Arrays:
    """The changes that a policy decided."""
    arrays = Arrays()
    if record.error is not None:
        return arrays
    delta = step_delta(record, step, record.baseline)
    dropped: list[str] = []
    reasons: list[str] = []
    compacted: list[str] = []
    for group in delta.exits:
        runs = [run_text(*run) for run in ordinal_runs(group.view, group.frame)]
        if group.outcome is DecisionOutcome.DROPPED:
            dropped += runs
            reasons += [group.reason.value] * len(runs)
        else:
            compacted += runs
    for (outcome, reason), items in _by_tag(delta.departed).items():
        runs = runs_of(items)
        if outcome is DecisionOutcome.DROPPED:
            dropped += runs
            reasons += [reason.value] * len(runs)
        else:
            compacted += runs
    arrays.add([names.DROPPED_ITEMS, names.DROPPED_REASONS], [dropped, reasons])
    arrays.add([names.COMPACTED_ITEMS], [compacted])
    arrays.add([names.RETURNED_ITEMS], [runs_of(delta.returned)])
    arrays.add([names.INJECTED_ITEMS], [runs_of(delta.injected)])
    arrays.add([names.WITHDRAWN_ITEMS], [runs_of(delta.withdrawn)])
    return arrays


def _by_tag(departed: Mapping[int, Departure]) -> dict[tuple[DecisionOutcome, DecisionReason], list[int]]:
    tags: dict[tuple[DecisionOutcome, DecisionReason], list[int]] = {}
    for item, one in departed.items():
        tags.setdefault((one.outcome, one.reason), []).append(item)
    return tags


def instructions_json(prompts: Iterable[str], content: Callable[[str], str]) -> str:
    """The prompts in the form of GenAI's ``gen_ai.system_instructions``."""
    return json.dumps([{"type": "text", "content": content(prompt)} for prompt in prompts], ensure_ascii=False)


def error_attributes(error: BaseException) -> Attributes:
    """What a span says of an exception: never its message, which can quote what the policy was given."""
    cause = error.__cause__ if isinstance(error, PolicyFailedError) and error.__cause__ is not None else error
    frames = traceback.extract_tb(cause.__traceback__, limit=-32)
    return {
        names.ERROR_TYPE: error_type(error),
        names.EXCEPTION_TYPE: class_name(cause),
        names.EXCEPTION_STACKTRACE: "\n".join(f'File "{f.filename}", line {f.lineno}, in {f.name}' for f in frames),
    }
