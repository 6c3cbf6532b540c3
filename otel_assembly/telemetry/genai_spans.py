"""Record ``invoke_agent``, ``chat`` and ``execute_tool`` spans and metrics by OpenTelemetry's GenAI conventions.

``opentelemetry-util-genai`` (extra ``genai``) creates the spans and metrics. This module adds this library's
attributes, removes the messages of errors, and applies the recorder's content settings.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.types import ContentCapturingMode, Error

from otel_assembly._version import __version__
from otel_assembly.errors import error_type, is_failure
from otel_assembly.messages.event_facts import sendable
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.genai_content import Content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from opentelemetry.util.genai.invocation import GenAIInvocation

    from otel_assembly.telemetry.emitter import Emitter

#: The instrumentation scope of GenAI spans, which differs from that of this library's own spans.
SCOPE: Final = "otel_assembly.telemetry.tracing_middleware"
#: The provider name if the model client has no ``provider`` attribute.
UNKNOWN_PROVIDER: Final = "unknown"

_GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
_GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
_GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
_GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
_EXECUTE_TOOL: Final = "execute_tool"


class GenAISpan:
    """An open GenAI span; a failure in it never reaches the agent.

    Args:
        emitter: Counts failures.
        start: Starts the span.
    """

    def __init__(self, emitter: Emitter, start: Callable[[], GenAIInvocation]) -> None:
        self._emitter = emitter
        self.invocation: GenAIInvocation | None = None
        with emitter.suppress_errors("genai"):
            invocation = start()
            # util-genai makes the span current when it starts; here it is current only in a `current` block.
            invocation.suspend()
            self.invocation = invocation

    def current(self) -> AbstractContextManager[None]:
        """Make the span current in this block; never keep the block open across a ``yield``."""
        return nullcontext() if self.invocation is None else self.invocation.activate()

    def update(self, put: Callable[[Any], None]) -> Self:
        """Call `put` with util-genai's object for this span, to set values; do nothing if the span was not started."""
        if self.invocation is not None:
            with self._emitter.suppress_errors("genai"):
                put(self.invocation)
        return self

    def end(self, error: BaseException | None = None, *, kind: str | None = None) -> None:
        """End the span; later calls have no effect.

        A cancelled run, or a stream that the caller closed early, does not count as failed.

        Args:
            error: The exception that ended the operation; its message is not exported.
            kind: The error type of a failure without an exception.
        """
        if self.invocation is None:
            return
        if error is not None and is_failure(error):
            kind = error_type(error)
        with self._emitter.suppress_errors("genai"):
            if kind is None:
                self.invocation.stop()
            else:
                self.invocation.fail(Error(message=None, type=kind))


class GenAISpans:
    """Starts GenAI spans through one recorder's providers.

    Args:
        emitter: The recorder's emitter.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        providers, settings = emitter.providers, emitter.settings
        self._tracer = trace.get_tracer(SCOPE, __version__, providers.tracer)
        self._handler = TelemetryHandler(
            tracer_provider=providers.tracer,
            meter_provider=providers.meter,
            logger_provider=providers.logger,
            instrumentation_scope_name=SCOPE,
            instrumentation_scope_version=__version__,
        )
        # The handler reads the capturing mode only from the environment; `configure` may have set another one. If
        # util-genai renames these private attributes, the environment decides; texts still pass through `content`.
        mode = ContentCapturingMode[settings.content.name]
        vars(self._handler).update(_content_capturing_mode=mode, _capture_content=mode.value > 0)
        #: Converts content for export; None if content is not exported.
        self.content = Content(emitter.redacted) if mode is not ContentCapturingMode.NO_CONTENT else None
        self._on_spans = settings.content_on_spans

    def invoke_agent(self, agent_name: str, conversation_id: str | None) -> GenAISpan:
        """Start the span of a request to an agent."""
        return GenAISpan(
            self.emitter,
            lambda: self._handler.invoke_local_agent(
                agent_name=sendable(agent_name), conversation_id=_sendable(conversation_id)
            ),
        )

    def chat(self, model: Any, conversation_id: str | None) -> GenAISpan:
        """Start the span of a model call."""
        provider, name = getattr(model, "provider", None), getattr(model, "model", None)
        return GenAISpan(
            self.emitter,
            lambda: self._handler.inference(
                provider if isinstance(provider, str) else UNKNOWN_PROVIDER,
                request_model=sendable(name) if isinstance(name, str) else None,
                conversation_id=_sendable(conversation_id),
            ),
        )

    def execute_tool(self, name: str, call_id: str | None, description: str | None, agent_name: str) -> GenAISpan:
        """Start the span of a tool call.

        Args:
            name: The tool's name.
            call_id: The call's id; None if unknown.
            description: The tool's description; None if it has none.
            agent_name: The name of the agent that calls the tool.
        """

        def describe_tool(invocation: Any) -> None:
            invocation.tool_call_id = _sendable(call_id)
            invocation.tool_description = _sendable(description) or None

        span = GenAISpan(
            self.emitter,
            lambda: self._handler.tool(sendable(name), tool_type="function", agent_name=sendable(agent_name)),
        )
        return span.update(describe_tool)

    def record_external_tools(self, run: GenAISpan, results: Iterable[tuple[str, str, str, bool]]) -> None:
        """Record tools that ran outside the agent: spans of zero duration, at the time when the results arrived.

        ``opentelemetry-util-genai`` is not used, because it would record a duration metric that means nothing.

        Args:
            run: The run that receives the results.
            results: For each result: the tool's name, the call's id, the text, and whether it is an error.
        """
        if run.invocation is None:
            return
        at_ns = time.time_ns()
        for name, call_id, text, failed in results:
            with self.emitter.suppress_errors("genai"):
                attributes: dict[str, Any] = {
                    names.GEN_AI_OPERATION_NAME: _EXECUTE_TOOL,
                    _GEN_AI_TOOL_NAME: sendable(name),
                    _GEN_AI_TOOL_TYPE: "function",
                    _GEN_AI_TOOL_CALL_ID: sendable(call_id),
                    names.TOOL_EXTERNAL: True,
                }
                if failed:
                    attributes[names.ERROR_TYPE] = names.ERROR_TOOL
                if self.content is not None and self._on_spans:
                    attributes[_GEN_AI_TOOL_CALL_RESULT] = self.content.text(text)
                span = self._tracer.start_span(
                    f"{_EXECUTE_TOOL} {sendable(name)}",
                    run.invocation.context,
                    SpanKind.INTERNAL,
                    attributes,
                    start_time=at_ns,
                )
                if failed:
                    span.set_status(Status(StatusCode.ERROR))
                span.end(at_ns)


def _sendable(text: str | None) -> str | None:
    return None if text is None else sendable(text)
