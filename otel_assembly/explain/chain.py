"""Runs a turn's policies again with other limits, on events that are rebuilt from the numbers in the spans."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from otel_assembly._internal.fork_safety import lazy_property
from otel_assembly.chain.config import policy_of
from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.explain.skeleton import PromptsOfTurn, SkeletonMeter, UnknownError, note_tokens, stand_ins
from otel_assembly.explain.summarised import (
    Answer,
    RecordedCompaction,
    SummaryRerun,
    SummaryState,
    is_extractive,
    summarizing_policy,
)
from otel_assembly.history.history import History
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.provider_rules import ProviderRules
from otel_assembly.policies import POLICIES, BudgetPolicy, DecidingPolicy, HeadAndTailPolicy
from otel_assembly.policies.base import ALTERNATES, INJECTION, USER_FIRST, PolicyLimit, parameters_of
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import item_key

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence

    from otel_assembly.decision import Outcome
    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedStep, ReportedTurn

T = TypeVar("T")


class KnownPolicies:
    """The classes of policies, which are looked up by the names that spans record.

    Args:
        users: Custom policies, which have precedence over built-in policies of the same name.
    """

    def __init__(self, users: Iterable[type[Any]] = ()) -> None:
        self._classes: dict[str, type[Any]] = {**POLICIES, **{policy.name: policy for policy in users}}

    def of(self, step: ReportedStep) -> type[DecidingPolicy] | None:
        """Return the class of a step's policy; None if the class is unknown or not a `DecidingPolicy`."""
        policy = self._classes.get(step.policy)
        return policy if policy is not None and issubclass(policy, DecidingPolicy) else None

    def limit(self, step: ReportedStep) -> PolicyLimit | None:
        """Return which setting of a step's policy is its limit; None if the policy has no limit or is unknown."""
        policy = self.of(step)
        return policy.limit if policy is not None else None


@dataclass(frozen=True, slots=True)
class StepRun:
    """The result of running one policy again.

    Attributes:
        kept: The ids of the items in the policy's output, in order.
        outcome: The policy's outcome; None if the policy was not run, and its recorded decisions were applied instead.
        state: Whether there was room for a summary, if the policy is a budget with a compactor; None for other
            policies.
    """

    kept: tuple[str, ...]
    outcome: Outcome | None = None
    state: SummaryState | None = None

    def reason_for(self, item: str) -> str | None:
        """Return the reason of the policy's decision on an item; None if the policy made no decision on it."""
        for verdict in self.outcome.decisions if self.outcome is not None else ():
            if any(event.item == item for event in verdict.events):
                return verdict.reason.value
        return None


class ChainRun:
    """The policies of one turn, which can be run again with other limits.

    At creation, they are run with the recorded limits, to check that the rerun makes the recorded decisions.

    Attributes:
        problem: Why the rerun does not make the recorded decisions; None if it does.
        base: The results of the rerun with the recorded limits, one for each policy.
    """

    def __init__(self, ledger: LedgerHistory, turn: ReportedTurn, known: KnownPolicies) -> None:
        self._ledger = ledger
        self._turn = turn
        self._known = known
        self._exits = ledger.exits(turn.number)
        self._policies: dict[tuple[int, int, Answer], DecidingPolicy | None] = {}
        self._recorded_drops: dict[int, frozenset[str] | None] = {}
        self._compactions: dict[int, RecordedCompaction | None] = {}
        self.problem: str | None = None
        self.base: list[StepRun] = []
        try:
            self._prepare()
        except UnknownError as error:
            self.problem = str(error)

    def _prepare(self) -> None:
        """Read the turn's input, and run the policies with the recorded limits.

        If the prompt contains tool calls that the rerun drops, the policies are run once more under the assumption that
        these calls await a human's approval, because no policy drops such calls and the spans do not record them.

        Raises:
            UnknownError: The spans lack a fact that the rerun needs.
        """
        turn = self._turn
        if not turn.sent:
            raise UnknownError("nothing was sent on this turn")
        if turn.missing:
            raise UnknownError("the span of one of this turn's policies is missing")
        unknown = [item for item, exit_ in self._exits.items() if exit_.reason is None]
        if unknown:
            raise UnknownError(
                f"for {_counted(unknown, 'absent item')} the spans do not record which policy dropped it"
            )
        self._items = self._input()
        self._prompts = PromptsOfTurn.of(turn)
        self._notes = note_tokens(self._ledger)
        self._run_base(frozenset())
        if self.problem is not None and self._awaiting:
            self._run_base(self._awaiting)

    def _run_base(self, awaiting: frozenset[str]) -> None:
        """Run the policies with the recorded limits, and set `base` and `problem`.

        If a policy wrongly drops tool calls, their items are stored in `_awaiting`.

        Args:
            awaiting: The ids of the items whose tool calls are assumed to await a human's approval.
        """
        self._policies.clear()
        self._recorded_drops.clear()
        self._events = stand_ins(self._ledger, self._turn, self._items, awaiting)
        self._history = History(self._events[item] for item in self._items)
        separated = [
            item
            for position, item in enumerate(self._items)
            if self._atoms[item] not in (item, self._items[self._history.pairing.atoms[position]])
        ]
        if separated:
            raise UnknownError(f"the spans do not record which call each result answers: {_counted(separated, 'item')}")
        self._meter = SkeletonMeter(self._turn, self._prompts, self._notes)
        self.problem, self._awaiting = None, frozenset[str]()
        self.base = self.run({})
        for step, ran in zip(self._turn.steps, self.base, strict=True):
            recorded_items = self._recorded_output(step.index)
            if set(ran.kept) != recorded_items:
                call_kinds = {EventKind.RESPONSE, EventKind.TOOL_CALL}
                missing = (recorded_items - set(ran.kept)) & self._events.keys()
                self._awaiting = frozenset(item for item in missing if self._events[item].kind in call_kinds)
                self.problem = (
                    f"{step.policy}, run again on the recorded numbers, keeps {len(ran.kept)} items and not the"
                    f" {len(recorded_items)} that it kept"
                )
                return
        if list(self.base[-1].kept if self.base else self._items) != list(self._turn.kept):
            self.problem = "the items are in an order that the policies of the chain do not produce"

    def _input(self) -> list[str]:
        """Return the ids of the items in the turn's input, in order.

        Raises:
            UnknownError: The spans do not record all items.
        """
        turn = self._turn
        if turn.offered is None:
            raise UnknownError("the input is unknown")
        items = list(turn.offered)
        known = {item: self._ledger.item(turn.number, item) for item in items}
        missing = [item for item, recorded in known.items() if recorded is None]
        if missing:
            raise UnknownError(f"the arrival of {_counted(missing, 'item')} is not in the spans")
        self._atoms = {item: recorded.atom for item, recorded in known.items() if recorded is not None}
        if turn.attributes.get(names.EVENTS_IN) != len(items):
            raise UnknownError(
                f"the input has {turn.attributes.get(names.EVENTS_IN, 'an unknown number of')} events, but the spans"
                f" record {len(items)}"
            )
        return items

    def _recorded_output(self, index: int) -> set[str]:
        """Return the items in the output of the policy at this index, as the spans record it."""
        items = set(self._items)
        for step in self._turn.steps:
            if step.index <= index:
                items = {item for item in items if not self._removed(step, item)}.union(step.injected)
        return items

    def _removed(self, step: ReportedStep, item: str) -> bool:
        """Return whether a policy removed an item, according to the policy's span or to the ledger."""
        exit_ = self._exits.get(item)
        return step.exit(item) is not None or (exit_ is not None and exit_.index == step.index)

    def can_rerun(self, step: ReportedStep) -> bool:
        """Return whether a rerun can determine a policy's output: it can be run again, or it only injects messages."""
        return _is_injection(step) or self._policy(step, 0) is not None

    def size(self, unit: str) -> int:
        """Return an increase of a limit with which all items fit, in ``tokens`` or ``events``."""
        return sum(event.tokens for event in self._events.values()) if unit == "tokens" else len(self._items)

    @lazy_property
    def answers(self) -> tuple[Answer, ...]:
        """The results of a compactor that a rerun has to assume, the longest summary first.

        A rerun with another limit may need a summary that was never made. Policies after the compactor's may depend on
        the summary's length. The compactor's own policy depends only on whether there is a summary.
        """
        answers = [Answer.LONGEST]
        for step in self._turn.steps:
            recorded = self._compaction(step)
            if recorded is None:
                continue
            if step.index != self._turn.steps[-1].index:
                answers.append(Answer.SHORTEST)
            has_failed = not recorded.made and self._recorded_drops.get(step.index) is not None
            if recorded.may_fail or has_failed:
                answers.append(Answer.FAILED)
        return tuple(dict.fromkeys(answers))

    def keeps(self, item: str, more: Mapping[int, int], upto: int) -> bool:
        """Return whether the policy at index `upto` keeps an item, whatever a compactor returns.

        Args:
            item: The item's id.
            more: The increase of each raised limit, by the policy's index.
            upto: The index of the policy.
        """
        return all(item in self.run(more, upto, answer)[-1].kept for answer in self.answers)

    def may_keep(self, item: str, more: Mapping[int, int], upto: int) -> bool:
        """Return whether the policy at index `upto` keeps an item for at least one possible result of a compactor.

        The arguments are those of `keeps`.
        """
        return any(item in self.run(more, upto, answer)[-1].kept for answer in self.answers)

    def check_shortened(self, more: Mapping[int, int], upto: int) -> None:
        """Check that a rerun keeps no tool result that a compactor shortened on an earlier turn.

        Raises:
            UnknownError: There is such a result. With another limit, its length would be different and is unknown.
        """
        kept = self.run(more, upto)[-1].kept
        for step in self._turn.steps:
            recorded = self._compaction(step) if step.index <= upto else None
            if recorded is not None and not recorded.shortened.isdisjoint(kept):
                item = min(recorded.shortened.intersection(kept), key=item_key)
                raise UnknownError(
                    f"item {item} was shortened on an earlier turn; its length with this limit is unknown"
                )

    def run(self, more: Mapping[int, int], upto: int | None = None, answer: Answer = Answer.LONGEST) -> list[StepRun]:
        """Run the policies with raised limits, and return their results in order.

        Args:
            more: The increase of each raised limit, by the policy's index.
            upto: The index of the last policy to run; None for all policies.
            answer: The assumed result of a compactor, for a summary that was not recorded.

        Raises:
            UnknownError: The spans do not record a number that a policy needs.
        """
        view: Sequence[Any] = self._history.view()
        names_at = {step.index: step.policy for step in self._turn.steps}
        prompts: list[str] = self._prompts.texts_of({"caller"})
        runs: list[StepRun] = []
        for step in self._turn.steps:
            if upto is not None and step.index > upto:
                break
            policy = self._policy(step, more.get(step.index, 0), answer)
            if policy is None or names.EXCEPTION_TYPE in step.attributes:
                prompts = [*prompts, *self._prompts.texts_of({names_at[step.index]} - {"caller"})]
                view = view if _is_injection(step) else self._with_recorded_decisions(step, view)
                runs.append(StepRun(_items(view)))
                continue
            try:
                outcome = result_of(policy.decide(prompts, view, context_of(step, self._meter)))
            except ContextOverflowError:
                raise UnknownError(f"{step.policy}, run again, exceeds its budget") from None
            except UnknownError:
                raise
            except Exception as error:  # a custom policy may need the content of events
                raise UnknownError(
                    f"{step.policy} cannot be run again without the content of events: {type(error).__name__}"
                ) from error
            prompts, view = list(outcome.prompts), outcome.events
            state = policy.state if isinstance(policy, SummaryRerun) else None
            if isinstance(policy, SummaryRerun):
                self._recorded_drops.setdefault(
                    step.index, policy.dropped_items
                )  # the first run uses the recorded limits
            runs.append(StepRun(_items(view), outcome, state))
        return runs

    def _policy(self, step: ReportedStep, more: int, answer: Answer = Answer.LONGEST) -> DecidingPolicy | None:
        """Return a step's policy for a rerun; None if it cannot be run again. Each policy is created only once.

        Args:
            step: The step.
            more: The increase of the policy's limit.
            answer: The assumed result of a compactor, for a summary that was not recorded.
        """
        key = step.index, more, answer
        if key not in self._policies:
            recorded = self._compaction(step)
            self._policies[key] = (
                self._recreated_policy(step, more, self._note_setting(step))
                if recorded is None
                else self._summarizing_policy(step, more, recorded, answer)
            )
        policy: Any = self._policies[key]
        if isinstance(policy, SummaryRerun) and step.index in self._recorded_drops:
            policy.recorded_dropped_items, policy.is_first_run = self._recorded_drops[step.index], False
        return self._policies[key]

    def _compaction(self, step: ReportedStep) -> RecordedCompaction | None:
        """Return the recorded summary and related numbers of a budget with a compactor; None for other policies.

        Raises:
            UnknownError: The policy's compactor shortened a tool result on this turn.
        """
        if step.index not in self._compactions:
            self._compactions[step.index] = self._read_compaction(step)
        return self._compactions[step.index]

    def _read_compaction(self, step: ReportedStep) -> RecordedCompaction | None:
        """Compute the result of `_compaction`, which caches it."""
        policy, settings = self._known.of(step), settings_of(step)
        if policy is None or not issubclass(policy, BudgetPolicy) or not policy.replayable:
            return None
        if "summary_tokens" not in settings:
            return None
        ledger, turn = self._ledger, self._turn
        summaries = stand_ins(ledger, turn, [item for item in turn.kept if item in step.injected], frozenset())
        if len(summaries) < len(step.injected):  # a later policy removed the summary
            summaries = stand_ins(ledger, turn, step.injected, frozenset())
        if any(_is_result(ledger, turn, item) for item in step.injected):
            raise UnknownError("a tool result was shortened on this turn; its length with another limit is unknown")
        return RecordedCompaction(
            reserve=self._summary_reserve(step),
            made=tuple(summaries.values()),
            compacted=frozenset(step.compacted),
            shortened=frozenset(self._shortened(step)),
            is_extractive=is_extractive(settings),
        )

    def _summary_reserve(self, step: ReportedStep) -> int | None:
        """Return the tokens that a policy reserves for a summary, from the nearest turn that records them.

        Only the span of a block of older messages records this number, and not every turn has such a block.
        """
        turns = sorted(self._ledger.turns, key=lambda turn: abs(turn.number - self._turn.number))
        for turn in turns:
            for candidate in turn.steps:
                if candidate.index != step.index or candidate.policy != step.policy or not turn.sent:
                    continue
                for block in candidate.blocks:
                    reserve = block.attributes.get(names.BLOCK_MIN_TOKENS)
                    if block.kind == EventKind.OLDER and isinstance(reserve, int):
                        return reserve
        return None

    def _shortened(self, step: ReportedStep) -> Iterator[str]:
        """Yield the ids of tool results that the policy's compactor shortened on an earlier turn."""
        for turn in self._ledger.turns:
            for earlier_step in turn.steps if turn.number < self._turn.number else ():
                if earlier_step.index == step.index and earlier_step.policy == step.policy:
                    for item in earlier_step.injected:
                        if _is_result(self._ledger, turn, item):
                            yield from self._ledger.items[item].sources

    def _summarizing_policy(
        self, step: ReportedStep, more: int, recorded: RecordedCompaction, answer: Answer
    ) -> DecidingPolicy | None:
        """Create a budget that does not call its compactor; None if the recorded settings are invalid."""
        policy = self._known.of(step)
        if policy is None or not issubclass(policy, BudgetPolicy):
            return None
        settings = {name: value for name, value in settings_of(step).items() if name in parameters_of(policy)}
        try:
            settings["window"] += more
            return summarizing_policy(policy, settings, recorded, answer)
        except (TypeError, ValueError, KeyError, ConfigurationError):  # the recorded settings are invalid
            return None

    def _note_setting(self, step: ReportedStep) -> dict[str, Any]:
        """Return the setting by which `HeadAndTailPolicy` injects its recorded note; empty for other policies."""
        policy = self._known.of(step)
        if policy is None or not issubclass(policy, HeadAndTailPolicy) or len(step.injected) != 1:
            return {}
        (note,) = stand_ins(self._ledger, self._turn, step.injected, frozenset()).values()
        return {"note": lambda _: note}

    def _recreated_policy(
        self, step: ReportedStep, more: int, further_settings: Mapping[str, Any]
    ) -> DecidingPolicy | None:
        """Create a step's policy with its recorded settings; None if it is unknown or needs the content of messages.

        Args:
            step: The step.
            more: The increase of the policy's limit.
            further_settings: Settings that the span does not record.
        """
        policy = self._known.of(step)
        if policy is None or _is_injection(step):
            return None
        try:
            recorded_settings = policy.settings_to_rerun(settings_of(step))
            if recorded_settings is None:
                return None
            settings = {name: recorded_settings[name] for name in parameters_of(policy) if name in recorded_settings}
            if more and policy.limit is not None:
                settings[policy.limit.setting] += more
            new_policy = policy_of(policy, {**settings, **further_settings}, step.policy, step.policy)
        except (ValueError, TypeError, KeyError, ConfigurationError):
            return None
        return new_policy if isinstance(new_policy, DecidingPolicy) else None

    def _with_recorded_decisions(self, step: ReportedStep, view: Sequence[Any]) -> Sequence[Any]:
        """Apply the recorded decisions of a policy that cannot be run again, and return its output."""
        events = {event.item: event for event in view if not self._removed(step, event.item)}
        if len(events) == len(view) and not step.injected:
            return view
        events |= stand_ins(self._ledger, self._turn, step.injected, frozenset())
        sort_keys = _sort_keys(self._items, self._turn.kept)
        return sorted(events.values(), key=lambda event: sort_keys.get(event.item, (len(self._items), 0)))


def _is_result(ledger: LedgerHistory, turn: ReportedTurn, item: str) -> bool:
    """Return whether an item contains tool results.

    `ReportedItem.calls` is negative for an item that answers tool calls, which can also be a user message with a text.
    It is 0 for a tool result that is orphaned or repeats another one; such an item is recognized by its kind.
    """
    known = ledger.item(turn.number, item)
    return known is not None and (known.calls < 0 or known.kind == EventKind.TOOL_RESULT)


def _sort_keys(offered: Sequence[str], kept: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return sort keys of items: the order of the input, with each injected item before its successor in `kept`."""
    keys = {item: (position, 1) for position, item in enumerate(offered)}
    next_position = len(offered)
    for item in reversed(list(kept)):
        if item in keys:
            next_position = keys[item][0]
        else:
            keys[item] = (next_position, 0)
    return keys


def _items(view: Sequence[Any]) -> tuple[str, ...]:
    return tuple(event.item for event in view)


def _is_injection(step: ReportedStep) -> bool:
    """Return whether a policy only injects messages, according to its span."""
    return step.attributes.get(names.POLICY_KIND) == INJECTION


def settings_of(step: ReportedStep) -> dict[str, Any]:
    """Return the settings that a policy's span records; empty if there are none."""
    try:
        read = dict(json.loads(step.attributes.get(names.POLICY_CONFIG) or "{}"))
    except (ValueError, TypeError, RecursionError):
        return {}
    return {name: value for name, value in read.items() if value is not None}


def context_of(step: ReportedStep, meter: SkeletonMeter) -> Context:
    """Create the context for a rerun of a policy, with the provider's rules that the policy's span records."""
    settings = settings_of(step)
    rules = ProviderRules(settings.get(ALTERNATES) is True, settings.get(USER_FIRST) is True)
    return Context().for_assembly(meter, rules=rules)


def _counted(items: Sequence[str], noun: str) -> str:
    return f"item {items[0]}" if len(items) == 1 else f"{len(items)} {noun}s"


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine without an event loop, and return its result.

    `explain` is synchronous, and the policies that it runs do not wait for anything.

    Raises:
        UnknownError: The coroutine waits for something, such as a network, which needs an event loop.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise UnknownError("a policy of the chain awaits something external")
