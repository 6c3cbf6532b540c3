"""How one policy is applied: ours by what they decide, anybody's by what goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from operator import is_
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.errors import PolicyContractError
from otel_assembly.history import History
from otel_assembly.ledger import Frame, Group, Ordinals
from otel_assembly.matching import Matcher, moved, replaced
from otel_assembly.policies import POLICIES, policy_kind
from otel_assembly.record import Step
from otel_assembly.view import View, to_runs

if TYPE_CHECKING:
    from otel_assembly.context import Context
    from otel_assembly.ledger import Ledger
    from otel_assembly.policies.base import AssemblyPolicy


def begin_step(
    policy: AssemblyPolicy, index: int, prompts: tuple[str, ...], sources: tuple[str, ...], frame: Frame, view: View
) -> Step:
    """A step that has changed nothing yet."""
    return Step(
        policy=policy.name,
        index=index,
        kind=policy_kind(policy),
        config=_settings(policy),
        prompts_in=prompts,
        prompts_out=prompts,
        sources=sources,
        frame_in=frame,
        view_in=view,
        frame_out=frame,
        view_out=view,
    )


def _settings(policy: AssemblyPolicy) -> Mapping[str, Any]:
    """A policy's settings: numbers and enum values. Of a foreign policy no free text, which could be content."""
    config = getattr(policy, "config", None)
    if not isinstance(config, Mapping):
        return {}
    if type(policy) is POLICIES.get(policy.name):
        return config
    return {
        str(name): value
        for name, value in config.items()
        if value is None or isinstance(value, bool | int | float | Enum)
    }


async def apply(policy: AssemblyPolicy, step: Step, context: Context, ledger: Ledger) -> None:
    """Apply a policy and write down in `step` what it did.

    Raises:
        PolicyContractError: It changed its input, or returned something else than two sequences.
    """
    halts = context.halts_emitted
    decide = getattr(policy, "decide", None)
    try:
        if decide is not None:
            outcome = await decide(step.prompts_in, step.view_in, context)
            if not isinstance(outcome, Outcome):
                raise PolicyContractError(
                    policy.name, step.index, f"decided {type(outcome).__name__}, expected an Outcome"
                )
        else:
            outcome = await _foreign(policy, step, context)
    finally:
        step.halts = context.halts_emitted - halts
    step.prompts_out = _prompts(policy, step, outcome.prompts)
    step.sources = _sources(step)
    step.budget, step.fixed, step.overflow = outcome.budget, outcome.fixed, outcome.overflow
    step.alerts = tuple(outcome.alerts)
    _events(policy, step, outcome, ledger)


async def _foreign(policy: AssemblyPolicy, step: Step, context: Context) -> Outcome:
    prompts, events = list(step.prompts_in), list(step.view_in)
    before = [_copy(event) for event in events]
    given = list(events)
    result: Any = await policy.apply(prompts, events, context)
    changed = _restore(given, before)
    if changed is not None:
        raise PolicyContractError(
            policy.name,
            step.index,
            f"changed event {changed} of its input in place (it was put back); return a changed copy instead",
        )
    if (
        prompts != list(step.prompts_in)
        or len(events) != len(given)
        or any(a is not b for a, b in zip(events, given, strict=True))
    ):
        raise PolicyContractError(
            policy.name, step.index, "changed the list that it was given; return a new list instead"
        )
    if not isinstance(result, tuple) or len(result) != 2 or not all(_is_sequence(part) for part in result):
        raise PolicyContractError(
            policy.name, step.index, f"returned {_shape(result)}, expected (prompts, events): two sequences"
        )
    return Outcome(result[0], result[1])


def _same_objects(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _shape(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__


def _copy(value: Any) -> Any:
    """A chat message with the containers in it copied, so that a change in place shows; other events are frozen."""
    if type(value) is dict:
        return {key: _copy(part) for key, part in value.items()}
    if type(value) is list:
        return [_copy(part) for part in value]
    return value


def _restore(given: list[Any], before: list[Any]) -> int | None:
    """Undo changes in place; the index of the first changed event is returned."""
    first: int | None = None
    for index, (event, was) in enumerate(zip(given, before, strict=True)):
        if type(event) is dict and event != was:
            event.clear()
            event.update(was)
            first = index if first is None else first
    return first


def _prompts(policy: AssemblyPolicy, step: Step, prompts: Any) -> tuple[str, ...]:
    if not _is_sequence(prompts) or not all(isinstance(prompt, str) for prompt in prompts):
        raise PolicyContractError(policy.name, step.index, "returned prompts that are not a sequence of strings")
    return tuple(prompts)


def _sources(step: Step) -> tuple[str, ...]:
    """A prompt that came in keeps its source; a new one is the policy's."""
    known: dict[str, list[str]] = {}
    for prompt, source in zip(reversed(step.prompts_in), reversed(step.sources), strict=True):
        known.setdefault(prompt, []).append(source)
    return tuple(held.pop() if (held := known.get(prompt)) else step.policy for prompt in step.prompts_out)


def _events(policy: AssemblyPolicy, step: Step, outcome: Outcome, ledger: Ledger) -> None:
    events: Any = outcome.events
    if events is step.view_in:
        return
    if isinstance(events, View) and events.history is step.view_in.history:
        step.view_out = events
        _take_verdicts(step, outcome.decisions)
        return
    if not _is_sequence(events):
        raise PolicyContractError(
            policy.name, step.index, f"returned events that are a {type(events).__name__}, expected a sequence"
        )
    _match(step, list(events), outcome.decisions, ledger)


def _group(step: Step, view: View, outcome: DecisionOutcome, reason: DecisionReason) -> Group:
    return Group(view, step.frame_in, outcome, reason)


def _take_verdicts(step: Step, verdicts: Sequence[Verdict]) -> None:
    """Groups from verdicts on views; what left without a verdict left by the policy's own rule."""
    groups: list[Group] = []
    held: list[Group] = []
    for verdict in verdicts:
        view = verdict.events if isinstance(verdict.events, View) else _find(step.view_in, verdict.events)
        into = groups if verdict.outcome in {DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED} else held
        into.append(_group(step, view, verdict.outcome, verdict.reason))
    missing = len(step.view_in) - len(step.view_out) - sum(len(group.view) for group in groups)
    if missing:
        said = {position for group in groups for position in group.view.positions()}
        rest = [p for p in step.view_in.positions() if p not in said and not step.view_out.holds(p)]
        groups.append(_group(step, step.view_in.pick_positions(rest), DecisionOutcome.DROPPED, DecisionReason.POLICY))
    step.groups, step.held = tuple(groups), tuple(held)


def _find(view: View, events: Sequence[Any]) -> View:
    wanted = {id(event) for event in events}
    return view.pick(to_runs(index for index, event in enumerate(view) if id(event) in wanted))


def _match(step: Step, events: list[Any], verdicts: Sequence[Verdict], ledger: Ledger) -> None:
    """Find out what a policy did that only returned its events."""
    view = step.view_in
    found = Matcher(view).match(events)
    indexes = [index for index in found if index is not None]
    gone = set(range(len(view))) - set(indexes)
    compacted = replaced(len(view), found)
    inputs = list(view)
    said = {id(event): verdict for verdict in verdicts for event in verdict.events}
    groups: dict[tuple[DecisionOutcome, DecisionReason], list[int]] = {}
    for index in sorted(gone):
        verdict = said.get(id(inputs[index]))
        if verdict is not None:
            tag = (verdict.outcome, verdict.reason)
        elif index in compacted:
            tag = (DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)
        else:
            tag = (DecisionOutcome.DROPPED, DecisionReason.POLICY)
        groups.setdefault(tag, []).append(index)
    step.groups = tuple(_group(step, view.pick(to_runs(held)), *tag) for tag, held in groups.items())
    if (
        indexes == sorted(indexes)
        and None not in found
        and all(event is inputs[index] for event, index in zip(events, indexes, strict=True))
    ):
        step.view_out = view.pick(to_runs(indexes))
        return
    ordinals = list(step.frame_in.of(view))
    step.moved = tuple(sorted(ordinals[index] for index in moved(indexes)))
    step.frame_out, step.view_out, step.injected = _reframed(step, events, found, ordinals, ledger)


def _reframed(
    step: Step, events: list[Any], found: list[int | None], ordinals: list[int], ledger: Ledger
) -> tuple[Frame, View, tuple[int, ...]]:
    """The policy's output as a history of its own, in which what came in keeps its ordinals."""
    history = History(events)
    history.passing = True
    frame = Frame(history, Ordinals())
    made: list[tuple[Any, int]] = []
    with ledger.lock:
        known = ledger.injected.get(step.index, [])
        again = iter(
            Matcher([event for event, _ in known]).match([e for e, i in zip(events, found, strict=True) if i is None])
        )
        for event, index in zip(events, found, strict=True):
            if index is not None:
                frame.ordinals.extend(1, ordinals[index])
                continue
            earlier = next(again)
            ordinal = known[earlier][1] if earlier is not None else ledger.take(1)
            frame.ordinals.extend(1, ordinal)
            made.append((event, ordinal))
        ledger.injected[step.index] = made
    return frame, history.view(), tuple(ordinal for _, ordinal in made)
