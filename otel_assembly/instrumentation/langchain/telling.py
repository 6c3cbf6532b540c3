"""What is told of one reducer: an assembly of a single step, opened as late as there is something to tell."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.langchain.conversations import CONVERSATIONS_WITHOUT_THREAD
from otel_assembly.instrumentation.langchain.graph_runs import GRAPH_RUN, in_the_run
from otel_assembly.instrumentation.wrapping import bound, told_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observed import ObservedAssembly, ObservedStep

TRIM_MESSAGES: Final = "trim_messages"
SUMMARIZATION: Final = "summarization"
CONTEXT_EDITING: Final = "context_editing"
WRAP_MODEL_CALL: Final = "wrap_model_call"


class Edit:
    """What one reducer does to messages, while it runs.

    Attributes:
        messages: What went in.
        trimmed: What `trim_messages` returned inside of it, each time: that was told on its own.
        verdicts: Why items left, as far as the reducer let it be seen.
        explained: Whether that is all there is to say.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        policy: str,
        messages: Sequence[Any],
        *,
        kind: str | None = None,
        config: Callable[[], Mapping[str, Any]] = dict,
        prompts: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        model: str | None = None,
        expected: bool = False,
    ) -> None:
        self.instrumentation = instrumentation
        self.policy = policy
        self.messages = messages
        self.kind = kind
        self._config = config
        self.prompts = tuple(prompts)
        self.tools = tools
        self.model = model
        #: Whether it is known to be a reducer: that it found nothing to do is then worth a count.
        self.expected = expected
        self.trimmed: list[Sequence[Any]] = []
        #: What the model was last sent, and its prompts, where it was.
        self.sent: tuple[list[Any], tuple[str, ...]] | None = None
        self.verdicts: list[Verdict] = []
        self.explained = False
        self.reason = DecisionReason.POLICY
        self.assembly: ObservedAssembly | None = None
        self.step: ObservedStep | None = None
        self._started_ns = time.time_ns()

    def running(self) -> AbstractContextManager[None]:
        """The reducer runs in this block."""
        return bound(EDIT, self)

    def set_aside(self) -> AbstractContextManager[None]:
        """What runs in this block is no longer the reducer."""
        return bound(EDIT, None)

    def open(self) -> ObservedStep | None:
        """The step; its assembly is opened with it, as of when the reducer began. None where nobody listens."""
        if self.assembly is not None:
            return self.step
        with self.instrumentation.contained(), in_the_run() as run:
            place = CONVERSATIONS_WITHOUT_THREAD.place(self.messages, self.policy, run)
            self.assembly = self.instrumentation.observed.begin(
                place.ledger,
                self.messages,
                prompts=self.prompts,
                tools=self.tools,
                agent_name=run.name if run is not None else None,
                model=self.model,
                conversation_id=place.conversation_id,
                started_ns=self._started_ns,
            )
            if self.assembly is not None:
                self.step = self.assembly.step(
                    self.policy, kind=self.kind, config=self._config(), started_ns=self._started_ns
                )
        return self.step

    def tell(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None, **said: Any) -> None:
        """The reducer returned these messages: tell what it did, and come to an end."""
        opened = self.assembly is not None
        step = self.open()
        if step is None or self.assembly is None:
            return
        with told_whole(self.assembly):
            if not opened:
                with step:
                    pass
            verdicts = self.verdicts if self.explained else _left(self.messages, messages, self.reason)
            step.out(messages, prompts=prompts, reason=self.reason, verdicts=verdicts, **said)
            CONVERSATIONS_WITHOUT_THREAD.goes_on(self.messages, messages)
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """The assembly came to its end, if there was one."""
        assembly, self.assembly, self.step = self.assembly, None, None
        if assembly is not None:
            assembly.end(error)

    def failed(self, error: BaseException) -> None:
        """It raised, or was cancelled; of what is not known to be a reducer that says nothing, unless it reduced."""
        if self.assembly is None and self.expected and self.sent is None and (step := self.open()) is not None:
            with step:
                pass
            step.failed(error)
        self.end(error)

    def declined(self) -> None:
        """It found nothing to do."""
        if self.expected:
            with self.instrumentation.contained():
                run = GRAPH_RUN.get()
                self.instrumentation.observed.declined(self.policy, run.name if run is not None else None)


#: Whether what is trimmed here is what a summariser reads, and not what the model gets to see.
FOR_A_SUMMARY: Final[ContextVar[bool]] = ContextVar("otel_assembly_langchain_for_a_summary", default=False)
EDIT: Final[ContextVar[Edit | None]] = ContextVar("otel_assembly_langchain_edit", default=None)


def _left(before: Sequence[Any], after: Sequence[Any], reason: DecisionReason) -> list[Verdict]:
    """Why messages left, where nothing new stands there that could stand for them."""
    objects = set(map(id, before))
    others = [message for message in after if id(message) not in objects]
    if not others:
        return []  # the same objects: the reason alone says it
    known = {message.id for message in before if message.id}
    if not all(message.id in known for message in others):
        return []
    there = {id(message) for message in after} | {message.id for message in after if message.id}
    gone = [message for message in before if not {id(message), message.id} & there]
    return [Verdict(gone, DecisionOutcome.DROPPED, reason)] if gone else []


def changed(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether messages are not those that they were, or read differently."""
    return len(before) != len(after) or not all(map(alike, before, after))


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists hold the same messages."""
    return not changed(one, other)


def alike(one: Any, other: Any) -> bool:
    """Whether two messages are the same one, or a copy of it that reads as it does."""
    return one is other or (
        type(one) is type(other)
        and one.content == other.content
        and getattr(one, "tool_calls", None) == getattr(other, "tool_calls", None)
        and one.id == other.id
    )
