"""The one hook for the place where a model's client is called: there the messages of a call are final."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.instrumented import call_if_accepted, context_value
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import no_summary
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.messages.event_facts import describe
from otel_assembly.messages.provider_rules import rules_of_client
from otel_assembly.telemetry.model_span_links import CalledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager
    from types import CodeType

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import Reduction
    from otel_assembly.instrumentation.runs import Run

#: The client that is called here, and the call that is prepared: a client that calls another one for it is one call.
#: One that has an agent of its own answer makes that agent's calls, too.
_CALLED: Final[ContextVar[tuple[ClientCall, ModelCall | None] | None]] = ContextVar(
    "otel_assembly_client_called", default=None
)


class ClientCall:
    """One call of a model's client: what it is given is told before it runs, or as it runs, where it summarises.

    Args:
        instrumentation: Where it is reported.
        read: What the client is given; None where it is not to be told of.
        text_of: The text of an answer, for a summariser's; None of it where that is not known yet.
        told: Tells what the client is given, and returns the call that this is.
        chunk_text: The text in a part of an answer that comes in parts, likewise; None where there is none.

    Attributes:
        over: Whether it has answered: what it has started may still run, and make calls of its own.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        read: Callable[[], ClientRequest | None],
        text_of: Callable[[Any], str | None] | None = None,
        told: Callable[[Instrumentation, ClientRequest], ModelCall] | None = None,
        chunk_text: Callable[[Any], str | None] | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._read = read
        self._text_of = text_of
        self._said_in = chunk_text
        self._said: list[str] = []
        self._tell = told or tell
        self._calling: Callable[[], AbstractContextManager[Any]] = nullcontext
        #: Whether it answers step by step: what is opened for it is then not held open in between.
        self.streams = False
        self.over = False
        self._began = False
        self._told = False
        self._called = CalledModel(prepared=False)
        self._sent: ClientRequest | None = None
        self._reduction: Reduction | None = None
        self._attempt: Attempt | None = None
        self._compacts: AbstractContextManager[Attempt | None] | None = None
        #: Whether that was entered as the client was called: whoever answers step by step need not say so before.
        self._entered = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """The client runs in this block, the first of which is the call; never left open across a ``yield``."""
        if not self._began:
            self._began = True
            with self._instrumentation.suppress_errors():
                self._begin()
        if not self._told:
            yield
            return
        with context_value(_CALLED, (self, CALL.get())), self._calling(), self._called.current():
            yield

    def _begin(self) -> None:
        if called():
            return
        self._sent = sent = self._read()
        if sent is None:
            return
        messages: object = sent.messages
        if not isinstance(messages, Sequence):  # what can be read once is the client's to read
            call = CALL.get()
            if call is not None and reducing() is None and self._tell is not record_standalone_call:
                call.fail(TypeError(f"a model's client is given its messages as {type(messages).__name__}"))
            return
        self._told, self._reduction = True, reducing()
        reduction = self._reduction
        if reduction is None:
            self._calling = self._tell(self._instrumentation, sent).calling
            self._called = CalledModel()
            return
        reduction.read = sent.messages
        # It may be the very list that the answer is added to, and is counted when that has happened.
        tokens = partial(_tokens, sent=sent._replace(messages=list(sent.messages)))
        self._instrumentation.watch_model_calls()
        self._compacts = reduction.compacting(
            sent.model or "model", tokens, started_ns=time.time_ns(), model_spans=self._called.model_spans
        )
        if not self.streams:
            self._entered, self._attempt = True, self._compacts.__enter__()

    def returned(self, answer: Any) -> None:
        """The client has answered, all at once."""
        if self._attempt is None or self._text_of is None:
            return
        with self._instrumentation.suppress_errors():
            text = self._text_of(answer)
            if text is not None:
                self._answered(self._attempt, text)

    def gave(self, part: Any) -> None:
        """The client has given a part of its answer."""
        if self._compacts is None or self._said_in is None:
            return
        with self._instrumentation.suppress_errors():
            self._said.append(self._said_in(part) or "")

    def _answered(self, attempt: Attempt, text: str) -> None:
        if self._sent is not None and self._reduction is not None:
            self._reduction.answered(attempt, text)
            attempt.outcome = no_summary(text, self._sent.messages)

    def end(self, error: BaseException | None = None) -> None:
        """The client's call is over."""
        self.over = True
        self._called.end(error)
        compacts, self._compacts = self._compacts, None
        if compacts is not None:
            with self._instrumentation.suppress_errors():
                attempt = self._attempt if self._entered else compacts.__enter__()
                if error is None and attempt is not None and self._said:
                    self._answered(attempt, "".join(self._said))
                try:
                    compacts.__exit__(type(error) if error is not None else None, error, None)
                except BaseException as raised:
                    if raised is not error:
                        raise


def called() -> bool:
    """Whether a client is called here whose call is told: what it calls in its turn is no call of its own."""
    around = _CALLED.get()
    return around is not None and not around[0].over and around[1] is CALL.get()


def model_in(*held: Any) -> str | None:
    """The name of the model that the first of these says, which has it as an attribute, or for a key; None of none."""
    said = (one.get("model") if isinstance(one, dict) else getattr(one, "model", None) for one in held)
    return next((name for name in said if isinstance(name, str) and name), None)


def _tokens(count: Callable[[str], int], sent: ClientRequest) -> int:
    texts = (text for message in sent.messages for text in describe(message).texts)
    return sum(count(text) for text in (*(sent.prompts or ()), *texts))


def tell(instrumentation: Instrumentation, sent: ClientRequest) -> ModelCall:
    """A client receives this: it is the end of the call that is prepared here, or of one that nothing prepared."""
    call = CALL.get() or sent.call or ModelCall(instrumentation, sent.invoking_agent)
    call.client_called(sent)
    return call


def record_standalone_call(instrumentation: Instrumentation, sent: ClientRequest) -> ModelCall:
    """A client receives this for a call of its own, whatever is prepared here."""
    call = ModelCall(instrumentation, sent.invoking_agent)
    call.client_called(sent)
    return call


def summariser_call(
    reads: Callable[..., ClientRequest | None], text_of: Callable[[Any], str | None] | None = None
) -> Wrap:
    """The hook of a reducer's own function that has a model summarise: a part of its step, and otherwise no call.

    Args:
        reads: As for `client`.
        text_of: Likewise.
    """

    def read(*args: Any, **kwargs: Any) -> ClientRequest | None:
        return None if reducing() is None else reads(*args, **kwargs)

    return client(read, text_of)


def client(
    reads: Callable[..., ClientRequest | None],
    text_of: Callable[[Any], str | None] | None = None,
    attach_to_stream: Callable[[Any, Any], bool] | None = None,
    told: Callable[[Instrumentation, ClientRequest], ModelCall] | None = None,
    prepared: Callable[..., Run | None] | None = None,
    chunk_text: Callable[[Any], str | None] | None = None,
) -> Wrap:
    """The hook of a function that calls a model: a coroutine function, a generator, or neither.

    A client that another one calls, such as a cache, is told of once, with what the outer one was given, unless the
    outer one is left out.

    Args:
        reads: What the client is given, from its arguments; None where that is left out.
        text_of: The text of what it returns, for a summariser's; None of it where that is not known yet.
        attach_to_stream: As for `run_hook`.
        told: Instead of `tell`, if no context variable has the call: `record_standalone_call` if there is none.
        prepared: The call that was prepared for it, from the `Instrumentation` and the client's arguments, where the
            client is not called inside of it; the call ends with the client's. Or any other `Run` that the client is
            called in.
        chunk_text: As `text_of`, of each part of an answer that comes in parts.
    """

    def hook(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        def call_of(_: Instrumentation, /, *args: Any, **kwargs: Any) -> ClientCall:
            read = partial(call_if_accepted, original, reads, args, kwargs)
            return ClientCall(instrumentation, partial(_with_rules, read, args), text_of, told, chunk_text)

        return run_hook(call_of, attach_to_stream)(original, instrumentation)

    if prepared is None:
        return hook
    around = run_hook(prepared, attach_to_stream)
    return lambda original, instrumentation: around(hook(original, instrumentation), instrumentation)


def _with_rules(read: Callable[[], ClientRequest | None], args: Sequence[Any]) -> ClientRequest | None:
    """What a client is given, with what the client adds to it: the client is the first argument of a method."""
    sent = read()
    if sent is None or sent.client is not None or not args:
        return sent
    return sent._replace(client=rules_of_client(args[0]))


def innermost_client_hook(
    method: str,
    reads: Callable[..., ClientRequest | None],
    text_of: Callable[[Any], str | None] | None = None,
    *,
    asks: Collection[str] = (),
    holds: Callable[[Any], bool] | None = None,
    **more: Any,
) -> Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]]:
    """What a `SubclassHook` makes of a method of clients: a class that hands on to the one behind it is looked through.

    So is a client that has others answer, such as a fallback, where it is known by which methods those are asked.

    Args:
        method: Its name.
        reads: As for `client`.
        text_of: As for `client`.
        asks: The methods by which a client is asked, where a class whose code asks by them has others answer.
        holds: Whether something is a client; then one has others answer if it has some, too.
        more: What else `client` takes.
    """

    def wrap(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
        def sent(self: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
            behind = getattr(super(owner, self), method, None) if hands_on else None
            if behind is not None and not getattr(behind, "__isabstractmethod__", False):
                return None
            if asks_others and (holds is None or _holds(self, holds)):
                return None
            return reads(self, *args, **kwargs)

        named = _names_by_function(owner)
        hands_on = any({"super", method} <= names for names in named)
        asks_others = any("super" not in names and not names.isdisjoint(asks) for names in named)
        return client(sent, text_of, **more)(original, instrumentation)

    return wrap


def _names_by_function(owner: type) -> list[set[str]]:
    """What each function in the code of a class names, as one does that calls it."""
    codes = [code for one in vars(owner).values() for code in _codes(one)]
    for code in codes:
        codes += [inside for inside in code.co_consts if hasattr(inside, "co_names")]
    return [set(code.co_names) for code in codes]


def _codes(one: Any, deep: int = 3) -> list[CodeType]:
    """The code of a function, and of what a decorator around it holds that says nothing of it."""
    function = inspect.unwrap(one)
    function = function if callable(function) else one  # a framework may only note that it has wrapped it
    cells = getattr(function, "__closure__", None) or () if deep else ()
    held = [inside for cell in cells if inspect.isfunction(inside := _content(cell))]
    code = getattr(function, "__code__", None)
    return [*([] if code is None else [code]), *(inside for each in held for inside in _codes(each, deep - 1))]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _holds(client: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a client has one of these, by itself or among several; pydantic keeps what is private apart."""
    held = (getattr(client, where, None) or {} for where in ("__dict__", "__pydantic_private__"))
    values = (value for one in held for value in one.values())
    several = ([*value.values()] if isinstance(value, dict) else value for value in values)
    inside = (each for value in several for each in (value if isinstance(value, list | tuple) else (value,)))
    return any(map(wanted, inside))
