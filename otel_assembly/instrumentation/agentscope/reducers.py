"""AgentScope's reducers: contexts that are compressed, images beyond a limit, and tool results that are too long."""

from __future__ import annotations

import json
import math
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.agentscope.conversation import (
    Change,
    ids_of,
    not_called,
    prepare,
    remembered,
    report,
    step_done,
)
from otel_assembly.instrumentation.agentscope.middleware import report_prompt
from otel_assembly.instrumentation.hooks import around, around_awaited
from otel_assembly.instrumentation.instrumented import argument, bound, ending
from otel_assembly.instrumentation.reducers import no_summary
from otel_assembly.messages.describe import EventKind, describe
from otel_assembly.observe.conversations import reported_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.agentscope.messages import Part
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep


COMPRESS_CONTEXT: Final = "compress_context"
_SETTINGS: Final = ("trigger_ratio", "reserve_ratio", "compression_fallback_to_truncation")


class Compression:
    """One check whether a context is too long, and what is done if it is.

    Almost always it is not, so nothing is opened before the context is split; the step then began with the check.
    """

    def __init__(self, instrumentation: Instrumentation, agent: Any, config: Any) -> None:
        self._instrumentation = instrumentation
        self._agent = agent
        self._config = config
        self._before = agent.state.context
        self._assembly: ObservedAssembly | None = None
        self._step: ObservedStep | None = None
        self._events: list[Part] = []
        self._attempts: list[Attempt] = []
        #: What the last summariser was given to read, by the parts' ids.
        self._read: set[str | None] = set()
        self.started_ns = time.time_ns()
        self.summarising = False
        #: What AgentScope itself estimated the whole prompt to take, and whether it has begun to.
        self.estimate: int | None = None
        self.estimating = False

    @property
    def _trigger(self) -> int:
        """The tokens from which a prompt is too long."""
        return int(self._config.trigger_ratio * self._agent.model.context_size)

    def serves(self, agent: Any) -> bool:
        """Whether it is the compression of this agent."""
        return self._agent is agent

    def open(self) -> None:
        """Open the step: AgentScope splits the context, which it is going to compress."""
        if self._assembly is not None:
            return
        known = remembered(self._agent)
        known.compressions += 1
        self._events = known.events(self._agent)
        if known.replies:
            report_prompt(self._instrumentation, self._agent)  # it was made by now, to be measured
        assembly = prepare(self._instrumentation, self._agent, self._events, started_ns=self.started_ns)
        if assembly is None:
            return
        if assembly.recording.measured:
            self._events = assembly.events
        settings = {name: value for name in _SETTINGS if (value := getattr(self._config, name, None)) is not None}
        config = {**settings, "context_size": self._agent.model.context_size}
        self._assembly = assembly
        started_ns = max(self.started_ns, known.done_ns)
        self._step = assembly.step(COMPRESS_CONTEXT, kind="reduction", config=config, started_ns=started_ns)
        self._step.__enter__()

    def summarise(self, model: Any, messages: Sequence[Any]) -> Observation:
        """The summariser's model call."""
        self.summarising = True
        try:
            watching = self._observe(model, messages)
            if watching is None:
                yield
                return
            with watching as attempt:
                self._attempts.append(attempt)
                response = yield
            self._answered(attempt, response)
        finally:
            self.summarising = False

    def _observe(self, model: Any, messages: Sequence[Any]) -> Any:
        from otel_assembly.instrumentation.agentscope.messages import block_part

        if self._step is None or self._assembly is None:
            return None
        if not self._assembly.recording.measured:
            return self._step.compacting(type(model).__name__)
        record, tokens = self._assembly.record, 0
        view = record.steps[-1].view_in
        counts = view.history.table(record.meter).each(view)
        known = {id(part.blocks[0]): (part, count) for part, count in zip(self._events, counts, strict=True)}
        self._read = set()
        for message in messages:
            for block in message.content:
                part, count = known.get(id(block), (None, 0))
                if part is not None:
                    self._read.add(part.facts.id)
                tokens += count if part is not None else record.meter.event(block_part(message, block).facts)
        return self._step.compacting(type(model).__name__, tokens_in=tokens)

    def _answered(self, attempt: Attempt, response: Any) -> None:
        if response is None:
            attempt.outcome = CompactionOutcome.EMPTY
        elif str(getattr(response.finished_reason, "value", response.finished_reason)) == "interrupted":
            attempt.outcome = None
        elif self._step is not None:
            said = response.content
            texts = said.values() if isinstance(said, dict) else (said,)
            read = [part for part in self._events if part.facts.id in self._read]
            attempt.outcome = no_summary("\n".join(map(str, texts)), read) or attempt.outcome
            if attempt.tokens_out is None:
                attempt.tokens_out = self._step.count(json.dumps(said, ensure_ascii=False))

    def end(self, error: BaseException | None = None) -> None:
        """End the check; what an exception leaves as it was is not reported as done."""
        remembered(self._agent).failures += error is not None
        if self._assembly is None or self._step is None:
            if error is None:
                self._instrumentation.observed.declined(COMPRESS_CONTEXT, self._agent.name)
            elif isinstance(error, RuntimeError) and not self._agent.state.context:
                self._impossible(error)
            return
        applied = error is None or self._agent.state.context is not self._before
        if applied:
            with reported_whole(self._assembly):
                self._report(self._step)
        self._step.__exit__(type(error) if error else None, error, None)
        step_done(self._agent, None if applied else error, stays=True)

    def _report(self, step: ObservedStep) -> None:
        known = {part.facts.id: part for part in self._events}
        events = [known.get(part.facts.id, part) for part in remembered(self._agent).events(self._agent)]
        stays = {part.facts.id for part in events}
        left = [part for part in self._events if part.facts.id not in stays]
        lost = {id(part) for part in left if self._is_lost(part)}
        step.out(
            events,
            verdicts=[
                Verdict(
                    [part for part in left if id(part) in lost], DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET
                ),
                Verdict(
                    [part for part in left if id(part) not in lost], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED
                ),
            ],
            budget=self._trigger,
        )
        self._measure(events)
        self._hold(step)

    def _is_lost(self, part: Part) -> bool:
        """Whether a part that left is in no summary: none was made, or the summariser had not read it."""
        if part.facts.kind is EventKind.SUMMARY or not self._attempts:
            return False
        return self._attempts[-1].outcome is not CompactionOutcome.COMPACTED or part.facts.id not in self._read

    def _hold(self, step: ObservedStep) -> None:
        """Report an overflow where what is left is still too long: newest messages, prompt and tools always stay."""
        needed = self._assembly.tokens() if self._assembly is not None else None
        if needed is not None and needed > self._trigger:
            step.overflow(budget=self._trigger, needed=needed, cause=OverflowCause.FRAMEWORK)

    def _measure(self, events: Sequence[Part]) -> None:
        """The summary counts as it will be sent, not as the model gave it."""
        if self._assembly is None or not self._assembly.recording.measured or not self._attempts:
            return
        if self._attempts[-1].outcome is CompactionOutcome.COMPACTED:
            self._attempts[-1].tokens_out = self._assembly.record.meter.event(describe(events[0]))

    def _impossible(self, error: BaseException) -> None:
        """Report an overflow: nothing is left to compress, and the prompt is too long all the same."""
        events = remembered(self._agent).events(self._agent)
        assembly = prepare(self._instrumentation, self._agent, events, started_ns=self.started_ns)
        if assembly is None:
            return
        step = assembly.step(COMPRESS_CONTEXT, kind="reduction", started_ns=self.started_ns)
        with step:
            needed = self.estimate if self.estimate is not None else self._trigger
            step.overflow(budget=self._trigger, needed=math.ceil(needed))
        step_done(self._agent, error)


COMPRESSING: Final[ContextVar[Compression | None]] = ContextVar("otel_assembly_agentscope_compressing", default=None)


@around_awaited
def compress_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._compress_context_impl``."""
    outer = COMPRESSING.get()
    if outer is not None and outer.serves(agent):
        return
    config = argument(args, kwargs, 0, "context_config") or agent.context_config
    observe_model(instrumentation, agent.model)
    compression = Compression(instrumentation, agent, config)
    with ending(compression.end), bound(COMPRESSING, compression):
        yield


@around_awaited
def split_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._split_context_for_compression``, which is called when a context is too long."""
    compression = COMPRESSING.get()
    if compression is not None and compression.serves(agent):
        compression.open()
    yield


@around_awaited
def summarise(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``generate_structured_output`` of a model."""
    compression = COMPRESSING.get()
    if compression is not None and not compression.summarising:
        yield from compression.summarise(model, argument(args, kwargs, 0, "messages", ()))


@around_awaited
def estimate(instrumentation: Instrumentation, model: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``count_tokens`` of a model: the first count of a compression is that of the whole prompt."""
    compression = COMPRESSING.get()
    if compression is not None and not compression.estimating:
        compression.estimating = True
        compression.estimate = yield


_OF_MODELS: Final = {"generate_structured_output": summarise, "count_tokens": estimate}


def observe_model(instrumentation: Instrumentation, model: Any) -> None:
    """A model's class may have methods of its own in the place of those that are hooked: they are wrapped when met."""
    for name, wrap in _OF_MODELS.items():
        instrumentation.take(type(model), name, wrap)


LIMIT_IMAGES: Final = "limit_images"
TRUNCATE_TOOL_RESULT: Final = "truncate_tool_result"


class _Truncated(NamedTuple):
    """A tool result that was cut, and is not in the context yet."""

    whole: Any
    reserved: Any
    started_ns: int


_TRUNCATED: Final[ContextVar[_Truncated | None]] = ContextVar("otel_assembly_agentscope_truncated", default=None)


@around_awaited
def limit_images(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._limit_context_images``, which replaces the oldest images in place."""
    known, started_ns = remembered(agent), time.time_ns()
    most = argument(args, kwargs, 0, "cfg").max_image_num
    if known.images.count(agent.state.context) <= most:
        return
    before = known.events(agent)

    def limited(error: BaseException | None) -> None:
        known.images.forget()
        after = known.events(agent)
        if error is not None or ids_of(before) != ids_of(after):
            change = Change(LIMIT_IMAGES, before, after, started_ns, "reduction", {"max_image_num": most}, error=error)
            report(instrumentation, agent, change)
        compression = COMPRESSING.get()
        if compression is not None and compression.serves(agent):
            compression.started_ns = time.time_ns()

    with ending(limited):
        yield


@around_awaited
def split_tool_result(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._split_tool_result_for_compression``, which says what of a tool result is kept."""
    started_ns = time.time_ns()
    reserved, offloaded = yield
    if offloaded is not None:
        _TRUNCATED.set(_Truncated(argument(args, kwargs, 0, "tool_result"), reserved, started_ns))


@around
def save_to_context(instrumentation: Instrumentation, agent: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``Agent._save_to_context``: a result that was cut is reported as it is in the context then."""
    yield
    truncated = _TRUNCATED.get()
    if truncated is not None:
        _truncated(instrumentation, agent, truncated)


def _truncated(instrumentation: Instrumentation, agent: Any, truncated: _Truncated) -> None:
    from otel_assembly.instrumentation.agentscope.messages import block_part

    context = agent.state.context
    if not context or not context[-1].content or context[-1].content[-1] is not truncated.reserved:
        return
    _TRUNCATED.set(None)
    after = remembered(agent).events(agent)
    whole = block_part(context[-1], truncated.whole)
    before = [*after[:-1], whole]
    if ids_of(before) != ids_of(after):
        settings = {"tool_result_limit": agent.context_config.tool_result_limit}
        change = Change(TRUNCATE_TOOL_RESULT, before, after, truncated.started_ns, "reduction", settings)
        report(instrumentation, agent, change)
    not_called(agent)  # more results may come before the model is called
