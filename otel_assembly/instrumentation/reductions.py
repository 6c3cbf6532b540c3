"""The one hook for whatever reduces messages: sync, async or in place, inside of a model call or outside of any."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from otel_assembly.budget.attempt import Attempt
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredAttempt, DeferredReduction
from otel_assembly.instrumentation.hooks import observe_any_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import same
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.observe.assembly import settling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_assembly.decision import Verdict
    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedStep


@dataclass(frozen=True, slots=True)
class Reducer:
    """How one of a framework's reducers is read.

    Each function takes the arguments that the reducer is called with; where `by` is given, `policy`, `kind` and
    `config` take what that found, and `said` in the place of the arguments.

    Attributes:
        before: The messages that it takes in; a `ClientRequest` of them where it may change the system prompts too.
        after: Those that it lets out, from its result and then its arguments; None for one that changes them in place:
            `before` then says it.
        policy: Its name, of low cardinality.
        kind: ``reduction`` or ``injection``; None where that is not known.
        config: Its settings; numbers, bools and enums of them are reported.
        said: What `ObservedStep.out` is told beside the messages, such as verdicts and a budget, from what came in,
            what came out, and the arguments.
        always: Whether it is told of also where it changed nothing; otherwise that is a count, and no span.
        invoking_agent: Who will ask a model with what it lets out, where it runs outside of any model call.
        by: What reduces; None where nothing does.
        ends: Who would have asked a model next, had it not raised; None where what it raises ends nothing.
        expected_errors: Exceptions that are told by whoever raised them, and not as a failure of it.
    """

    before: Callable[..., Sequence[Any] | ClientRequest | None]
    after: Callable[..., Sequence[Any] | ClientRequest | None] | None = None
    policy: Callable[..., str] | str = ""
    kind: Callable[..., str | None] | str | None = "reduction"
    config: Callable[..., Mapping[str, Any]] | None = None
    said: Callable[..., Mapping[str, Any]] | None = None
    always: bool = False
    invoking_agent: Callable[..., InvokingAgent | None] | None = None
    by: Callable[..., Any] | None = None
    ends: Callable[..., InvokingAgent | None] | None = None
    expected_errors: tuple[type[BaseException], ...] = ()


class Reduction:
    """What one reducer does to messages, while it runs.

    Args:
        instrumentation: Where it is reported.
        policy: Its name, of low cardinality.
        before: What it takes in.
        kind: ``reduction`` or ``injection``.
        config: Its settings.
        call: The model call that it works for, if it is not the one that is bound.
        finds: Finds that call by what the reducer takes in, and by when it began, with what the call's messages were
            then; it is asked for as soon as there is something to tell.
        agent_name: Whose reducer it is, where it works for no model call.

    Attributes:
        before: What it took in.
        config: Its settings.
        call: The model call that it works for; None where none is prepared.
        step: Its step, once something in it had to stand under that.
        verdicts: Why messages left, as far as that is known before it is done.
        summarising: Whether it makes a summary, whose span is open: the model that is called for it is a part of that.
        over: Whether it is done, or has failed: what it has started may still run.
        read: What the last summariser that it asked was given to read.
        attempt: The last attempt to compact; None where no summariser was asked.
    """

    __slots__ = (
        "_agent_name",
        "_context",
        "_earlier",
        "_finds",
        "_instrumentation",
        "_kind",
        "_policy",
        "_since",
        "_started_ns",
        "attempt",
        "before",
        "call",
        "config",
        "over",
        "read",
        "step",
        "summarising",
        "verdicts",
    )

    def __init__(
        self,
        instrumentation: Instrumentation,
        policy: str,
        before: Sequence[Any],
        *,
        kind: str | None = "reduction",
        config: Mapping[str, Any] | None = None,
        call: ModelCall | None = None,
        finds: Callable[[Sequence[Any], int], tuple[ModelCall, Sequence[Any] | None]] | None = None,
        agent_name: str | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._policy = policy
        self.before = list(before)
        self._kind = kind
        self.config = config or {}
        self._finds = finds
        self._agent_name = agent_name
        self.call = CALL.get() if call is None and finds is None else call
        self._since: Sequence[Any] | None
        self._since = self.call.out if self.call is not None and self.call.messages is not None else None
        self._started_ns = time.time_ns()
        self._context = otel_context.get_current()
        self.step: ObservedStep | None = None
        self.verdicts: list[Verdict] = []
        self.summarising = False
        self.over = False
        self.read: Sequence[Any] = ()
        self.attempt: Attempt | None = None
        self._earlier: list[DeferredAttempt] = []

    def resolve_model_call(self) -> ModelCall | None:
        """The call that it works for."""
        if self.call is None and self._finds is not None:
            self.call, self._since = self._finds(self.before, self._started_ns)
        return self.call

    @contextmanager
    def running(self) -> Iterator[None]:
        """The reducer runs in this block; a model that is called in it is its own, such as a summariser's."""
        with context_value(REDUCTION, self):
            yield

    @contextmanager
    def in_outer_context(self) -> Iterator[None]:
        """What it was called in is current in this block, and not its step: it says something of itself there."""
        token = otel_context.attach(self._context)
        try:
            yield
        finally:
            otel_context.detach(token)

    @contextmanager
    def tracked(
        self,
        ends: Callable[[], InvokingAgent | None] | None = None,
        expected_errors: tuple[type[BaseException], ...] = (),
    ) -> Iterator[None]:
        """The reducer runs in this block, likewise; what it raises is told, and goes through.

        Args:
            ends: Who would have asked a model next, had it not raised.
            expected_errors: Exceptions that are told by whoever raised them.
        """
        try:
            with self.running():
                yield
        except BaseException as error:
            unmade = ends() if ends is not None else None
            if unmade is not None:
                self.ended(error, unmade)
            elif self.step is not None or not isinstance(error, expected_errors):
                self.failed(error)
            raise

    def open(self) -> ObservedStep | None:
        """Its step, as of when and where it began; None where nothing is recorded, or it works for no model call."""
        call = self.resolve_model_call()
        if self.step is None and call is not None:
            with self.in_outer_context():  # a summariser may have spans of its own around what it does
                call.open(self._started_ns)
            step = call.step(
                self._policy, self.before, kind=self._kind, config=self.config, started_ns=self._started_ns
            )
            if step is not None:
                self.step = step.__enter__()
        return self.step

    @contextmanager
    def compacting(
        self,
        model: str,
        tokens_in: Callable[[Callable[[str], int]], int],
        *,
        started_ns: int | None = None,
        model_spans: Sequence[Any] = (),
    ) -> Iterator[Attempt | None]:
        """A model is called in this block to compact something: a ``compact_block`` under this reducer's step.

        Args:
            model: The model's name, or what else compacts.
            tokens_in: The tokens of what the model is given, counted by the function that it is passed.
            started_ns: When the model was called, if that was before.
            model_spans: Filled with the span contexts of the model's calls. The ``compact_block`` links to those that
                began before it was opened.
        """
        step = self.open()
        if self.call is None and not self.summarising:
            # Its span is opened with the call that it turns out to belong to, as of the time of the summarizer's call.
            attempt = self.attempt = Attempt(
                model, len(self._earlier) + 1, 0, 0, started_ns=started_ns or time.time_ns(), model_spans=model_spans
            )
            self._earlier.append(DeferredAttempt(attempt, tokens_in))
            try:
                with settling(attempt):
                    yield attempt
            finally:
                attempt.ended_ns = time.time_ns()
            return
        if step is None or self.call is None or self.summarising:
            yield None
            return
        tokens = tokens_in(self.call.count)
        with step.compacting(model, tokens_in=tokens, started_ns=started_ns, model_spans=model_spans) as attempt:
            self.attempt = attempt
            yield attempt

    def adopt_deferred(self, invoking_agent: InvokingAgent) -> None:
        """What summarisers did for this asker outside of any call is told in its step: it takes that up."""
        self._tell([attempt for one in DEFERRED_REDUCTIONS.take(invoking_agent) for attempt in one.attempts])

    def takes_over(self, inner: Reduction) -> None:
        """A reducer inside of this one raised: what summarizers did for it is recorded in the step of this one."""
        self._earlier += inner._earlier

    def _tell(self, attempts: Sequence[DeferredAttempt]) -> None:
        step = self.open() if attempts else None
        for attempt in attempts:
            if step is not None and self.call is not None:
                attempt.told(self.call.count, step)

    def answered(self, attempt: Attempt, text: str) -> None:
        """A summariser has said this."""
        if self.step is not None:
            attempt.tokens_out = self.step.count(text)
        elif self._earlier:
            self._earlier[-1].text = text

    def done(
        self, after: Sequence[Any], *, always: bool = False, invoking_agent: InvokingAgent | None = None, **said: Any
    ) -> None:
        """It let these out: tell of it, now or with the next model call of who asks."""
        self.over = True
        if self.verdicts:
            said["verdicts"] = self.verdicts
        prompts = said.get("prompts")
        any_said = any(value is not None for name, value in said.items() if name != "prompts")
        changed = always or self.step is not None or prompts is not None or not same(self.before, after)
        if changed and self.resolve_model_call() is not None and self._was_told(after, prompts) and not any_said:
            return
        if self.step is not None:
            self.step.__exit__(None, None, None)
        if changed and self.call is not None:
            self.call.reduced(
                self._policy,
                self.before,
                after,
                step=self.step,
                since=self._since,
                kind=self._kind,
                config=self.config,
                started_ns=self._started_ns,
                **said,
            )
        elif invoking_agent is not None and (changed or self._earlier):
            DEFERRED_REDUCTIONS.put(invoking_agent, self.waiting(after, said))
        elif not changed and self._kind == "reduction":
            agent_name = self.call.invoking_agent.agent_name if self.call is not None else self._agent_name
            self._instrumentation.observed.declined(self._policy, agent_name)

    def waiting(self, after: Sequence[Any], said: Mapping[str, Any]) -> DeferredReduction:
        """It let these out, outside of any model call: what there is to tell of it with one."""
        self.over = True
        if self.verdicts:
            said = {**said, "verdicts": self.verdicts}
        return DeferredReduction(self._policy, self.before, list(after), self._kind, self.config, said, self._earlier)

    def _was_told(self, after: Sequence[Any], prompts: Sequence[str] | None) -> bool:
        """Whether what ran inside of it has told all that was done."""
        call = self.call
        if self.step is not None or call is None or call.out is self._since or not same(call.out, after):
            return False
        return prompts is None or list(prompts) == list(call.prompts_out or ())

    def failed(self, error: BaseException) -> None:
        """It raised, or was cancelled: that is told, and what becomes of the call shows in what comes next."""
        step, self.over = self.open(), True
        if self.call is not None:
            self.call.problem = error
        if step is not None:
            step.__exit__(type(error), error, error.__traceback__)

    def ended(self, error: BaseException, invoking_agent: InvokingAgent) -> None:
        """It raised, and who would have asked a model next does not: outside of any call, that one ends with this."""
        unmade = ModelCall(self._instrumentation, invoking_agent) if self.call is None else None
        self.call = self.call or unmade
        self._tell(self._earlier)
        self.failed(error)
        if unmade is not None:
            unmade.end(error)


#: The reducer that runs here.
REDUCTION: Final[ContextVar[Reduction | None]] = ContextVar("otel_assembly_reduction", default=None)


def reducing() -> Reduction | None:
    """The reducer that runs here; None also where it is over, and what it has started still runs."""
    reduction = REDUCTION.get()
    return reduction if reduction is not None and not reduction.over else None


@contextmanager
def plugin_scope(instrumentation: Instrumentation, call: ModelCall) -> Iterator[None]:
    """A plug-in of ours makes an assembly itself in this block, of which a model that it asks is a part."""
    call.end()
    with context_value(CALL, None):
        plugin = Reduction(instrumentation, "", ())
        with plugin.running():
            yield
    plugin.over = True


def outer_span_hook(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of a function by which a reducer says something of itself on the current span, which is no step."""
    return observe_any_hook(_beneath)(original, instrumentation)


def _beneath(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    reduction = reducing()
    with reduction.in_outer_context() if reduction is not None else nullcontext():
        yield


def reducer(reads: Reducer) -> Wrap:
    """The hook of a function that reduces messages, awaited or not."""
    return observe_any_hook(reduces(reads))


def reduces(reads: Reducer) -> Callable[..., Observation]:
    """What observes a function that reduces messages."""

    def observe(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        def remap_verdicts(setting: Any) -> Any:
            return setting(*about, **named) if callable(setting) else setting

        about, named = args, kwargs
        if reads.by is not None:
            about, named = (reads.by(*args, **kwargs),), {}
            if about[0] is None:
                return
        prompts, before = _read(reads.before(*args, **kwargs))
        if before is None:
            return
        policy, kind, config = map(remap_verdicts, (reads.policy, reads.kind, reads.config))
        reduction = Reduction(instrumentation, policy, before, kind=kind, config=config)
        ends = partial(reads.ends, *args, **kwargs) if reads.ends is not None else None
        with reduction.tracked(ends, reads.expected_errors):
            result = yield
        after: Any = reads.before(*args, **kwargs) if reads.after is None else reads.after(result, *args, **kwargs)
        prompts_after, after = _read(after)
        if after is not None:
            said = dict(reads.said(reduction.before, after, *about, **named)) if reads.said is not None else {}
            if prompts_after != prompts:
                said["prompts"] = prompts_after
            asks = reads.invoking_agent if reduction.call is None else None
            invoking_agent = asks(*args, **kwargs) if asks is not None else None
            reduction.done(after, always=reads.always, invoking_agent=invoking_agent, **said)

    return observe


def _read(messages: Sequence[Any] | ClientRequest | None) -> tuple[Sequence[str] | None, Sequence[Any] | None]:
    """The system prompts, where they are told, and the messages."""
    return (messages.prompts, messages.messages) if isinstance(messages, ClientRequest) else (None, messages)
