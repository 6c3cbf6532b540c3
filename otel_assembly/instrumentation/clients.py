"""The one hook for the place where a model's client is called: there the messages of a call are final."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.instrumented import bound
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.reducers import no_summary
from otel_assembly.instrumentation.reductions import REDUCTION, reducing
from otel_assembly.instrumentation.runs import within
from otel_assembly.messages.describe import describe
from otel_assembly.telemetry.stamp import CalledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

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

    Attributes:
        over: Whether it has answered: what it has started may still run, and make calls of its own.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        read: Callable[[], Sent | None],
        text_of: Callable[[Any], str | None] | None = None,
        told: Callable[[Instrumentation, Sent], ModelCall] | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._read = read
        self._text_of = text_of
        self._tell = told or tell
        self._calling: Callable[[], AbstractContextManager[Any]] = nullcontext
        #: Whether it answers step by step: what is opened for it is then not held open in between.
        self.streams = False
        self.over = False
        self._began = False
        self._told = False
        self._called = CalledModel(prepared=False)
        self._sent: Sent | None = None
        self._attempt: Attempt | None = None
        self._compacts: AbstractContextManager[Attempt | None] | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """The client runs in this block, the first of which is the call; never left open across a ``yield``."""
        if not self._began:
            self._began = True
            with self._instrumentation.contained():
                self._begin()
        if not self._told:
            yield
            return
        with bound(_CALLED, (self, CALL.get())), self._calling(), self._called.current():
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
            if call is not None and reducing() is None and self._tell is not tell_alone:
                call.fail(TypeError(f"a model's client is given its messages as {type(messages).__name__}"))
            return
        self._told, reduction = True, reducing()
        if reduction is None:
            self._calling = self._tell(self._instrumentation, sent).calling
            self._called = CalledModel()
            return
        reduction.read = sent.messages
        self._compacts = reduction.compacting(sent.model or "model", lambda count: _tokens(count, sent))
        if not self.streams:
            self._attempt = self._compacts.__enter__()

    def returned(self, answer: Any) -> None:
        """The client has answered, all at once."""
        attempt, sent, reduction = self._attempt, self._sent, REDUCTION.get()
        if attempt is None or sent is None or reduction is None or self._text_of is None:
            return
        with self._instrumentation.contained():
            text = self._text_of(answer)
            if text is not None:
                reduction.answered(attempt, text)
                attempt.outcome = no_summary(text, sent.messages)

    def end(self, error: BaseException | None = None) -> None:
        """The client's call is over."""
        self.over = True
        compacts, self._compacts = self._compacts, None
        if compacts is not None:
            with self._instrumentation.contained():
                if self.streams:
                    compacts.__enter__()
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


def _tokens(count: Callable[[str], int], sent: Sent) -> int:
    texts = (text for message in sent.messages for text in describe(message).texts)
    return sum(count(text) for text in (*(sent.prompts or ()), *texts))


def tell(instrumentation: Instrumentation, sent: Sent) -> ModelCall:
    """A client receives this: it is the end of the call that is prepared here, or of one that nothing prepared."""
    call = CALL.get() or sent.call or ModelCall(instrumentation, sent.asker)
    call.receives(sent)
    return call


def tell_alone(instrumentation: Instrumentation, sent: Sent) -> ModelCall:
    """A client receives this for a call of its own, whatever is prepared here."""
    call = ModelCall(instrumentation, sent.asker)
    call.receives(sent)
    return call


def summariser_call(reads: Callable[..., Sent | None], text_of: Callable[[Any], str | None] | None = None) -> Wrap:
    """The hook of a reducer's own function that has a model summarise: a part of its step, and otherwise no call.

    Args:
        reads: As for `client`.
        text_of: Likewise.
    """

    def read(*args: Any, **kwargs: Any) -> Sent | None:
        return None if reducing() is None else reads(*args, **kwargs)

    return client(read, text_of)


def client(
    reads: Callable[..., Sent | None],
    text_of: Callable[[Any], str | None] | None = None,
    carries: Callable[[Any, Any], bool] | None = None,
    told: Callable[[Instrumentation, Sent], ModelCall] | None = None,
    prepared: Callable[..., ModelCall | None] | None = None,
) -> Wrap:
    """The hook of a function that calls a model: a coroutine function, a generator, or neither.

    A client that another one calls, such as a cache, is told of once, with what the outer one was given, unless the
    outer one is left out.

    Args:
        reads: What the client is given, from its arguments; None where that is left out.
        text_of: The text of what it returns, for a summariser's; None of it where that is not known yet.
        carries: As for `within`.
        told: In the place of `tell`, where no context variable says which call is prepared: `tell_alone` where none is.
        prepared: The call that was prepared for it, from the `Instrumentation` and the client's arguments, where the
            client is not called inside of it; the call ends with the client's.
    """

    def call_of(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> ClientCall:
        return ClientCall(instrumentation, lambda: reads(*args, **kwargs), text_of, told)

    hook = within(call_of, carries)
    if prepared is None:
        return hook
    around = within(prepared, carries)
    return lambda original, instrumentation: around(hook(original, instrumentation), instrumentation)


def innermost(
    method: str,
    reads: Callable[..., Sent | None],
    text_of: Callable[[Any], str | None] | None = None,
    carries: Callable[[Any, Any], bool] | None = None,
    prepared: Callable[..., ModelCall | None] | None = None,
    asks: Collection[str] = (),
) -> Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]]:
    """What a `Following` makes of a method of clients: a class that hands on to the one behind it is looked through.

    So is one that has other clients answer, such as a fallback, where it is known by which of their methods that is.

    Args:
        method: Its name.
        reads: As for `client`.
        text_of: As for `client`.
        carries: As for `client`.
        prepared: As for `client`.
        asks: The methods by which a client is asked.
    """

    def wrap(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
        def sent(self: Any, /, *args: Any, **kwargs: Any) -> Sent | None:
            if asks_others:
                return None
            behind = getattr(super(owner, self), method, None) if hands_on else None
            if behind is not None and not getattr(behind, "__isabstractmethod__", False):
                return None
            return reads(self, *args, **kwargs)

        hands_on, asks_others = _hands_on(owner, method), not _names(original).isdisjoint(asks)
        return client(sent, text_of, carries, prepared=prepared)(original, instrumentation)

    return wrap


def _hands_on(owner: type, method: str) -> bool:
    """Whether the code of a class has what it is given answered by this method of the class behind it."""
    return any({"super", method} <= names for names in _names_by_code(*vars(owner).values()))


def _names(function: Any) -> set[str]:
    """What the code of a function names, and the code in it; nothing by ``super()``, which asks no other object."""
    return set[str]().union(*(names for names in _names_by_code(function) if "super" not in names))


def _names_by_code(*functions: Any) -> list[set[str]]:
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in functions]
    for code in codes:
        codes += [inside for inside in getattr(code, "co_consts", ()) if hasattr(inside, "co_names")]
    return [set(code.co_names) for code in codes if code is not None]
