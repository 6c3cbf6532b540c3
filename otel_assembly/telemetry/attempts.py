"""Spans around each attempt to compact something; they end when it is known what became of it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import context as otel_context
from opentelemetry.trace import Status, StatusCode

from otel_assembly.budget.attempt import CompactionOutcome
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.emitter import Arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.context import Context as OtelContext
    from opentelemetry.trace import Span

    from otel_assembly.budget.attempt import Attempt, Watch
    from otel_assembly.telemetry.emitter import Emitter


class AttemptSpans:
    """The ``compact_block`` spans of one recording.

    Args:
        emitter: What opens them.
        attributes: What stands on each of them beside what is known of its attempt.
    """

    __slots__ = ("_attributes", "_emitter", "_spans")

    def __init__(self, emitter: Emitter, attributes: Mapping[str, Any] | None = None) -> None:
        self._emitter = emitter
        self._attributes = attributes or {}
        #: Each attempt, by identity, with its span, the context in it, and when it ended.
        self._spans: dict[int, tuple[Attempt, Span, OtelContext, int]] = {}

    def watch(self, kind: str) -> Watch:
        """What stands around the attempts to compact something of this kind."""

        @contextmanager
        def around(attempt: Attempt, /) -> Iterator[None]:
            attributes = {
                **self._attributes,
                names.BLOCK_KIND: kind,
                names.COMPACTION_COMPACTOR: attempt.compactor,
                names.COMPACTION_ATTEMPT: attempt.number,
                names.COMPACTION_TARGET_TOKENS: attempt.target,
                names.TOKENS_IN: attempt.tokens_in,
            }
            name, around = f"{names.SPAN_COMPACT_BLOCK} {kind}", otel_context.get_current()
            span, context = self._emitter.open_span(name, around, attempt.started_ns or time.time_ns(), attributes)
            token = otel_context.attach(context)
            try:
                yield
            finally:
                otel_context.detach(token)
                self._spans[id(attempt)] = attempt, span, context, attempt.ended_ns or time.time_ns()

        return around

    def explain(self, attempts: Iterable[Attempt], provenance: list[str], result: str) -> None:
        """Put on the span of the successful one of these attempts what it stands for, and the id that it has itself.

        Args:
            attempts: The attempts to compact one thing.
            provenance: The ids of the items that the summary stands for, as runs.
            result: The summary's item id.
        """
        # Of several that came to something, the last is the one that was taken.
        made = [attempt for attempt in attempts if attempt.outcome is CompactionOutcome.COMPACTED][-1:]
        for held in (self._spans.get(id(attempt)) for attempt in made):
            if held is not None:
                _, span, context, ended_ns = held
                arrays = Arrays()
                arrays.add([names.COMPACTION_PROVENANCE], [provenance])
                self._emitter.put(span, context, {names.COMPACTION_RESULT: result}, arrays, ended_ns)

    def end(self) -> None:
        """End them all, each at the time when it came to its end."""
        for attempt, span, _, ended_ns in self._spans.values():
            with self._emitter.contained("span"):
                outcome = attempt.outcome
                # An attempt that was cancelled, or stopped by a halt, has no outcome of its own.
                span.set_attribute(names.COMPACTION_OUTCOME, (outcome or CompactionOutcome.RAISED).value)
                if attempt.tokens_out is not None:
                    span.set_attribute(names.TOKENS_OUT, attempt.tokens_out)
                if outcome is not CompactionOutcome.COMPACTED:
                    ended = outcome.value if outcome is not None else names.ERROR_CANCELLED
                    span.set_attribute(names.ERROR_TYPE, attempt.error_type or ended)
                    span.set_status(Status(StatusCode.ERROR, names.STATUS_COMPACTION_FAILED))
                span.end(ended_ns)
        self._spans.clear()


class OpenCompaction:
    """What a policy compacts ahead of need, while no assembly is open: its attempts belong to the caller's span."""

    __slots__ = ("_attempts", "_emitter")

    def __init__(self, emitter: Emitter, policy: str, agent_name: str | None) -> None:
        self._emitter = emitter
        self._attempts = AttemptSpans(emitter, {names.POLICY_NAME: policy, names.GEN_AI_AGENT_NAME: agent_name})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._emitter.contained("span"):
            self._attempts.end()

    def watch(self, kind: str) -> Watch:
        """What stands around attempts to compact something of this kind."""
        return self._attempts.watch(kind)
