"""The loop of an `Agent`: model calls, permission checks and tool calls of one turn."""

from __future__ import annotations

import asyncio
import copy
import json
import operator
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from otel_assembly.errors import (
    ConfigurationError,
    HaltedError,
    SessionError,
    ToolError,
)
from otel_assembly.events import (
    ModelResponse,
    ToolCallEvent,
    ToolErrorEvent,
    ToolResultEvent,
    TurnCompleted,
    TurnStarted,
)
from otel_assembly.runtime.assembler_middleware import MODEL_CALL, AssemblerMiddleware, ModelCall
from otel_assembly.runtime.middleware import HookLayers, PermissionDecision, system_prompt_of
from otel_assembly.runtime.rendered_turns import unique_ids
from otel_assembly.runtime.run_span import record_as_run
from otel_assembly.runtime.session import OUTCOME_UNKNOWN, UnfinishedCalls, accept_inputs, not_run
from otel_assembly.runtime.structured_answer import StructuredAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from otel_assembly._internal.threads import ThreadLimit
    from otel_assembly.events import Event
    from otel_assembly.runtime.model_client import ModelClient
    from otel_assembly.runtime.session import Session
    from otel_assembly.runtime.tools import Tool

Result: TypeAlias = ToolResultEvent | ToolErrorEvent


class Agent(Protocol):
    """The attributes of `otel_assembly.Agent` that the loop uses; the agent itself is passed to middleware hooks."""

    name: str
    system_prompt: str
    model: ModelClient
    tools: dict[str, Tool]
    max_rounds: int
    compress_at: float
    tool_timeout: float
    tool_threads: ThreadLimit


_ASK_CANCELLED: Final = "not run to its end: the ask was cancelled"
_STILL_RUNS: Final = "it still runs and may still take effect"
_ROUNDS_EXCEEDED: Final = "not run: the ask ended before it"
#: Why the calls of a truncated response do not run, by the response's finish reason.
_TRUNCATION_REASONS: Final = {
    "length": "the response was cut off at its token limit (length)",
    "content_filter": "the provider's filter stopped the response (content_filter)",
}
_ALLOWED: Final = PermissionDecision("allow")


def _is_response(event: Any) -> bool:
    return isinstance(event, ModelResponse)


def _is_result(event: Any) -> bool:
    return isinstance(event, ToolResultEvent | ToolErrorEvent)


class Loop:
    """Runs the turns of an agent: model calls, permission checks and tool calls, wrapped by the middlewares.

    Args:
        middlewares: The agent's middlewares, the outermost first.
    """

    def __init__(self, middlewares: Sequence[Any]) -> None:
        self._reply_layers = HookLayers(middlewares, "on_reply", is_result=_is_response)
        self._reasoning_layers = HookLayers(middlewares, "on_reasoning", is_result=_is_response)
        self._tool_layers = HookLayers(middlewares, "on_acting", is_result=_is_result)
        self._permission_layers = HookLayers(middlewares, "on_check_permission")
        self._model_layers = HookLayers(middlewares, "on_model_call")
        self._compression_layers = HookLayers(middlewares, "on_compress_context")
        self._prompt_middlewares = [
            middleware for middleware in middlewares if middleware.is_implemented("on_system_prompt")
        ]
        chains = [middleware.assembler for middleware in middlewares if isinstance(middleware, AssemblerMiddleware)]
        self._compacting_chains = [chain for chain in chains if chain.compacts]

    async def reply(self, agent: Agent, session: Session, inputs: Any, schema: Any) -> AsyncGenerator[Event, None]:
        """Run one turn: check and store the inputs, then call the model and tools; yield events, the answer last."""
        session.guard.check()
        async with session.asking:

            def step(inputs: Any, structured_schema: Any = None) -> AsyncGenerator[Event, None]:
                structured_answer = (
                    None if structured_schema is None else StructuredAnswer(structured_schema, agent.tools)
                )
                turn = self._turn(agent, session, inputs, structured_answer)
                return record_as_run(turn, agent.name, session.context.conversation_id)

            input_kwargs = {"inputs": inputs, "structured_schema": schema}
            async with aclosing(self._reply_layers.events(agent, step, input_kwargs)) as events:
                async for event in events:
                    yield event

    async def _turn(
        self, agent: Agent, session: Session, inputs: Any, structured_answer: StructuredAnswer | None
    ) -> AsyncGenerator[Event, None]:
        new_events, calls = accept_inputs(session, inputs, agent.tools, is_structured=structured_answer is not None)
        session.owed = structured_answer
        await session.stream.send(TurnStarted(turn=session.turns))
        session.turns += 1
        try:
            for event in new_events:
                await session.stream.send(event)
            if isinstance(inputs, UnfinishedCalls):
                calls = await self._repeatable_calls(agent, session, calls)
            async with aclosing(self._rounds(agent, session, calls)) as events:
                async for event in events:
                    yield event
        except HaltedError as halted:
            yield ModelResponse(content=f"HALTED: {halted.reason}")
        await session.stream.send(TurnCompleted(turn=session.turns - 1))

    async def _rounds(
        self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]
    ) -> AsyncGenerator[Event, None]:
        structured_answer, guard = session.owed, session.guard
        for _ in range(agent.max_rounds):
            if len(calls) == 1 and not self._tool_layers:
                yield await self._run_only_call(agent, session, calls[0])
            elif calls:
                async with aclosing(self._run_calls(agent, session, calls)) as events:
                    async for event in events:
                        yield event
            guard.check()
            final_response = _answer_without_model_call(session)
            if final_response is not None:
                yield final_response
                return
            answer = await self._reason(agent, session)
            response = answer if isinstance(answer, ModelResponse) else None
            if response is None:
                async with aclosing(_streamed_parts(agent, answer)) as pieces:
                    async for event in pieces:
                        if isinstance(event, ModelResponse):
                            response = event
                        else:
                            yield event
            response, calls, refusals = await self._store_response(agent, session, response)
            try:
                for event in (response, *refusals):
                    yield event
            except BaseException:  # the reader stopped early, so none of these calls will run
                _append_to_history(session, [not_run(call, _ASK_CANCELLED) for call in calls])
                raise
            _check_complete(response, structured_answer)
            if not response.tool_calls:
                guard.check()
                if structured_answer is not None:
                    yield structured_answer.take_text(response)
                return
        async with aclosing(self._end_at_limit(agent, session, calls)) as events:
            async for event in events:
                yield event

    async def _end_at_limit(
        self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]
    ) -> AsyncGenerator[Event, None]:
        """End a turn after `max_rounds` model calls.

        Of the last response's tool calls, only a call that returns the structured answer still runs. The other calls
        get an error as their result.
        """
        structured_answer = session.owed
        answer_calls = [
            call for call in calls if structured_answer is not None and call.name == structured_answer.tool.name
        ]
        errors = [not_run(call, _ROUNDS_EXCEEDED) for call in calls if call not in answer_calls]
        for error in errors:
            await session.commit(error)
        for error in errors:
            yield error
        if structured_answer is None:
            yield ModelResponse(content=f"STOPPED: no answer after {agent.max_rounds} calls of the model")
            return
        async with aclosing(self._run_calls(agent, session, answer_calls)) as events:
            async for event in events:
                yield event
        session.guard.check()
        yield structured_answer.answer()

    async def _store_response(
        self, agent: Agent, session: Session, response: ModelResponse | None
    ) -> tuple[ModelResponse, list[ToolCallEvent], list[ToolErrorEvent]]:
        """Check and store a model's response.

        Returns:
            The response as stored, the calls that may run now, and the error results of refused calls.
        """
        if response is None:
            raise SessionError(f"the model {agent.model.model!r} of agent {agent.name!r} gave no response")
        response = _with_unique_ids(response)
        if response.is_truncated and response.tool_calls:
            response, calls, refusals = _refuse_all(response)
        else:
            response, calls, refusals = await self._check_permissions(agent, session, response)
        # Store the response before its calls start. Otherwise no record of a call would remain if the process died.
        await (session.commit(response) if response.tool_calls else session.stream.send(response))
        for call in response.tool_calls:
            if call.awaiting_approval:
                session.pending[call.id] = call
        for error in refusals:
            await session.commit(error)
        if self._permission_layers:
            original = {call.id: call for call in response.tool_calls}
            for call in calls:
                await session.note_change(original[call.id], call, "permission")
        return response, calls, refusals

    async def _repeatable_calls(
        self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]
    ) -> list[ToolCallEvent]:
        """Return the calls of an ended process that may run again; store an error as the result of the other calls.

        A call may run again if its tool is idempotent and its permission check allows it.
        """
        repeatable: list[ToolCallEvent] = []
        truncated = {
            call.id: event
            for event in session.history
            if isinstance(event, ModelResponse) and event.is_truncated
            for call in event.tool_calls
        }
        for call in calls:
            if call.id in truncated:  # the process ended before it stored the refusal of the call
                await session.commit(not_run(call, _refusal_reason(truncated[call.id])))
                continue
            if call.awaiting_approval:  # the call never started
                session.pending[call.id] = call
                continue
            tool = _tool_named(agent, session, call.name)
            if tool is None or not tool.idempotent:
                await session.commit(not_run(call, OUTCOME_UNKNOWN))
                continue
            # The permission check may change the arguments, as it may have done in the process that ended.
            decision = await self._check_permission(agent, session, call)
            if decision.behavior == "allow":
                repeatable.append(_with_new_arguments(call, decision))
                await session.note_change(call, repeatable[-1], "permission")
            else:
                await session.commit(not_run(call, f"not run again: {decision.message or 'it is not allowed'}"))
        return repeatable

    async def _reason(self, agent: Agent, session: Session) -> Any:
        """Compress the context if needed, then call the model; return a response or an iterator of its parts."""
        if self._compression_layers or self._compacting_chains:
            await self.compress(agent, session)
        return (
            self._reasoning_events(agent, session)
            if self._reasoning_layers
            else await self._call_model(agent, session, _tool_choice(session))
        )

    def _reasoning_events(self, agent: Agent, session: Session) -> AsyncGenerator[Event, None]:
        """Call the model inside the ``on_reasoning`` hooks; return an iterator of the events."""

        async def step(tool_choice: str | None = None) -> AsyncGenerator[Event, None]:
            answer = await self._call_model(agent, session, tool_choice)
            if isinstance(answer, ModelResponse):
                yield answer
                return
            async with aclosing(_streamed_parts(agent, answer)) as pieces:
                async for piece in pieces:
                    yield piece

        return self._reasoning_layers.events(agent, step, {"tool_choice": _tool_choice(session)})

    async def _call_model(self, agent: Agent, session: Session, tool_choice: str | None) -> Any:
        """Call the model inside the ``on_model_call`` hooks; return its response or an iterator of parts."""
        call = ModelCall(
            session.context, [await self._prompt(agent) if self._prompt_middlewares else agent.system_prompt]
        )
        input_kwargs = {
            "current_model": agent.model,
            "messages": session.history,
            "tools": [
                *session.context.tools,
                *([] if session.owed is None else [session.owed.tool.definition]),
            ],
            "tool_choice": tool_choice,
        }

        async def step(current_model: ModelClient, messages: Any, tools: Any = (), tool_choice: Any = None) -> Any:
            session.guard.check()
            current_call = MODEL_CALL.get() or call
            return await current_model(current_call.prompts, messages, tools=tools, tool_choice=tool_choice)

        token = MODEL_CALL.set(call)
        try:
            return await self._model_layers.run(agent, step, input_kwargs)
        finally:
            MODEL_CALL.reset(token)

    async def _prompt(self, agent: Agent) -> str:
        prompt = agent.system_prompt
        for middleware in self._prompt_middlewares:
            prompt = await system_prompt_of(middleware, agent, prompt)
        return prompt

    async def compress(
        self, agent: Agent, session: Session, context_config: Any = None, instructions: Any = None
    ) -> None:
        """Run the compacting policies if the last prompt used the share `compress_at` of the token budget."""
        if not self._compression_layers:
            await self._compress(agent, session)
            return

        async def step(context_config: Any = None, instructions: Any = None) -> None:
            await self._compress(agent, session)

        input_kwargs = {"context_config": context_config, "instructions": instructions}
        await self._compression_layers.run(agent, step, input_kwargs)

    async def _compress(self, agent: Agent, session: Session) -> None:
        if not self._compacting_chains or not session.history:
            return
        prompt = await self._prompt(agent)
        context = session.context.with_budget_ratio(min(session.context.budget_ratio, agent.compress_at))
        for chain in self._compacting_chains:
            if await chain.compact_ahead([prompt], session.history, context):
                session.context.budget_ratio = context.budget_ratio

    async def _check_permissions(
        self, agent: Agent, session: Session, response: ModelResponse
    ) -> tuple[ModelResponse, list[ToolCallEvent], list[ToolErrorEvent]]:
        """Check the permission of each tool call of a response.

        Returns:
            The response with its pending calls marked, the calls that may run now, and the error results of denied
            calls. The response is always a new object, because a model client may return the same object twice.
        """
        if not response.tool_calls:
            return copy.copy(response), [], []
        checked: list[ToolCallEvent] = []
        allowed: list[ToolCallEvent] = []
        denials: list[ToolErrorEvent] = []
        try:
            for call in response.tool_calls:
                decision = await self._check_permission(agent, session, call)
                external = decision.behavior == "external"
                is_pending = external or decision.behavior == "ask"
                marks = {"awaiting_approval": is_pending, "external": external}
                # Overwrite marks that a model client set: otherwise a call could run and be pending at the same time.
                checked.append(call if _has_marks(call, marks) else call.model_copy(update=marks))
                if decision.behavior == "deny":
                    denials.append(not_run(call, f"not run: {decision.message or 'it is not allowed'}"))
                elif not is_pending:
                    allowed.append(_with_new_arguments(call, decision))
        except BaseException:
            _append_to_history(session, [response, *(not_run(call, _ASK_CANCELLED) for call in response.tool_calls)])
            raise
        return _with_calls(response, checked), allowed, denials

    async def _check_permission(self, agent: Agent, session: Session, call: ToolCallEvent) -> PermissionDecision:
        tool = _tool_named(agent, session, call.name)
        if tool is None or not self._permission_layers:
            return _default_decision(tool)
        try:
            input_kwargs = {"tool_call": call, "tool": tool, "tool_input": tool.read(call.arguments)}
        except ToolError:
            return _ALLOWED

        async def step(tool_call: ToolCallEvent, tool: Tool, tool_input: Any = None) -> PermissionDecision:
            return _default_decision(tool)

        decision: PermissionDecision = await self._permission_layers.run(agent, step, input_kwargs)
        return decision

    async def _run_calls(
        self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]
    ) -> AsyncGenerator[Event, None]:
        """Run tool calls concurrently; yield their events and results as they arrive.

        If reading stops early, each call without a result gets an error as its result.
        """
        if not calls:
            return
        finished_ids: set[str] = set()
        running = [self._run_call(agent, session, call, finished_ids) for call in calls]
        try:
            async with aclosing(running[0] if len(running) == 1 else _merged(running)) as events:
                async for event in events:
                    yield event
        finally:
            _append_to_history(session, [_cancelled(session, call) for call in calls if call.id not in finished_ids])

    async def _run_only_call(self, agent: Agent, session: Session, call: ToolCallEvent) -> Result:
        """Run a single tool call that no middleware wraps with ``on_acting``; store and return its result."""
        try:
            result = await _run_tool(agent, session, call)
        except BaseException:
            _append_to_history(session, [_cancelled(session, call)])
            raise
        await session.commit(result)
        return result

    async def _run_call(
        self, agent: Agent, session: Session, call: ToolCallEvent, finished_ids: set[str]
    ) -> AsyncGenerator[Event, None]:
        """Run one tool call inside the ``on_acting`` hooks; yield its events, the result last.

        Args:
            agent: The agent.
            session: The conversation.
            call: The tool call.
            finished_ids: The ids of calls whose result is stored; the id of this call is added.
        """
        result: Result | None = None
        hook_error: Exception | None = None

        async def step(tool_call: ToolCallEvent) -> AsyncGenerator[Event, None]:
            await session.note_change(call, tool_call, "middleware")
            yield await _run_tool(agent, session, tool_call)

        try:
            async with aclosing(self._tool_layers.events(agent, step, {"tool_call": call})) as events:
                async for event in events:
                    if isinstance(event, ToolResultEvent | ToolErrorEvent):
                        result = event
                    else:
                        yield event
        except Exception as error:  # noqa: BLE001  # raised again after the result is stored
            # Only a middleware raises here: an error of the tool becomes its result. Without a stored result, the
            # session could not continue.
            hook_error = error
            result = not_run(call, f"not run to its end: {type(error).__name__}")
        if result is None:
            result = not_run(call, "not run to its end: it gave no result")
        elif result.parent_id != call.id:
            result = result.model_copy(update={"parent_id": call.id})
        finished_ids.add(call.id)
        await session.commit(result)
        yield result
        if hook_error is not None:
            raise hook_error


async def _merged(generators: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """Yield the events of several generators as they arrive; if any fails, raise the first error at the end."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def read(generator: AsyncGenerator[Event, None]) -> Exception | None:
        try:
            async with aclosing(generator):
                async for event in generator:
                    events.put_nowait(event)
        except Exception as error:  # noqa: BLE001  # raised after all generators have ended
            return error
        finally:
            events.put_nowait(None)
        return None

    tasks = [asyncio.create_task(read(generator)) for generator in generators]
    try:
        active = len(tasks)
        while active:
            event = await events.get()
            if event is None:
                active -= 1
            else:
                yield event
        for error in await asyncio.gather(*tasks):
            if error is not None:
                raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_tool(agent: Agent, session: Session, call: ToolCallEvent) -> Result:
    """Run one tool call and return its result; a halt, a time-out or an error of the tool gives an error result."""
    tool, guard = _tool_named(agent, session, call.name), session.guard
    try:
        guard.check()
        if tool is None:
            available = f"the tools are {', '.join(agent.tools)}" if agent.tools else "there are no tools"
            raise ToolError(call.name, f"is not known; {available}")
        arguments = tool.read(call.arguments)
        seconds = tool.timeout or agent.tool_timeout
        started: float | None = None

        def start() -> None:
            nonlocal started
            guard.check()
            started = time.monotonic()

        def end_late(error: BaseException | None) -> None:
            session.tool_ended_late(call, time.monotonic() - (started or 0.0), error)

        try:
            async with asyncio.timeout(seconds) as deadline:
                text = await tool.run(arguments, session.context, start, threads=agent.tool_threads, on_late=end_late)
        except TimeoutError:
            if not deadline.expired():
                raise
            if started is None:
                raise ToolError(
                    call.name, f"did not start within {seconds:g} s: all threads of the agent's tools are busy"
                ) from None
            error = ToolError(call.name, f"took more than {seconds:g} s")
            if tool.is_async:  # the function was cancelled
                raise error from None
            return not_run(call, f"{error}; {_STILL_RUNS}", still_running=True)
        except asyncio.CancelledError:
            if started is not None and not tool.is_async:
                session.still_running.add(call.id)
            raise
    except HaltedError as halted:
        return not_run(call, f"not run: {halted}")
    except ToolError as error:
        return not_run(call, str(error))
    except Exception as error:  # noqa: BLE001  # a tool's error is its result
        return not_run(call, f"{type(error).__name__}: {error}")
    return ToolResultEvent(parent_id=call.id, name=call.name, content=text)


def _cancelled(session: Session, call: ToolCallEvent) -> ToolErrorEvent:
    """Return the error result of a call without a result, because its turn was cancelled."""
    if call.id in session.still_running:
        return not_run(call, f"{_ASK_CANCELLED}; {_STILL_RUNS}", still_running=True)
    return not_run(call, _ASK_CANCELLED)


async def _streamed_parts(agent: Agent, answer: Any) -> AsyncGenerator[Event, None]:
    """Yield the parts of a streamed answer; close the stream, also if reading stops early."""
    if not hasattr(answer, "__aiter__"):
        raise ConfigurationError(
            f"{type(agent.model).__name__} returned a {type(answer).__name__}; a model client returns a "
            "ModelResponse, or an async iterator that ends with one"
        )
    try:
        async for part in answer:
            yield part
    finally:
        close = getattr(answer, "aclose", None)
        if close is not None:
            await close()


def _answer_without_model_call(session: Session) -> ModelResponse | None:
    """Return the pending calls as a response, or the accepted structured answer; None if the model must be called."""
    if session.pending:
        return ModelResponse(tool_calls=tuple(session.pending.values()))
    structured_answer = session.owed
    return structured_answer.answer() if structured_answer is not None and structured_answer.value is not None else None


def _check_complete(response: ModelResponse, structured_answer: StructuredAnswer | None) -> None:
    """Check that a structured answer, as a text or as a tool call, was not truncated.

    Raises:
        StructuredOutputError: The answer was truncated.
    """
    if structured_answer is None or not response.is_truncated:
        return
    if not response.tool_calls or any(call.name == structured_answer.tool.name for call in response.tool_calls):
        raise structured_answer.cut_off(response)


def _refuse_all(response: ModelResponse) -> tuple[ModelResponse, list[ToolCallEvent], list[ToolErrorEvent]]:
    """Refuse all calls of a truncated response, because their arguments may be incomplete.

    Returns:
        The response without pending calls, no calls to run, and the error results of the calls.
    """
    reason = _refusal_reason(response)
    calls = [
        call.model_copy(update={"awaiting_approval": False}) if call.awaiting_approval else call
        for call in response.tool_calls
    ]
    return _with_calls(response, calls), [], [not_run(call, reason) for call in calls]


def _refusal_reason(response: ModelResponse) -> str:
    reason = _TRUNCATION_REASONS.get(
        response.finish_reason or "", f"the response was interrupted ({response.finish_reason})"
    )
    return f"not run: {reason}, so its calls may be incomplete"


def _tool_choice(session: Session) -> str | None:
    """Return the `tool_choice` of the model call: ``required`` if a structured answer is requested."""
    return None if session.owed is None else "required"


def _tool_named(agent: Agent, session: Session, name: str) -> Tool | None:
    structured_answer = session.owed
    return (
        structured_answer.tool
        if structured_answer is not None and structured_answer.tool.name == name
        else agent.tools.get(name)
    )


def _default_decision(tool: Tool | None) -> PermissionDecision:
    if tool is None:
        return _ALLOWED  # running an unknown tool gives an error result that names the known tools
    if tool.external:
        return PermissionDecision("external")
    return PermissionDecision("ask") if tool.needs_approval else _ALLOWED


def _has_marks(call: ToolCallEvent, marks: dict[str, bool]) -> bool:
    return all(getattr(call, name) is value for name, value in marks.items())


def _with_new_arguments(call: ToolCallEvent, decision: PermissionDecision) -> ToolCallEvent:
    if decision.updated_input is None:
        return call
    return call.model_copy(update={"arguments": json.dumps(dict(decision.updated_input), default=str)})


def _with_unique_ids(response: ModelResponse) -> ModelResponse:
    """Make the ids of a response's calls unique, so that each result matches one call."""
    if len(response.tool_calls) < 2:
        return response
    original_ids = [call.id for call in response.tool_calls]
    ids = unique_ids(original_ids)
    if ids == original_ids:
        return response
    calls = [call.model_copy(update={"id": call_id}) for call, call_id in zip(response.tool_calls, ids, strict=True)]
    return response.model_copy(update={"tool_calls": tuple(calls)})


def _with_calls(response: ModelResponse, calls: Sequence[ToolCallEvent]) -> ModelResponse:
    if all(map(operator.is_, response.tool_calls, calls)):
        return copy.copy(response)
    return response.model_copy(update={"tool_calls": tuple(calls)})


def _append_to_history(session: Session, events: Iterable[Event]) -> None:
    """Append events to the history without ``await``, because the running task is being cancelled."""
    for event in events:
        session.history.append(event)
