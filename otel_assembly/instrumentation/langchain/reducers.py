"""LangChain's reducers: middleware that reduces, ``trim_messages`` and summaries, each a step of an assembly.

A reducer's step is opened as late as there is something to report, and as of when the reducer began.
``trim_messages`` is seen however and whenever it was imported: its two inner functions are what every way leads to.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.hooks import around, around_awaited
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.langchain.conversation import Place, begin, continued, part_of, spliced
from otel_assembly.instrumentation.langchain.model_calls import model_of
from otel_assembly.instrumentation.reducers import no_summary
from otel_assembly.messages.describe import describe
from otel_assembly.observe.conversations import contained

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.langchain.conversation import ModelCall
    from otel_assembly.observe.assembly import ObservedStep


TRIM_MESSAGES: Final = "trim_messages"
SUMMARIZATION: Final = "summarization"
CONTEXT_EDITING: Final = "context_editing"
WRAP_MODEL_CALL: Final = "wrap_model_call"


class ReducerCall:
    """What one reducer does to messages, while it runs.

    Attributes:
        messages: What went in.
        model_call: What it works for, once it, or one that ran inside of it, has done something.
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
        self.model_call: ModelCall | None = None
        self.step: ObservedStep | None = None
        self._started_ns = time.time_ns()

    def running(self) -> AbstractContextManager[None]:
        """The reducer runs in this block."""
        return bound(REDUCER_CALL, self)

    def set_aside(self) -> AbstractContextManager[None]:
        """What runs in this block is no longer the reducer."""
        return bound(REDUCER_CALL, None)

    def open(self) -> ObservedStep | None:
        """Its step, as of when the reducer began. None where no provider is configured."""
        if self.step is None:
            with self.instrumentation.contained():
                model_call = self._prepares()
                if model_call is not None:
                    model_call.asker = self.asker or model_call.asker
                    self.step = model_call.step(self.policy, self._started_ns, kind=self.kind, config=self._config())
        return self.step

    def _prepares(self) -> ModelCall | None:
        """What it works for: that of a reducer inside of it, or before it, or a new one."""
        if self.model_call is None or self.model_call.ended:
            around, place = REDUCER_CALL.get(), Place.here()
            if around is self or (around is not None and not part_of(self.messages, around.messages)):
                around = None  # what it works for is no concern of the reducer that it runs in
            found = continued(place, self.messages) if place.run is not None else None
            if found is None:
                whole = around.messages if around is not None else None
                found = begin(self.instrumentation.observed, self.messages, place, self._started_ns, whole)
            if around is not None:
                self.asker = self.asker or around.asker
                around.model_call = found
            self.model_call = found
        return self.model_call

    @property
    def before(self) -> Sequence[Any]:
        """What it began with: what went in, or what a reducer inside of it made of that."""
        model_call = self.model_call
        if self.step is not None or model_call is None or model_call.ended:
            return self.messages
        if model_call.whole is self.messages:
            model_call.widen()
        return model_call.out

    def report(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None, **said: Any) -> None:
        """The reducer returned these messages: report what it did."""
        opened, before = self.step is not None, self.before
        step, model_call = self.open(), self.model_call
        if step is None or model_call is None:
            return
        with contained(model_call.fail):
            if not opened:
                with step:
                    pass
            verdicts = self.verdicts if self.explained else _left(before, messages, self.reason)
            out = model_call.out
            if len(before) < len(out) and part_of(before, out):
                messages = spliced(out, before, messages)
            step.out(messages, prompts=prompts, reason=self.reason, verdicts=verdicts, **said)
            model_call.out = list(messages)
        self.step = None
        self.prompts = tuple(prompts or ())
        if model_call.place.run is None:
            model_call.end(at=model_call.place)  # nothing else could see the end of it

    def end(self, error: BaseException | None = None) -> None:
        """The reducer is done; what it left unreported is lost, and what it raised stopped what it worked for."""
        model_call, step, self.step = self.model_call, self.step, None
        if model_call is not None and step is not None:
            model_call.end(error)

    def gave_up(self, error: BaseException) -> None:
        """It raised, and whoever called it may go on with the messages as they were: that shows in what comes next."""
        model_call, self.step = self.model_call, None
        if model_call is not None and model_call.place.run is None:
            model_call.end(error)
        elif model_call is not None:
            model_call.problem = error

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
REDUCER_CALL: Final[ContextVar[ReducerCall | None]] = ContextVar("otel_assembly_langchain_edit", default=None)


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


_NAMED: Final = {
    ("langchain.agents.middleware.summarization", "SummarizationMiddleware"): SUMMARIZATION,
    ("langchain.agents.middleware.context_editing", "ContextEditingMiddleware"): CONTEXT_EDITING,
}
_SETTINGS: Final = ("trim_tokens_to_summarize", "max_tokens_before_summary", "messages_to_keep")


def is_observed(owner: Any) -> bool:
    """Whether this is middleware whose changes are reported, and not a plug-in of ours, which reports by itself."""
    module: Any = sys.modules.get("langchain.agents.middleware.types")
    base: Any = getattr(module, "AgentMiddleware", None)
    return isinstance(base, type) and isinstance(owner, base) and not getattr(owner, "otel_assembly_plugin", False)


def reducer_call_of(instrumentation: Instrumentation, owner: Any, messages: Sequence[Any], **known: Any) -> ReducerCall:
    """What a middleware is going to do to messages."""
    kind = type(owner)
    policy = _NAMED.get((kind.__module__, kind.__qualname__))
    if policy is None:
        return ReducerCall(instrumentation, kind.__name__, messages, **known)
    return ReducerCall(
        instrumentation, policy, messages, kind="reduction", config=lambda: _settings(owner), expected=True, **known
    )


def _settings(owner: Any) -> dict[str, Any]:
    """The settings of LangChain's own reducers that are numbers."""
    found = {name: getattr(owner, name) for name in _SETTINGS if isinstance(getattr(owner, name, None), int)}
    keep = getattr(owner, "keep", None)
    if isinstance(keep, tuple):
        found[f"keep_{keep[0]}"] = keep[1]
    trigger = getattr(owner, "trigger", None)
    for clause in trigger if isinstance(trigger, list) else [trigger]:
        limits = clause.items() if isinstance(clause, Mapping) else [clause] if isinstance(clause, tuple) else ()
        found.update({f"trigger_{unit}": value for unit, value in limits})
    for edit in getattr(owner, "edits", ())[:1]:
        for name in ("trigger", "keep", "clear_at_least", "clear_tool_inputs"):
            if isinstance(getattr(edit, name, None), int):
                found[name] = getattr(edit, name)
    return found


#: What the two functions are always given, by name.
_KEYS: Final = frozenset({"max_tokens", "token_counter"})
_FLAGS: Final = ("include_system", "allow_partial")
_INSIDE: Final[ContextVar[bool]] = ContextVar("otel_assembly_trimming", default=False)


class _Counting:
    """The caller's token counter, whose answers are noted as it is asked; it is never asked more often for it."""

    __slots__ = ("_counter", "in_items", "originals", "said")

    def __init__(self, given: Sequence[Any], settings: Mapping[str, Any]) -> None:
        self._counter: Callable[[Any], int] = settings["token_counter"]
        #: Whether the limit is a number of messages.
        self.in_items = self._counter is len
        cuts = settings.get("allow_partial") or settings.get("partial_strategy")
        #: Where messages may be cut, those that are whole.
        self.originals = frozenset(map(id, given)) if cuts else None
        #: How many messages were counted, the last of them, and the tokens.
        self.said: list[tuple[int, Any, int]] = []

    def __call__(self, messages: list[Any]) -> int:
        tokens = self._counter(messages)
        if messages and (self.originals is None or id(messages[-1]) in self.originals):
            self.said.append((len(messages), messages[-1], tokens))
        return tokens


class Trim:
    """What one trim did, read from what went in, what came out, and what was counted on the way.

    Attributes:
        verdicts: Why each message left.
        over: Why those left that did not fit.
        needed: What would have had to fit for the result not to be empty, in what the counter counts; None where it
            is not empty, or not for want of room.
    """

    def __init__(
        self,
        given: Sequence[Any],
        result: Sequence[Any],
        settings: Mapping[str, Any],
        counting: _Counting,
        *,
        last: bool,
    ) -> None:
        said = counting.said
        self.over = DecisionReason.OUTSIDE_WINDOW if counting.in_items else DecisionReason.OVER_BUDGET
        system = given[0] if last and settings.get("include_system") and result and result[0] is given[0] else None
        if system is not None and system.type != "system":
            system = None
        start = 0 if system is None else 1
        taken = next((tokens for _, message, tokens in said if message is system), 0)
        counts = [(count, tokens) for count, message, tokens in said if message is not system]
        limit = max(0, settings["max_tokens"] - taken)
        whole = start + (counts[0][0] if counts else 0)
        fits = max((count for count, tokens in counts if tokens <= limit), default=0)
        within = range(whole - fits, whole) if last else range(start, start + fits)
        beyond = range(whole - fits - 1, start - 1, -1) if last else range(start + fits, whole)
        out = {id(message) for message in result}
        elsewhere = [given[at] for at in (*within, *range(whole, len(given))) if id(given[at]) not in out]
        self.verdicts = [Verdict(elsewhere, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if elsewhere else []
        if beyond and counting.originals is not None and not out <= counting.originals:  # a part of one fitted
            self.verdicts += [
                Verdict([given[beyond[0]]], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED),
                Verdict([given[at] for at in beyond[1:]], DecisionOutcome.DROPPED, self.over),
            ]
        too_much = [tokens for _, tokens in counts if tokens > limit]
        empty = len(result) <= start and bool(too_much)
        self.needed = min(too_much) + taken if empty else None
        self.cause = OverflowCause.FRAMEWORK if fits else OverflowCause.NEWEST_ATOM


def trim_messages(original: Callable[..., Any], instrumentation: Instrumentation, *, last: bool) -> Callable[..., Any]:
    """In the place of what trims from the front (``last``), or from the end, by which the other one works too."""

    @functools.wraps(original)
    def trim(messages: Any, *args: Any, **settings: Any) -> Any:
        listens = not args and instrumentation.open and instrumentation.observed.listening()
        if not listens or _INSIDE.get() or not messages or not settings.keys() >= _KEYS:
            return original(messages, *args, **settings)
        given = messages if isinstance(messages, list) else list(messages)
        limit, counting = settings["max_tokens"], _Counting(given, settings)
        reducer = step = None
        with instrumentation.contained():
            if not FOR_A_SUMMARY.get():
                config = {"max_messages" if counting.in_items else "max_tokens": limit}
                config.update({name: settings[name] for name in _FLAGS if name in settings})
                reducer = ReducerCall(instrumentation, TRIM_MESSAGES, given, kind="reduction", config=lambda: config)
                step = reducer.open()
                model = getattr(settings["token_counter"], "__self__", None)
                if reducer.model_call is not None and hasattr(model, "get_num_tokens_from_messages"):
                    reducer.model_call.model = reducer.model_call.model or model_of(model)  # trimmed for that one
        inside = _INSIDE.set(True)
        try:
            with step if step is not None else nullcontext():
                result = original(given, **{**settings, "token_counter": counting})
        except BaseException as error:
            if reducer is not None:
                reducer.gave_up(error)
            raise
        finally:
            _INSIDE.reset(inside)
        with instrumentation.contained():
            done, summarising = Trim(given, result, settings, counting, last=last), SUMMARISING.get()
            if reducer is not None and step is not None:
                if done.needed is not None:
                    unit = "items" if counting.in_items else "tokens"
                    step.overflow(budget=limit, needed=done.needed, cause=done.cause, unit=unit)
                reducer.verdicts, reducer.explained, reducer.reason = done.verdicts, True, done.over
                reducer.report(result, budget=None if counting.in_items else limit)
            elif reducer is None and summarising is not None:
                summarising.trimmed = done.needed, limit
        if reducer is not None and reducer.step is not None:
            reducer.end()  # that could not be reported
        return result

    return trim


class Summarising:
    """One call of ``_create_summary``, in which the summariser is called, if it comes to that.

    The messages that are summarised are trimmed before: what the summariser never saw is not in the summary, and has
    left without a trace. It is reported as dropped, and the rest as compacted. What fails in ours is ours alone.

    Attributes:
        given: The messages that are to be summarised.
        seen: Those that the summariser was given; None until that is known.
        trimmed: Where trimming left nothing, what would have had to fit, and the limit.
    """

    def __init__(self, reducer: ReducerCall, step: ObservedStep, middleware: Any, given: Sequence[Any]) -> None:
        self.middleware = middleware
        self.given = list(given)
        self.seen: list[Any] | None = None
        self.trimmed: tuple[int | None, int] | None = None
        self._reducer = reducer
        self._step = step
        self._attempt: Attempt | None = None
        self._compacting = ExitStack()

    def run(self) -> Observation:
        """What runs around the call."""
        with self._step, self._compacting, bound(SUMMARISING, self):
            summary = yield
            with self._reducer.instrumentation.contained():
                if self._attempt is not None:
                    self._answered(self._attempt, summary if isinstance(summary, str) else "")
                elif self.given and self.seen is not None:
                    # Nothing was left to summarise: the history is replaced by a sentence that says so, and is gone.
                    self._left(self.given, DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET)
                    needed, budget = self.trimmed or (None, 0)
                    if needed is not None:
                        self._step.overflow(budget=budget, needed=needed, cause=OverflowCause.FRAMEWORK)

    def begin(self, seen: Sequence[Any]) -> None:
        """The summariser is called next, with these messages, or not at all if there are none."""
        self.seen = list(seen)
        if self.seen and self._attempt is None:
            model = getattr(self.middleware, "summarizer", None) or self.middleware.model
            read = (text for message in self.seen for text in describe(message).texts)
            model_call = self._reducer.model_call
            tokens = sum(map(model_call.count, read)) if model_call is not None else 0
            compacting = self._step.compacting(type(model).__name__, tokens_in=tokens)
            self._attempt = self._compacting.enter_context(compacting)

    def _answered(self, attempt: Attempt, text: str) -> None:
        attempt.tokens_out = self._step.count(text)
        attempt.outcome = no_summary(text, self.seen or ())
        if attempt.outcome is not None:
            self._left(self.given, DecisionOutcome.DROPPED, DecisionReason.POLICY_ERROR)
        elif self.seen is not None:
            seen = {id(message) for message in self.seen} | {message.id for message in self.seen if message.id}
            unseen = [one for one in self.given if not {id(one), one.id} & seen]
            if unseen:
                self._left(unseen, DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET)
            summarised = [one for one in self.given if {id(one), one.id} & seen]
            self._left(summarised, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)

    def _left(self, messages: Sequence[Any], outcome: DecisionOutcome, reason: DecisionReason) -> None:
        self._reducer.explained = True
        self._reducer.verdicts.append(Verdict(messages, outcome, reason))


SUMMARISING: Final[ContextVar[Summarising | None]] = ContextVar("otel_assembly_summarising", default=None)


def _summarised(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """The summary that a middleware makes, where it runs inside a step that is reported."""
    given: Sequence[Any] = argument(args, kwargs, 0, "messages_to_summarize", ())
    reducer = REDUCER_CALL.get()
    step = reducer.open() if reducer is not None and given else None
    if reducer is not None and step is not None:
        yield from Summarising(reducer, step, middleware, given).run()


#: Around ``SummarizationMiddleware._create_summary`` and ``_acreate_summary``.
create_summary, acreate_summary = around(_summarised), around_awaited(_summarised)


@around
def trim_for_summary(instrumentation: Instrumentation, middleware: Any, /, *args: Any, **kwargs: Any) -> Observation:
    """Around ``SummarizationMiddleware._trim_messages_for_summary``, after which the summariser is called."""
    with bound(FOR_A_SUMMARY, True):
        result = yield
    summarising = SUMMARISING.get()
    if summarising is not None and summarising.middleware is middleware:
        summarising.begin(result)
