"""`TracingMiddleware`: record an agent's runs, model calls and tools as spans of the GenAI conventions."""

from __future__ import annotations

import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_assembly.errors import ConfigurationError
from otel_assembly.events import ExternalExecutionResultEvent, ModelResponse, ToolErrorEvent, ToolResultEvent
from otel_assembly.messages.event_facts import sendable
from otel_assembly.recorder import default_recorder
from otel_assembly.runtime.assembler_middleware import MODEL_CALL, AssemblerMiddleware
from otel_assembly.runtime.middleware import MiddlewareBase
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from otel_assembly.runtime.middleware import NextHandler
    from otel_assembly.telemetry.genai_content import Content
    from otel_assembly.telemetry.genai_spans import GenAISpan, GenAISpans
    from otel_assembly.telemetry.recorder import OpenTelemetryRecorder

#: Maps attributes of opentelemetry-util-genai's invocations to those of a usage object (this library's, AgentScope's).
_USAGE: Final[Mapping[str, str]] = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_input_tokens",
    "cache_write_input_tokens": "cache_creation_input_tokens",
}


class TracingMiddleware(MiddlewareBase):
    """Records an agent's runs, model calls and tools as spans and metrics of OpenTelemetry's GenAI conventions.

    - Each request to the agent is an ``invoke_agent`` span, which lists the tool calls that wait for approval.
    - Each model call is a ``chat`` span below that span; it ends when the response has been read to its end.
    - Each tool call is an ``execute_tool`` span. A tool that ran outside the agent has a span of zero duration, at the
      time when its result arrived.

    If the middleware comes after an `AssemblerMiddleware`, an assembly's span and its ``chat`` span are siblings. If it
    comes before, the assembly's span is a child of ``chat``. The ``chat`` span links to the assembly in both cases.

    If no OpenTelemetry provider is configured, the hooks do nothing. Content is exported only if
    ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` enables it. Messages of errors are never exported.

    Requires the extra ``genai``.

    Args:
        recorder: Records the spans and metrics; None for the default recorder.

    Raises:
        ConfigurationError: ``opentelemetry-util-genai`` is not installed.
    """

    def __init__(self, recorder: OpenTelemetryRecorder | None = None) -> None:
        try:
            from otel_assembly.telemetry.genai_spans import GenAISpans
        except ImportError as missing:
            raise ConfigurationError(
                "TracingMiddleware needs opentelemetry-util-genai; install it: pip install 'otel-assembly[genai]'"
            ) from missing
        self._spans_class = GenAISpans
        self._recorder = recorder
        self._cached_spans: GenAISpans | None = None

    def on_reply(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Record the reply as an ``invoke_agent`` span."""
        spans = self._spans()
        if spans is None:
            events: AsyncGenerator[Any, None] = next_handler()
            return events
        return self._reply(spans, agent, input_kwargs, next_handler)

    def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Record a tool call as an ``execute_tool`` span."""
        spans = self._spans()
        if spans is None:
            events: AsyncGenerator[Any, None] = next_handler()
            return events
        return self._act(spans, agent, input_kwargs["tool_call"], next_handler)

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Record a model call, including the reading of a streamed response, as a ``chat`` span."""
        spans = self._spans()
        if spans is None:
            return await next_handler()
        chat = spans.chat(input_kwargs["current_model"], _conversation_of(agent))
        try:
            with chat.current():
                answer = await next_handler()
        except BaseException as error:
            self._put_input(spans.content, chat, agent, input_kwargs)
            chat.end(error)
            raise
        self._put_input(spans.content, chat, agent, input_kwargs)
        if not hasattr(answer, "__aiter__"):
            _put_answer(spans.content, chat, answer)
            chat.end()
            return answer
        stream = _trace_stream(spans.content, chat, answer)
        # A generator that is never started runs no ``finally``, so the span ends when the generator is collected.
        weakref.finalize(stream, chat.end).atexit = False
        return stream

    def _spans(self) -> GenAISpans | None:
        """Return the object that starts GenAI spans; None if nothing is recorded."""
        recorder: Any = self._recorder or default_recorder()
        if not recorder.is_enabled() or not is_instrumentation_enabled():
            return None
        emitter = getattr(recorder, "emitter", None)
        if emitter is None:
            return None
        spans = self._cached_spans
        if spans is None or spans.emitter is not emitter:
            with emitter.suppress_errors("genai"):
                if not emitter.prepare():
                    return None
                self._cached_spans = spans = self._spans_class(emitter)
        return spans

    async def _reply(
        self, spans: GenAISpans, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        run, content, inputs = (
            spans.invoke_agent(agent.name, _conversation_of(agent)),
            spans.content,
            input_kwargs["inputs"],
        )
        answer: Any = None

        def on_event(event: Any) -> None:
            nonlocal answer
            if isinstance(event, ModelResponse):
                answer = event

        if isinstance(inputs, ExternalExecutionResultEvent):
            pending = agent.session.pending
            results = [result for result in inputs.execution_results if result.parent_id in pending]
            spans.record_external_tools(
                run, [(pending[result.parent_id].name, *_result_of(result)) for result in results]
            )

        def end(error: BaseException | None) -> None:
            if answer is not None:
                run.update(lambda invocation: _put_pending(invocation, answer))
                run.update(lambda invocation: _put_finish_reason(invocation, answer))
            if content is not None:
                run.update(lambda invocation: _put_run(content, invocation, agent, inputs, answer))
            run.end(error)

        async with aclosing(_trace_events(run, next_handler(), on_event, end)) as events:
            async for event in events:
                yield event

    async def _act(
        self, spans: GenAISpans, agent: Any, call: Any, next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        tools, content = getattr(agent, "tools", None), spans.content
        tool = tools.get(call.name) if isinstance(tools, dict) else None
        owed = getattr(getattr(agent, "session", None), "owed", None)
        if owed is not None and owed.tool.name == call.name:
            tool = owed.tool
        # If no tool has this name, the model made it up; such names have no bound, and may quote the conversation.
        name = call.name if tool is not None or not isinstance(tools, dict) else names.OTHER
        run = spans.execute_tool(name, call.id, getattr(tool, "description", None), agent.name)
        result: Any = None

        def on_event(event: Any) -> None:
            nonlocal result
            if isinstance(event, ToolResultEvent | ToolErrorEvent):
                result = event

        def end(error: BaseException | None) -> None:
            if content is not None:
                run.update(lambda invocation: _put_tool(content, invocation, call, result and _result_of(result)[1]))
            session = getattr(agent, "session", None)
            if call.id in getattr(session, "changed_calls", ()):
                run.update(lambda invocation: invocation.attributes.update({names.TOOL_ARGUMENTS_CHANGED: True}))
            is_timed_out = isinstance(result, ToolErrorEvent) and result.still_running
            if is_timed_out or call.id in getattr(session, "still_running", ()):
                run.update(lambda invocation: invocation.attributes.update({names.TOOL_STILL_RUNNING: True}))
            run.end(error, kind=names.ERROR_TOOL if isinstance(result, ToolErrorEvent) else None)

        async with aclosing(_trace_events(run, next_handler(), on_event, end)) as events:
            async for event in events:
                yield event

    def _put_input(self, content: Content | None, chat: GenAISpan, agent: Any, input_kwargs: dict[str, Any]) -> None:
        """Set the model's input on the span: the output of a later `AssemblerMiddleware`, else the hook's arguments."""
        if content is None:
            return

        def put(invocation: Any) -> None:
            call, messages = MODEL_CALL.get(), input_kwargs["messages"]
            prompts: Sequence[str] = () if call is None else call.prompts
            middlewares = [*getattr(agent, "middlewares", ())]
            later = middlewares[middlewares.index(self) + 1 :] if self in middlewares else []
            if call is not None and any(isinstance(middleware, AssemblerMiddleware) for middleware in later):
                for assembly in call.assemblies():
                    prompts, messages = assembly.prompts, assembly.events
            invocation.system_instruction = content.instructions(prompts)
            invocation.input_messages = content.inputs(messages)
            invocation.tool_definitions = content.tools(input_kwargs["tools"] or ())

        chat.update(put)


async def _trace_events(
    span: GenAISpan,
    events: AsyncGenerator[Any, None],
    on_event: Callable[[Any], None],
    end: Callable[[BaseException | None], None],
) -> AsyncGenerator[Any, None]:
    """Yield a hook's events. The span is current while the hook runs, and not while the caller handles an event."""
    error: BaseException | None = None
    try:
        while True:
            with span.current():
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            on_event(event)
            yield event
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            with span.current():
                await events.aclose()
        finally:
            end(error)


async def _trace_stream(
    content: Content | None, chat: GenAISpan, parts: AsyncIterator[Any]
) -> AsyncGenerator[Any, None]:
    """Yield the parts of a streamed response; end the span when the stream ends, fails or is closed."""
    error: BaseException | None = None
    chat.update(lambda invocation: setattr(invocation, "request_stream", True))
    iterator = aiter(parts)
    try:
        while True:
            with chat.current():
                try:
                    part = await anext(iterator)
                except StopAsyncIteration:
                    return
            if not isinstance(part, ModelResponse):
                chat.update(lambda invocation: invocation.record_stream_chunk())
            _put_answer(content, chat, part)
            yield part
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                with chat.current():
                    await close()
        finally:
            chat.end(error)


def _put_answer(content: Content | None, chat: GenAISpan, answer: Any) -> None:
    def put(invocation: Any) -> None:
        _put_usage(invocation, answer)
        _put_finish_reason(invocation, answer)
        if content is not None and isinstance(answer, ModelResponse):
            invocation.output_messages = content.outputs([answer])

    chat.update(put)


def _put_pending(invocation: Any, answer: ModelResponse) -> None:
    """Set the tool calls of a response that wait for approval."""
    waiting = [call for call in answer.tool_calls if call.awaiting_approval]
    if waiting:
        invocation.attributes[names.PENDING_CALLS] = [sendable(call.id) for call in waiting]
        invocation.attributes[names.PENDING_TOOLS] = [sendable(call.name) for call in waiting]


def _put_finish_reason(invocation: Any, answer: Any) -> None:
    """Set ``gen_ai.response.finish_reasons``, if the response has one."""
    reason = getattr(answer, "finish_reason", None)
    if isinstance(reason, str):
        invocation.finish_reasons = [sendable(reason)]


def _put_usage(invocation: Any, answer: Any) -> None:
    """Set the token counts that the provider reported."""
    usage = getattr(answer, "usage", None)
    for name, attribute in _USAGE.items():
        value = getattr(usage, attribute, None)
        if isinstance(value, int):
            setattr(invocation, name, value)


def _result_of(result: ToolResultEvent | ToolErrorEvent) -> tuple[str, str, bool]:
    """Return the call's id, the result's text for the model, and True if the text is an error."""
    if isinstance(result, ToolErrorEvent):
        return result.parent_id, result.error, True
    return result.parent_id, result.content, False


def _put_run(content: Content, invocation: Any, agent: Any, inputs: Any, answer: Any) -> None:
    events = inputs if isinstance(inputs, list | tuple) else [] if inputs is None else [inputs]
    invocation.system_instruction = content.instructions([getattr(agent, "system_prompt", "")])
    invocation.input_messages = content.inputs(events)
    invocation.output_messages = content.outputs([] if answer is None else [answer])


def _put_tool(content: Content, invocation: Any, call: Any, result: str | None) -> None:
    arguments = getattr(call, "arguments", None)
    if isinstance(arguments, str):
        invocation.arguments = content.arguments(arguments)
    if result is not None:
        invocation.tool_result = content.text(result)


def _conversation_of(agent: Any) -> str | None:
    """Return the conversation id of the agent's session, if it has one."""
    context = getattr(getattr(agent, "session", None), "context", None)
    conversation_id = getattr(context, "conversation_id", None)
    return conversation_id if isinstance(conversation_id, str) else None
