"""Record each attempt to replace messages by a shorter text as a ``compact_block`` span.

A span is ended only after the whole assembly or allocation, because the item id of the new text is not known before.
The span's end time is still that of the attempt.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import context as otel_context
from opentelemetry.trace import Status, StatusCode

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.messages.event_facts import sendable
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.emitter import Arrays, sendable_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.budget.attempt import Attempt, Watch
    from otel_assembly.telemetry.emitter import Emitter


class AttemptSpans:
    """The ``compact_block`` spans of one assembly, of one allocation, or of one compaction between assemblies.

    Args:
        emitter: Starts the spans.
        attributes: Attributes for every span, in addition to those of its attempt.
    """

    __slots__ = ("_attributes", "_emitter", "_spans")

    def __init__(self, emitter: Emitter, attributes: Mapping[str, Any] | None = None) -> None:
        self._emitter = emitter
        self._attributes = attributes or {}
        #: By the identity of the attempt: the attempt, its span, the span's context, and the attempt's end.
        self._spans: dict[int, tuple[Attempt, Span, OtelContext, int]] = {}

    def watch(self, kind: str) -> Watch:
        """Return a function that records an attempt to compact a block of this kind: a context manager around it."""

        @contextmanager
        def record_attempt(attempt: Attempt, /) -> Iterator[None]:
            attributes = sendable_values(
                {
                    **self._attributes,
                    names.BLOCK_KIND: kind,
                    names.COMPACTION_COMPACTOR: attempt.compactor,
                    names.COMPACTION_ATTEMPT: attempt.number,
                    names.COMPACTION_TARGET_TOKENS: attempt.target,
                    names.TOKENS_IN: attempt.tokens_in,
                }
            )
            name, parent = sendable(f"{names.SPAN_COMPACT_BLOCK} {kind}"), otel_context.get_current()
            span, context = self._emitter.open_span(name, parent, attempt.started_ns or time.time_ns(), attributes)
            for model_span in attempt.model_spans:
                span.add_link(model_span)
            token = otel_context.attach(context)
            try:
                yield
            finally:
                otel_context.detach(token)
                self._spans[id(attempt)] = attempt, span, context, attempt.ended_ns or time.time_ns()

        return record_attempt

    def explain(self, attempts: Iterable[Attempt], provenance: list[str], result: str) -> None:
        """Set a summary's id and source items on the span of the attempt that made the summary.

        Args:
            attempts: The attempts to compact one block.
            provenance: The ids of the items that the summary replaces, as ranges such as ``4-9``.
            result: The summary's item id.
        """
        # If several attempts succeeded, the last one's summary is in the prompt.
        successful = [attempt for attempt in attempts if attempt.outcome is CompactionOutcome.COMPACTED][-1:]
        for entry in (self._spans.get(id(attempt)) for attempt in successful):
            if entry is not None:
                _, span, context, ended_ns = entry
                arrays = Arrays()
                arrays.add([names.COMPACTION_PROVENANCE], [provenance])
                self._emitter.put(span, context, {names.COMPACTION_RESULT: result}, arrays, ended_ns)

    def end(self) -> None:
        """End all spans, each at the time when its attempt ended."""
        for attempt, span, _, ended_ns in self._spans.values():
            with self._emitter.suppress_errors("span"):
                outcome = attempt.outcome
                # An attempt that was cancelled or halted has no outcome.
                span.set_attribute(names.COMPACTION_OUTCOME, (outcome or CompactionOutcome.RAISED).value)
                if attempt.tokens_out is not None:
                    span.set_attribute(names.TOKENS_OUT, attempt.tokens_out)
                if outcome is not CompactionOutcome.COMPACTED:
                    failure = outcome.value if outcome is not None else names.ERROR_CANCELLED
                    span.set_attribute(names.ERROR_TYPE, attempt.error_type or failure)
                    span.set_status(Status(StatusCode.ERROR, names.STATUS_COMPACTION_FAILED))
                span.end(ended_ns)
        self._spans.clear()


class OpenCompaction:
    """Records a policy's attempts to compact while no assembly ranges; a context manager around them.

    The current span is the parent of the attempts' spans.
    """

    __slots__ = ("_attempts", "_emitter")

    def __init__(self, emitter: Emitter, policy: str, agent_name: str | None) -> None:
        self._emitter = emitter
        self._attempts = AttemptSpans(emitter, {names.POLICY_NAME: policy, names.GEN_AI_AGENT_NAME: agent_name})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._emitter.suppress_errors("span"):
            self._attempts.end()

    def watch(self, kind: str) -> Watch:
        """Return a function that records an attempt to compact a block of this kind: a context manager around it."""
        return self._attempts.watch(kind)
