"""GenAI's own spans of an agent's run, ``invoke_agent``, ``chat`` and ``execute_tool``, with their metrics.

They are those of ``opentelemetry-util-genai`` (extra ``genai``), in its words; of ours are what only an assembly or a
halt has to say, and that no error's message and no content leaves unasked.
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

#: Of spans that are GenAI's and not ours.
SCOPE: Final = "otel_assembly.telemetry.tracing_middleware"
#: The provider of a client that does not say whose it is.
UNKNOWN_PROVIDER: Final = "unknown"

_GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
_GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
_GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
_GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
_EXECUTE_TOOL: Final = "execute_tool"


class GenAISpan:
    """A span of GenAI's while it is open; what fails in it never reaches the agent.

    Args:
        emitter: What failures are told to.
        open_it: Opens it.
    """

    def __init__(self, emitter: Emitter, open_it: Callable[[], GenAIInvocation]) -> None:
        self._emitter = emitter
        self.invocation: GenAIInvocation | None = None
        with emitter.contained("genai"):
            invocation = open_it()
            # It has made itself current: nothing here is, but while `current` says so.
            invocation.suspend()
            self.invocation = invocation

    def current(self) -> AbstractContextManager[None]:
        """What runs in this block runs in the span; never left open across a ``yield``."""
        return nullcontext() if self.invocation is None else self.invocation.activate()

    def tell(self, put: Callable[[Any], None]) -> Self:
        """Put something on it, if it could be opened."""
        if self.invocation is not None:
            with self._emitter.contained("genai"):
                put(self.invocation)
        return self

    def end(self, error: BaseException | None = None, *, kind: str | None = None) -> None:
        """End it, once; a run that was cancelled, or a stream that was left, did not fail.

        Args:
            error: What was raised; its message goes nowhere.
            kind: What failed, where nothing was raised.
        """
        if self.invocation is None:
            return
        if error is not None and is_failure(error):
            kind = error_type(error)
        with self._emitter.contained("genai"):
            if kind is None:
                self.invocation.stop()
            else:
                self.invocation.fail(Error(message=None, type=kind))


class GenAISpans:
    """Opens GenAI's spans where one recorder's telemetry goes.

    Args:
        emitter: The recorder's.
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
        # The handler asks the environment alone, and ours may have been told otherwise. Should these names change, the
        # environment decides, and nothing leaves that `content` does not give.
        mode = ContentCapturingMode[settings.content.name]
        vars(self._handler).update(_content_capturing_mode=mode, _capture_content=mode.value > 0)
        #: Makes content fit to leave; None where none is exported.
        self.content = Content(emitter.redacted) if mode is not ContentCapturingMode.NO_CONTENT else None
        self._on_spans = settings.content_on_spans

    def invoke_agent(self, agent_name: str, conversation_id: str | None) -> GenAISpan:
        """One ask of an agent begins."""
        return GenAISpan(
            self.emitter,
            lambda: self._handler.invoke_local_agent(
                agent_name=sendable(agent_name), conversation_id=_sendable(conversation_id)
            ),
        )

    def chat(self, model: Any, conversation_id: str | None) -> GenAISpan:
        """One call of a model begins."""
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
        """One run of a tool begins."""

        def describe_it(invocation: Any) -> None:
            invocation.tool_call_id = _sendable(call_id)
            invocation.tool_description = _sendable(description) or None

        opened = GenAISpan(
            self.emitter,
            lambda: self._handler.tool(sendable(name), tool_type="function", agent_name=sendable(agent_name)),
        )
        return opened.tell(describe_it)

    def executed_elsewhere(self, run: GenAISpan, results: Iterable[tuple[str, str, str, bool]]) -> None:
        """Tools that somebody else ran have come to their results: a span without length each, for when it arrived.

        ``opentelemetry-util-genai`` opens a span when it is told to, and would measure how long that took.

        Args:
            run: The run that the results are given to.
            results: Of each, the tool's name, the call's id, the result, and whether it is an error.
        """
        if run.invocation is None:
            return
        at_ns = time.time_ns()
        for name, call_id, text, failed in results:
            with self.emitter.contained("genai"):
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
