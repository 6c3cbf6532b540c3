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
from otel_assembly.runtime.middleware import Onion, PermissionDecision, system_prompt_of
from otel_assembly.runtime.rendered_turns import unique_ids
from otel_assembly.runtime.run_span import in_a_run
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
    """The attributes of an agent that the loop uses; middleware hooks receive the agent itself."""

    name: str
    system_prompt: str
    model: ModelClient
    tools: dict[str, Tool]
    max_rounds: int
    compress_at: float
    tool_timeout: float
    tool_threads: ThreadLimit


_CANCELLED: Final = "not run to its end: the ask was cancelled"
_STOPPED: Final = "not run: the ask ended before it"
#: The error result of calls in a truncated response, by finish reason.
_CUT_OFF: Final = {
    "length": "the response was cut off at its token limit (length)",
    "content_filter": "the provider's filter stopped the response (content_filter)",
}
_ALLOWED: Final = PermissionDecision("allow")


def _is_response(event: Any) -> bool:
    return isinstance(event, ModelResponse)


def _is_result(event: Any) -> bool:
    return isinstance(event, ToolResultEvent | ToolErrorEvent)


class Loop:
    """The steps of an agent's turn, each wrapped by its middlewares.

    Args:
        middlewares: The agent's middlewares, the outermost first.
    """

    def __init__(self, middlewares: Sequence[Any]) -> None:
        self._replying = Onion(middlewares, "on_reply", is_result=_is_response)
        self._reasoning = Onion(middlewares, "on_reasoning", is_result=_is_response)
        self._acting = Onion(middlewares, "on_acting", is_result=_is_result)
        self._permitting = Onion(middlewares, "on_check_permission")
        self._calling = Onion(middlewares, "on_model_call")
        self._compressing = Onion(middlewares, "on_compress_context")
        self._prompting = [layer for layer in middlewares if layer.is_implemented("on_system_prompt")]
        chains = [layer.assembler for layer in middlewares if isinstance(layer, AssemblerMiddleware)]
        self._compacting = [chain for chain in chains if chain.compacts]

    async def reply(self, agent: Agent, session: Session, inputs: Any, schema: Any) -> AsyncGenerator[Event, None]:
        """Run one turn for the inputs; yield its events, the answer last."""
        session.guard.check()
        async with session.asking:

            def step(inputs: Any, structured_schema: Any = None) -> AsyncGenerator[Event, None]:
                owed = None if structured_schema is None else StructuredAnswer(structured_schema, agent.tools)
                turn = self._turn(agent, session, inputs, owed)
                return in_a_run(turn, agent.name, session.context.conversation_id)

            given = {"inputs": inputs, "structured_schema": schema}
            async with aclosing(self._replying.events(agent, step, given)) as events:
                async for event in events:
                    yield event

    async def _turn(
        self, agent: Agent, session: Session, inputs: Any, owed: StructuredAnswer | None
    ) -> AsyncGenerator[Event, None]:
        new_events, calls = accept_inputs(session, inputs, agent.tools, wants_form=owed is not None)
        session.owed = owed
        await session.stream.send(TurnStarted(turn=session.turns))
        session.turns += 1
        try:
            for event in new_events:
                await session.stream.send(event)
            if isinstance(inputs, UnfinishedCalls):
                calls = await self._repeatable(agent, session, calls)
            async with aclosing(self._rounds(agent, session, calls)) as events:
                async for event in events:
                    yield event
        except HaltedError as halted:
            yield ModelResponse(content=f"HALTED: {halted.reason}")
        await session.stream.send(TurnCompleted(turn=session.turns - 1))

    async def _rounds(
        self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]
    ) -> AsyncGenerator[Event, None]:
        owed, guard = session.owed, session.guard
        for _ in range(agent.max_rounds):
            if len(calls) == 1 and not self._acting:
                yield await self._call_alone(agent, session, calls[0])
            elif calls:
                async with aclosing(self._act(agent, session, calls)) as events:
                    async for event in events:
                        yield event
            guard.check()
            ended = _answer_without_the_model(session)
            if ended is not None:
                yield ended
                return
            answer = await self._answer(agent, session)
            response = answer if isinstance(answer, ModelResponse) else None
            if response is None:
                async with aclosing(_pieces(agent, answer)) as pieces:
                    async for event in pieces:
                        if isinstance(event, ModelResponse):
                            response = event
                        else:
                            yield event
            response, calls, refused = await self._take_down(agent, session, response)
            try:
                for event in (response, *refused):
                    yield event
            except BaseException:  # the reader stopped early, so none of these calls will run
                _write_down(session, [not_run(call, _CANCELLED) for call in calls])
                raise
            _check_whole(response, owed)
            if not response.tool_calls:
                guard.check()
                if owed is not None:
                    yield owed.take_text(response)
                return
        async with aclosing(self._stopped(agent, session, calls)) as events:
            async for event in events:
                yield event

    async def _stopped(
        self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]
    ) -> AsyncGenerator[Event, None]:
        """End an ask that reached `max_rounds`; of its last calls, only the one with the structured answer runs."""
        owed = session.owed
        answering = [call for call in calls if owed is not None and call.name == owed.tool.name]
        errors = [not_run(call, _STOPPED) for call in calls if call not in answering]
        for error in errors:
            await session.commit(error)
        for error in errors:
            yield error
        if owed is None:
            yield ModelResponse(content=f"STOPPED: no answer after {agent.max_rounds} calls of the model")
            return
        async with aclosing(self._act(agent, session, answering)) as events:
            async for event in events:
                yield event
        session.guard.check()
        yield owed.answer()

    async def _take_down(
        self, agent: Agent, session: Session, response: ModelResponse | None
    ) -> tuple[ModelResponse, list[ToolCallEvent], list[ToolErrorEvent]]:
        """Check and store a model's response; return it with the calls that may run and the refused calls."""
        if response is None:
            raise SessionError(f"the model {agent.model.model!r} of agent {agent.name!r} gave no response")
        response = _with_ids_of_their_own(response)
        if response.is_truncated and response.tool_calls:
            response, calls, refused = _all_refused(response)
        else:
            response, calls, refused = await self._permit_all(agent, session, response)
        # Store the response before its calls start. Otherwise no record of a call would remain if the process died.
        await (session.commit(response) if response.tool_calls else session.stream.send(response))
        for call in response.tool_calls:
            if call.awaiting_approval:
                session.pending[call.id] = call
        for error in refused:
            await session.commit(error)
        if self._permitting:
            original = {call.id: call for call in response.tool_calls}
            for call in calls:
                await session.note_change(original[call.id], call, "permission")
        return response, calls, refused

    async def _repeatable(self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]) -> list[ToolCallEvent]:
        """Return the unfinished calls that may run again; store an error as the result of the others."""
        allowed: list[ToolCallEvent] = []
        cut_off = {
            call.id: event
            for event in session.history
            if isinstance(event, ModelResponse) and event.is_truncated
            for call in event.tool_calls
        }
        for call in calls:
            if call.id in cut_off:  # the process ended before it stored the refusal of the call
                await session.commit(not_run(call, _why_refused(cut_off[call.id])))
                continue
            if call.awaiting_approval:  # it never started
                session.pending[call.id] = call
                continue
            tool = _tool(agent, session, call.name)
            if tool is None or not tool.idempotent:
                await session.commit(not_run(call, OUTCOME_UNKNOWN))
                continue
            # The permission check may change the arguments, as it may have done in the process that ended.
            decision = await self._permit(agent, session, call)
            if decision.behavior == "allow":
                allowed.append(_with_input(call, decision))
                await session.note_change(call, allowed[-1], "permission")
            else:
                await session.commit(not_run(call, f"not run again: {decision.message or 'it is not allowed'}"))
        return allowed

    async def _answer(self, agent: Agent, session: Session) -> Any:
        """Compress the context if needed, then call the model; return a response or an iterator of its parts."""
        if self._compressing or self._compacting:
            await self.compress(agent, session)
        return self._reasoned(agent, session) if self._reasoning else await self._ask(agent, session, _choice(session))

    def _reasoned(self, agent: Agent, session: Session) -> AsyncGenerator[Event, None]:
        """Return the events of one round's reasoning, wrapped by all middlewares."""

        async def step(tool_choice: str | None = None) -> AsyncGenerator[Event, None]:
            answer = await self._ask(agent, session, tool_choice)
            if isinstance(answer, ModelResponse):
                yield answer
                return
            async with aclosing(_pieces(agent, answer)) as pieces:
                async for piece in pieces:
                    yield piece

        return self._reasoning.events(agent, step, {"tool_choice": _choice(session)})

    async def _ask(self, agent: Agent, session: Session, tool_choice: str | None) -> Any:
        """Call the model; return its response, or an iterator of its parts."""
        call = ModelCall(session.context, [await self._prompt(agent) if self._prompting else agent.system_prompt])
        given = {
            "current_model": agent.model,
            "messages": session.history,
            "tools": [*session.context.tools, *([] if session.owed is None else [session.owed.tool.definition])],
            "tool_choice": tool_choice,
        }

        async def step(current_model: ModelClient, messages: Any, tools: Any = (), tool_choice: Any = None) -> Any:
            session.guard.check()
            sent = MODEL_CALL.get() or call
            return await current_model(sent.prompts, messages, tools=tools, tool_choice=tool_choice)

        token = MODEL_CALL.set(call)
        try:
            return await self._calling.run(agent, step, given)
        finally:
            MODEL_CALL.reset(token)

    async def _prompt(self, agent: Agent) -> str:
        prompt = agent.system_prompt
        for layer in self._prompting:
            prompt = await system_prompt_of(layer, agent, prompt)
        return prompt

    async def compress(
        self, agent: Agent, session: Session, context_config: Any = None, instructions: Any = None
    ) -> None:
        """Run the compacting policies if the last prompt filled the share `compress_at` of the budget."""
        if not self._compressing:
            await self._compress(agent, session)
            return

        async def step(context_config: Any = None, instructions: Any = None) -> None:
            await self._compress(agent, session)

        given = {"context_config": context_config, "instructions": instructions}
        await self._compressing.run(agent, step, given)

    async def _compress(self, agent: Agent, session: Session) -> None:
        if not self._compacting or not session.history:
            return
        prompt = await self._prompt(agent)
        context = session.context.with_budget_ratio(min(session.context.budget_ratio, agent.compress_at))
        for chain in self._compacting:
            if await chain.compact_ahead([prompt], session.history, context):
                session.context.budget_ratio = context.budget_ratio

    async def _permit_all(
        self, agent: Agent, session: Session, response: ModelResponse
    ) -> tuple[ModelResponse, list[ToolCallEvent], list[ToolErrorEvent]]:
        """Check each call; return the response with pending calls marked, the allowed calls, and denials.

        The returned response is always a new object, because a model client may return the same object twice.
        """
        if not response.tool_calls:
            return copy.copy(response), [], []
        shown: list[ToolCallEvent] = []
        allowed: list[ToolCallEvent] = []
        refused: list[ToolErrorEvent] = []
        try:
            for call in response.tool_calls:
                decision = await self._permit(agent, session, call)
                external = decision.behavior == "external"
                waits = external or decision.behavior == "ask"
                marks = {"awaiting_approval": waits, "external": external}
                # Overwrite marks that a model client set: otherwise a call could run and be pending at the same time.
                shown.append(call if _has(call, marks) else call.model_copy(update=marks))
                if decision.behavior == "deny":
                    refused.append(not_run(call, f"not run: {decision.message or 'it is not allowed'}"))
                elif not waits:
                    allowed.append(_with_input(call, decision))
        except BaseException:
            _write_down(session, [response, *(not_run(call, _CANCELLED) for call in response.tool_calls)])
            raise
        return _with_calls(response, shown), allowed, refused

    async def _permit(self, agent: Agent, session: Session, call: ToolCallEvent) -> PermissionDecision:
        tool = _tool(agent, session, call.name)
        if tool is None or not self._permitting:
            return _decision(tool)
        try:
            given = {"tool_call": call, "tool": tool, "tool_input": tool.read(call.arguments)}
        except ToolError:
            return _ALLOWED

        async def step(tool_call: ToolCallEvent, tool: Tool, tool_input: Any = None) -> PermissionDecision:
            return _decision(tool)

        decision: PermissionDecision = await self._permitting.run(agent, step, given)
        return decision

    async def _act(self, agent: Agent, session: Session, calls: Sequence[ToolCallEvent]) -> AsyncGenerator[Event, None]:
        """Run calls concurrently; yield their events and results as they arrive."""
        if not calls:
            return
        recorded: set[str] = set()
        running = [self._call(agent, session, call, recorded) for call in calls]
        try:
            async with aclosing(running[0] if len(running) == 1 else _at_once(running)) as events:
                async for event in events:
                    yield event
        finally:
            _write_down(session, [not_run(call, _CANCELLED) for call in calls if call.id not in recorded])

    async def _call_alone(self, agent: Agent, session: Session, call: ToolCallEvent) -> Result:
        """Run the only call of a response when no middleware implements ``on_acting``; return its result."""
        try:
            result = await _result(agent, session, call)
        except BaseException:
            _write_down(session, [not_run(call, _CANCELLED)])
            raise
        await session.commit(result)
        return result

    async def _call(
        self, agent: Agent, session: Session, call: ToolCallEvent, recorded: set[str]
    ) -> AsyncGenerator[Event, None]:
        """Run one call; yield its events, the result last."""
        result: Result | None = None
        failed: Exception | None = None

        async def step(tool_call: ToolCallEvent) -> AsyncGenerator[Event, None]:
            await session.note_change(call, tool_call, "middleware")
            yield await _result(agent, session, tool_call)

        try:
            async with aclosing(self._acting.events(agent, step, {"tool_call": call})) as events:
                async for event in events:
                    if isinstance(event, ToolResultEvent | ToolErrorEvent):
                        result = event
                    else:
                        yield event
        except Exception as error:  # noqa: BLE001  # raised again after the result is stored
            # A middleware's error: a tool's own error becomes its result. A stored result lets the session continue.
            failed = error
            result = not_run(call, f"not run to its end: {type(error).__name__}")
        if result is None:
            result = not_run(call, "not run to its end: it gave no result")
        elif result.parent_id != call.id:
            result = result.model_copy(update={"parent_id": call.id})
        recorded.add(call.id)
        await session.commit(result)
        yield result
        if failed is not None:
            raise failed


async def _at_once(several: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """Yield the events of several generators as they arrive; raise the first error after all have ended."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def read(source: AsyncGenerator[Event, None]) -> Exception | None:
        try:
            async with aclosing(source):
                async for event in source:
                    events.put_nowait(event)
        except Exception as error:  # noqa: BLE001  # raised after all have ended
            return error
        finally:
            events.put_nowait(None)
        return None

    tasks = [asyncio.create_task(read(source)) for source in several]
    try:
        left = len(tasks)
        while left:
            event = await events.get()
            if event is None:
                left -= 1
            else:
                yield event
        for failed in await asyncio.gather(*tasks):
            if failed is not None:
                raise failed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _result(agent: Agent, session: Session, call: ToolCallEvent) -> Result:
    """Run one call and return its result; an error of the tool becomes an error result for the model."""
    tool, guard = _tool(agent, session, call.name), session.guard
    try:
        guard.check()
        if tool is None:
            known = f"the tools are {', '.join(agent.tools)}" if agent.tools else "there are no tools"
            raise ToolError(call.name, f"is not known; {known}")
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
            if tool.is_async:  # it was cancelled
                raise error from None
            return not_run(call, f"{error}; it still runs and may still take effect", still_running=True)
    except HaltedError as halted:
        return not_run(call, f"not run: {halted}")
    except ToolError as error:
        return not_run(call, str(error))
    except Exception as error:  # noqa: BLE001  # a tool's error is its result
        return not_run(call, f"{type(error).__name__}: {error}")
    return ToolResultEvent(parent_id=call.id, name=call.name, content=text)


async def _pieces(agent: Agent, answer: Any) -> AsyncGenerator[Event, None]:
    """Yield the parts of a streamed answer; close the stream when reading ends for any reason."""
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


def _answer_without_the_model(session: Session) -> ModelResponse | None:
    """Return the answer of a turn that needs no further model call: the pending calls, or the structured answer."""
    if session.pending:
        return ModelResponse(tool_calls=tuple(session.pending.values()))
    owed = session.owed
    return owed.answer() if owed is not None and owed.value is not None else None


def _check_whole(response: ModelResponse, owed: StructuredAnswer | None) -> None:
    """Check that a structured answer, given as a text or as a tool call, was not cut off.

    Raises:
        StructuredOutputError: The answer was cut off.
    """
    if owed is None or not response.is_truncated:
        return
    if not response.tool_calls or any(call.name == owed.tool.name for call in response.tool_calls):
        raise owed.cut_off(response)


def _all_refused(response: ModelResponse) -> tuple[ModelResponse, list[ToolCallEvent], list[ToolErrorEvent]]:
    """Refuse all calls of a response that was cut off, because their arguments may be incomplete."""
    why = _why_refused(response)
    calls = [
        call.model_copy(update={"awaiting_approval": False}) if call.awaiting_approval else call
        for call in response.tool_calls
    ]
    return _with_calls(response, calls), [], [not_run(call, why) for call in calls]


def _why_refused(response: ModelResponse) -> str:
    reason = _CUT_OFF.get(response.finish_reason or "", f"the response was interrupted ({response.finish_reason})")
    return f"not run: {reason}, so its calls may be incomplete"


def _choice(session: Session) -> str | None:
    """Return the tool choice: a structured answer requires a tool call."""
    return None if session.owed is None else "required"


def _tool(agent: Agent, session: Session, name: str) -> Tool | None:
    owed = session.owed
    return owed.tool if owed is not None and owed.tool.name == name else agent.tools.get(name)


def _decision(tool: Tool | None) -> PermissionDecision:
    if tool is None:
        return _ALLOWED  # running an unknown tool gives an error result that names the known tools
    if tool.external:
        return PermissionDecision("external")
    return PermissionDecision("ask") if tool.needs_approval else _ALLOWED


def _has(call: ToolCallEvent, marks: dict[str, bool]) -> bool:
    return all(getattr(call, name) is value for name, value in marks.items())


def _with_input(call: ToolCallEvent, decision: PermissionDecision) -> ToolCallEvent:
    if decision.updated_input is None:
        return call
    return call.model_copy(update={"arguments": json.dumps(dict(decision.updated_input), default=str)})


def _with_ids_of_their_own(response: ModelResponse) -> ModelResponse:
    """Return the response with unique call ids, so that each result matches one call."""
    if len(response.tool_calls) < 2:
        return response
    original_ids = [call.id for call in response.tool_calls]
    ids = unique_ids(original_ids)
    if ids == original_ids:
        return response
    calls = [call.model_copy(update={"id": name}) for call, name in zip(response.tool_calls, ids, strict=True)]
    return response.model_copy(update={"tool_calls": tuple(calls)})


def _with_calls(response: ModelResponse, calls: Sequence[ToolCallEvent]) -> ModelResponse:
    if all(map(operator.is_, response.tool_calls, calls)):
        return copy.copy(response)
    return response.model_copy(update={"tool_calls": tuple(calls)})


def _write_down(session: Session, events: Iterable[Event]) -> None:
    """Append events to the history without awaiting, because the task is being cancelled."""
    for event in events:
        session.history.append(event)
