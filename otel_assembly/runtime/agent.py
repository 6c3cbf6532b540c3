"""`Agent`: calls a model and its tools in a loop, with built-in context assembly, halting and tracing."""

from __future__ import annotations

import copy
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.arguments import instance, several, whole_number
from otel_assembly._internal.threads import ThreadLimit
from otel_assembly.errors import ConfigurationError, SessionError
from otel_assembly.events import ModelResponse
from otel_assembly.knowledge import KnowledgeStore
from otel_assembly.policies import AlertPolicy
from otel_assembly.runtime.assembler_middleware import AssemblerMiddleware
from otel_assembly.runtime.loop import Loop
from otel_assembly.runtime.middleware import checked_middlewares
from otel_assembly.runtime.observers import checked_observers
from otel_assembly.runtime.session import Session, read_session
from otel_assembly.runtime.tools import tools_by_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from otel_assembly.assembler import Assembler
    from otel_assembly.events import Event
    from otel_assembly.policies.base import PolicyLike
    from otel_assembly.runtime.middleware import MiddlewareBase
    from otel_assembly.runtime.model_client import ModelClient
    from otel_assembly.runtime.observers import Observer
    from otel_assembly.runtime.tools import Tool


class Agent:
    """Calls a model and the tools that it requests, in a loop, until the model gives an answer.

    The chain of policies in `assembly` selects the messages of each model call. A FATAL alert from any observer halts
    the conversation: no further model call or tool call starts, and the running call of `ask` returns a response that
    reports the halt. Every later `ask` raises `HaltedError` until ``session.resume()`` is called.

    An agent has one `session`, which is its conversation. `open_session` opens another, separate conversation.

    Args:
        name: The agent's name, also used as ``gen_ai.agent.name``.
        system_prompt: The system prompt of every model call.
        model: The model client.
        tools: Functions with type hints, or `Tool`s.
        assembly: The chain of policies, or an `Assembler`. None: only an `AlertPolicy`, which adds alerts to the
            prompts.
        middlewares: Middlewares, the outermost first. The chain in `assembly` is added as the innermost one. Without
            `assembly`, an `AssemblerMiddleware` in this list replaces the default chain.
        observers: Observers that are attached to each session's stream.
        knowledge: The store that memory policies and an `AggregateObserver` use; None: no store.
        max_rounds: The most model calls that one call of `ask` may make.
        compress_at: A share of the token budget, above 0 and at most 1. If the last prompt used this share, the chain's
            compacting policy, which summarizes older messages, runs before the budget is exceeded.
        tool_timeout: The time limit of a tool call in seconds, for tools without a `timeout`.
        max_tool_threads: The most threads per event loop that run the agent's synchronous tools. All sessions of the
            agent share them. Waiting for a free thread counts towards a call's time limit. A function that exceeds its
            time limit occupies its thread until it returns.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        name: str,
        system_prompt: str,
        model: ModelClient,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        assembly: Assembler | Sequence[PolicyLike] | None = None,
        middlewares: Sequence[MiddlewareBase] = (),
        observers: Iterable[Observer] = (),
        knowledge: KnowledgeStore | None = None,
        max_rounds: int = 20,
        compress_at: float = 0.8,
        tool_timeout: float = 300.0,
        max_tool_threads: int = 40,
    ) -> None:
        instance("model", model)
        instance("knowledge", knowledge)
        if not isinstance(getattr(model, "model", None), str) or not callable(model):
            raise ConfigurationError(
                f"{type(model).__name__} is not a model client: it needs 'model' (the model's name) and an "
                "async __call__"
            )
        whole_number("max_rounds", max_rounds)
        whole_number("max_tool_threads", max_tool_threads)
        if not 0 < compress_at <= 1:
            raise ConfigurationError(f"compress_at must be above 0 and at most 1, got {compress_at!r}")
        if not tool_timeout > 0:
            raise ConfigurationError(f"tool_timeout must be above 0 s, got {tool_timeout!r}")
        self.name = name
        self.system_prompt = system_prompt
        self.model = model
        self.tools = tools_by_name(several("tools", tools))
        self.observers = checked_observers(observers)
        self.knowledge = knowledge
        self.max_rounds = max_rounds
        self.compress_at = compress_at
        self.tool_timeout = tool_timeout
        self.tool_threads = ThreadLimit("tool", max_tool_threads)
        checked = checked_middlewares(middlewares)
        chains = [middleware for middleware in checked if isinstance(middleware, AssemblerMiddleware)]
        if assembly is None and not chains:
            assembly = [AlertPolicy()]
        self.middlewares = checked if assembly is None else (*checked, AssemblerMiddleware(assembly))
        self.loop = Loop(self.middlewares)
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The conversation that `ask` continues. In a middleware hook, the conversation of the running call."""
        if self._session is None:
            self._session = self._new_session(None, ())
        return self._session

    def open_session(self, conversation_id: str | None = None, *, reductions: Sequence[PolicyLike] = ()) -> Self:
        """Return a copy of this agent with a new, separate conversation.

        Args:
            conversation_id: The conversation's id in your application, if it has one; recorded on spans.
            reductions: Policies for this conversation only. These run before the first policy of the agent's chain that
                removes messages.

        Raises:
            ConfigurationError: An entry of `reductions` is not a policy.
        """
        agent = self._copy_with(self._new_session(conversation_id, ()))
        if reductions:
            chain = next(middleware for middleware in self.middlewares if isinstance(middleware, AssemblerMiddleware))
            new_chain = chain.reducing_first(reductions)
            agent.middlewares = tuple(
                new_chain if middleware is chain else middleware for middleware in self.middlewares
            )
            agent.loop = Loop(agent.middlewares)
        return agent

    def load_session(self, text: str) -> Self:
        """Return a copy of this agent that continues a saved conversation.

        A conversation that was halted when it was saved is still halted.

        Args:
            text: The return value of ``session.save()``.

        Raises:
            SessionError: The text is not a saved session, or a line of it is damaged. The error names the line.
        """
        return self._copy_with(self._new_session(*read_session(text)))

    async def ask(self, inputs: Any = None, structured_schema: Any = None) -> ModelResponse:
        """Send inputs to the agent and wait for its answer.

        Args:
            inputs: A text, a `ModelRequest`, or a list of them. To answer pending tool calls, give a person's approvals
                (`UserConfirmResultEvent`) or the results of external tools (`ExternalExecutionResultEvent`). None
                continues the conversation after an error, a halt, or an answer that was cut off.
            structured_schema: A pydantic model, a dataclass or a ``TypedDict``. The answer's `structured_output` then
                contains validated JSON values of this type. The model returns the values by calling a tool that exists
                only in this call of `ask`. None: the answer is a text.

        Returns:
            The model's answer, or a response with tool calls that wait for an approval or an external result. If the
            conversation was halted, the response
            reports the halt and is not stored. `is_truncated` is True if the answer was cut off at a token limit or
            by a content filter.

        Raises:
            HaltedError: The conversation was already halted.
            SessionError: The inputs do not match the pending calls, or are None after a finished answer.
            MiddlewareError: A middleware raised an error or returned no result.
            ContextOverflowError: Content that cannot be dropped does not fit into the budget.
            StructuredOutputError: The answer does not match `structured_schema`, or was cut off.
            ModelCallError: The call to the provider failed. Call ``ask()`` without inputs to try again.
        """
        answer: ModelResponse | None = None
        async with aclosing(self.stream(inputs, structured_schema)) as events:
            async for event in events:
                if isinstance(event, ModelResponse):
                    answer = event
        if answer is None:
            raise SessionError(f"agent {self.name!r} gave no answer")  # the loop ends with a response or an error
        return answer

    def stream(self, inputs: Any = None, structured_schema: Any = None) -> AsyncGenerator[Event, None]:
        """Send inputs to the agent and yield each event of the turn as it happens.

        The events are response chunks, responses and tool results; the answer is the last event. The arguments and the
        errors are those of `ask`. Another `ask` or `stream` in the same session waits until this iterator is exhausted
        or closed, so close the iterator if you stop reading early.
        """
        return self.loop.reply(self, self.session, inputs, structured_schema)

    #: The same methods under their names in AgentScope.
    reply = ask
    reply_stream = stream

    async def aclose(self) -> None:
        """End the session: let each `AggregateObserver` finish its work, then detach all observers."""
        await self.session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def compress_context(self, context_config: Any = None, instructions: Any = None) -> None:
        """Run the chain's compacting policy if the last prompt used the share `compress_at` of the token budget.

        A compacting policy replaces older messages with a summary. If it ran, the chain uses only that share of its
        budget for the rest of this session. Without a compacting policy, this method does nothing.

        Args:
            context_config: Passed to the middleware hook ``on_compress_context``; the agent does not use it.
            instructions: Passed to the middleware hook ``on_compress_context``; the agent does not use it.
        """
        await self.loop.compress(self, self.session, context_config, instructions)

    def _new_session(self, conversation_id: str | None, events: Iterable[Event]) -> Session:
        return Session(
            self.name,
            model=self.model.model,
            tools=[tool.definition for tool in self.tools.values()],
            dependencies={} if self.knowledge is None else {KnowledgeStore: self.knowledge},
            observers=self.observers,
            conversation_id=conversation_id,
            events=events,
        )

    def _copy_with(self, session: Session) -> Self:
        agent = copy.copy(self)
        agent._session = session  # noqa: SLF001  # a copy of this agent
        return agent

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.model.model!r}, tools={list(self.tools)})"
