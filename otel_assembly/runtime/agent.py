"""`Agent`: a ReAct loop in which assembly, halting and tracing are built in."""

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
    """Asks a model, runs the tools that it calls, and asks again, until it answers.

    What each model call is sent, `assembly` decides. A FATAL alert, from whichever observer, ends it: no model call and
    no tool call starts after it, the ask that is running says so, and every later one raises `HaltedError` until
    ``session.resume()``.

    An agent has one `session` to begin with, and others by `open_session`: each is a conversation of its own.

    Args:
        name: The agent's name, in telemetry too.
        system_prompt: What stands in front of every prompt.
        model: What calls the model.
        tools: Functions with type hints, or `Tool`s.
        assembly: The chain of policies, or an `Assembler`; by default `AlertPolicy` alone.
        middlewares: The first is the outermost. The chain of `assembly` comes behind the last, unless there is an
            `AssemblerMiddleware` among them.
        observers: Who watches each session's stream.
        knowledge: The store that memory policies and aggregates use.
        max_rounds: How many times one ask may call the model.
        compress_at: The share of the budget from which the chain's compacting policy is run ahead of need.
        tool_timeout: Seconds that a tool call may take, where the tool does not say.
        max_tool_threads: Threads that run the agent's synchronous tools at the same time, for each event loop; the
            sessions of one agent share them. A call waits for a free thread within its time limit. A call that exceeds
            its limit keeps its thread until its function returns.

    Raises:
        ConfigurationError: One of these cannot work.
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
                f"{type(model).__name__} is no model client: it needs 'model', the model's name, and an async __call__"
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
        given = checked_middlewares(middlewares)
        chains = [one for one in given if isinstance(one, AssemblerMiddleware)]
        if assembly is None and not chains:
            assembly = [AlertPolicy()]
        self.middlewares = given if assembly is None else (*given, AssemblerMiddleware(assembly))
        self.loop = Loop(self.middlewares)
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The conversation that `ask` goes on with; in a hook, the one that the hook is called for."""
        if self._session is None:
            self._session = self._new_session(None, ())
        return self._session

    def open_session(self, conversation_id: str | None = None, *, reductions: Sequence[PolicyLike] = ()) -> Self:
        """This agent in a conversation of its own: what it is asked is said there.

        Args:
            conversation_id: The conversation's real id, if it has one.
            reductions: Policies of this conversation alone, in front of whatever reduces in the agent's chain.

        Raises:
            ConfigurationError: One of them is no policy.
        """
        own = self._in(self._new_session(conversation_id, ()))
        if reductions:
            chain = next(one for one in self.middlewares if isinstance(one, AssemblerMiddleware))
            before = chain.reducing_first(reductions)
            own.middlewares = tuple(before if one is chain else one for one in self.middlewares)
            own.loop = Loop(own.middlewares)
        return own

    def load_session(self, text: str) -> Self:
        """This agent in the conversation that ``session.save()`` wrote, halted if it was halted.

        Raises:
            SessionError: It is no saved session, or a damaged one; the line is named.
        """
        return self._in(self._new_session(*read_session(text)))

    async def ask(self, inputs: Any = None, structured_schema: Any = None) -> ModelResponse:
        """Ask, and wait for the answer.

        Args:
            inputs: A text, a `ModelRequest`, a list of them, what a person decided on calls that wait
                (`UserConfirmResultEvent`), results of calls that somebody else ran (`ExternalExecutionResultEvent`), or
                None to go on from where it stands: after an error, a halt, or an answer that was cut off.
            structured_schema: A pydantic model, a dataclass or a ``TypedDict``: the answer's `structured_output` is
                one, as JSON values, checked. The model gives it by a tool that only this ask has. None: the answer is a
                text.

        Returns:
            The model's answer; one with tool calls that wait for somebody; or one that says that the conversation was
            halted, which is not stored. If it is incomplete (cut off at a token limit, or filtered), its `is_truncated`
            is True.

        Raises:
            HaltedError: The conversation was halted before.
            SessionError: The inputs do not fit what the session waits for, or are None after a finished answer.
            MiddlewareError: A middleware raised, or gave no result.
            ContextOverflowError: What must be in the prompt does not fit.
            StructuredOutputError: The model gave no answer of the form that was asked for, or it was cut off.
            ModelCallError: The provider did not answer. The session can be asked again: ``ask()`` tries once more.
        """
        answer: ModelResponse | None = None
        async with aclosing(self.stream(inputs, structured_schema)) as events:
            async for event in events:
                if isinstance(event, ModelResponse):
                    answer = event
        if answer is None:
            raise SessionError(f"agent {self.name!r} gave no answer")  # every way through the loop ends with one
        return answer

    def stream(self, inputs: Any = None, structured_schema: Any = None) -> AsyncGenerator[Event, None]:
        """Ask, and get each event as it happens: chunks of responses, responses, results of tools; last the answer.

        What it takes and raises is as for `ask`. A second ask of the session waits until this one is over: close the
        iterator if you leave it early.
        """
        return self.loop.reply(self, self.session, inputs, structured_schema)

    #: AgentScope's names.
    reply = ask
    reply_stream = stream

    async def aclose(self) -> None:
        """The session is over: aggregates run a last time, and observers are detached."""
        await self.session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def compress_context(self, context_config: Any = None, instructions: Any = None) -> None:
        """Have the chain's compacting policy run ahead of need, where the last prompt was `compress_at` full.

        From then on the chain holds that share of its budget in this session. Without a policy that compacts, this does
        nothing.

        Args:
            context_config: Handed to ``on_compress_context``; the agent itself has no use for it.
            instructions: The same.
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

    def _in(self, session: Session) -> Self:
        own = copy.copy(self)
        own._session = session  # noqa: SLF001  # a copy of ourselves
        return own

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.model.model!r}, tools={list(self.tools)})"
