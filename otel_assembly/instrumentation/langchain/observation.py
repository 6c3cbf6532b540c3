"""What one reducer does, told as a step of the assembly that it works for, as late as there is something to tell."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.langchain.comparing import part_of, spliced
from otel_assembly.instrumentation.langchain.graph_runs import Place
from otel_assembly.instrumentation.langchain.preparing import begin, continued
from otel_assembly.instrumentation.wrapping import bound, contained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.instrumentation.langchain.preparing import Preparation
    from otel_assembly.observe.prepared import PreparedStep

TRIM_MESSAGES: Final = "trim_messages"
SUMMARIZATION: Final = "summarization"
CONTEXT_EDITING: Final = "context_editing"
WRAP_MODEL_CALL: Final = "wrap_model_call"


class ReducerCall:
    """What one reducer does to messages, while it runs.

    Attributes:
        messages: What went in.
        preparation: What it works for, once it, or one that ran inside of it, has done something.
        verdicts: Why items left, as far as the reducer let it be seen.
        explained: Whether that is all there is to say.
        asker: The node that asks the model that it works for, where that is known.
        calls: Whether a model that is called inside of it may be the one that it works for, as in a node that trims and
            calls; the call of a summariser is not.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        policy: str,
        messages: Sequence[Any],
        *,
        kind: str | None = None,
        config: Callable[[], Mapping[str, Any]] = dict,
        expected: bool = False,
        calls: bool = False,
    ) -> None:
        self.instrumentation = instrumentation
        self.policy = policy
        self.messages = messages
        self.kind = kind
        self._config = config
        #: Whether it is known to be a reducer: that it found nothing to do is then worth a count.
        self.expected = expected
        self.calls = calls
        self.asker: str | None = None
        #: The system prompts that came in, where it was shown any.
        self.came: tuple[str, ...] = ()
        #: Whether it has let its model be called, and the system prompts that it was last seen to send.
        self.sent = False
        self.prompts: tuple[str, ...] = ()
        self.verdicts: list[Verdict] = []
        self.explained = False
        self.reason = DecisionReason.POLICY
        self.preparation: Preparation | None = None
        self.step: PreparedStep | None = None
        self._started_ns = time.time_ns()

    def running(self) -> AbstractContextManager[None]:
        """The reducer runs in this block."""
        return bound(EDIT, self)

    def set_aside(self) -> AbstractContextManager[None]:
        """What runs in this block is no longer the reducer."""
        return bound(EDIT, None)

    def open(self) -> PreparedStep | None:
        """Its step, as of when the reducer began. None where nobody listens."""
        if self.step is None:
            with self.instrumentation.contained():
                preparation = self._prepares()
                if preparation is not None:
                    preparation.asker = self.asker or preparation.asker
                    self.step = preparation.step(self.policy, self._started_ns, kind=self.kind, config=self._config())
        return self.step

    def _prepares(self) -> Preparation | None:
        """What it works for: that of a reducer inside of it, or before it, or a new one."""
        if self.preparation is None or self.preparation.ended:
            around, place = EDIT.get(), Place.here()
            if around is self or (around is not None and not part_of(self.messages, around.messages)):
                around = None  # what it works for is no concern of the reducer that it runs in
            found = continued(place, self.messages)
            if found is None:
                whole = around.messages if around is not None else None
                found = begin(self.instrumentation, self.messages, place, self._started_ns, whole)
            if around is not None:
                self.asker = self.asker or around.asker
                around.preparation = found
            self.preparation = found
        return self.preparation

    @property
    def before(self) -> Sequence[Any]:
        """What it began with: what went in, or what a reducer inside of it made of that."""
        preparation = self.preparation
        if self.step is not None or preparation is None or preparation.ended:
            return self.messages
        if preparation.whole is self.messages:
            preparation.widen()
        return preparation.out

    def tell(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None, **said: Any) -> None:
        """The reducer returned these messages: tell what it did."""
        opened, before = self.step is not None, self.before
        step, preparation = self.open(), self.preparation
        if step is None or preparation is None:
            return
        with contained(preparation.fail):
            if not opened:
                with step:
                    pass
            verdicts = self.verdicts if self.explained else _left(before, messages, self.reason)
            out = preparation.out
            if part_of(before, out) and len(before) < len(out):
                messages = spliced(out, before, messages)
            step.out(messages, prompts=prompts, reason=self.reason, verdicts=verdicts, **said)
            preparation.out = list(messages)
        self.step = None
        self.prompts = tuple(prompts or ())
        if preparation.place.run is None:
            preparation.end(at=preparation.place)  # nothing else could see the end of it

    def end(self, error: BaseException | None = None) -> None:
        """The reducer is done; what it left untold is lost, and what it raised stopped what it worked for."""
        preparation, step, self.step = self.preparation, self.step, None
        if preparation is not None and step is not None:
            preparation.end(error)

    def gave_up(self, error: BaseException) -> None:
        """It raised, and whoever called it may go on with the messages as they were: that shows in what comes next."""
        preparation, self.step = self.preparation, None
        if preparation is not None and preparation.place.run is None:
            preparation.end(error)
        elif preparation is not None:
            preparation.problem = error

    def failed(self, error: BaseException) -> None:
        """It raised, or was cancelled; of what is not known to be a reducer that says nothing, unless it reduced."""
        if self.step is None and self.expected and not self.sent and (step := self.open()) is not None:
            with step:
                pass
            step.failed(error)
        self.end(error)

    def declined(self) -> None:
        """It found nothing to do."""
        if self.expected:
            with self.instrumentation.contained():
                run = Place.here().run
                self.instrumentation.observed.declined(self.policy, run.name if run is not None else None)


#: Whether what is trimmed here is what a summariser reads, and not what the model gets to see.
FOR_A_SUMMARY: Final[ContextVar[bool]] = ContextVar("otel_assembly_langchain_for_a_summary", default=False)
EDIT: Final[ContextVar[ReducerCall | None]] = ContextVar("otel_assembly_langchain_edit", default=None)


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
