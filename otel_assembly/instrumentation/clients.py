"""Hooks of model clients: the functions that send a request to a model.

At that point the messages of a model call are final, so `client` records them and ends the call's assembly. If a
reducer calls the client, for example to summarize messages, the call is recorded as a part of the reducer's step.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import CALL, CLIENT_CALL
from otel_assembly.instrumentation.delegation_scan import scan_delegation
from otel_assembly.instrumentation.instrumented import call_if_accepted, context_value
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reducers import no_summary
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.messages.event_facts import describe
from otel_assembly.messages.provider_rules import rules_of_client
from otel_assembly.telemetry.model_span_links import CalledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import Reduction


class ClientCall(TrackedRun):
    """One call of a model client.

    The request is recorded before the client runs, as the output of a model call's assembly. If a reducer calls the
    client, a ``compact_block`` under the reducer's step is recorded instead.

    Args:
        read: Returns the client request; None if the call is not to be recorded.
        text_of: Returns the text of the client's answer, which may be a summary; None if the text is not known yet.
        record: Records the client request and returns its model call; `_record_prepared_call` by default.
        chunk_text: Returns the text of one chunk of a streamed answer, used if a reducer called the client for a
            summary; None if the chunk has no text.

    Attributes:
        over: True after the client has answered. Tasks that it has started may go on and make calls of their own.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        read: Callable[[], ClientRequest | None],
        text_of: Callable[[Any], str | None] | None = None,
        record: Callable[[Instrumentation, ClientRequest], ModelCall] | None = None,
        chunk_text: Callable[[Any], str | None] | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._read = read
        self._text_of = text_of
        self._chunk_text = chunk_text
        self._chunks: list[str] = []
        self._record = record or _record_prepared_call
        #: Returns the context manager in which the client runs; see `ModelCall.calling`.
        self._calling: Callable[[], AbstractContextManager[Any]] = nullcontext
        #: True after the answer is known to be a stream. A generator's is known before the call begins; then no
        #: context manager is kept open between its chunks.
        self._is_stream = False
        self.over = False
        self._began = False
        #: The span of the model's call is linked through it; None if the call is not recorded.
        self._called_model: CalledModel | None = None
        self._request: ClientRequest | None = None
        self._reduction: Reduction | None = None
        self._attempt: Attempt | None = None
        self._compaction: AbstractContextManager[Attempt | None] | None = None
        #: True if the compaction was entered when the client was called; that of a generator is entered at its end.
        self._compaction_entered = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """Run the client in this block, which must not contain a ``yield``; the first such block begins the call."""
        if not self._began:
            self._began = True
            with self._instrumentation.suppress_errors():
                self._begin()
        if self._called_model is None:  # the call is not recorded
            yield
            return
        with context_value(CLIENT_CALL, (self, CALL.get())), self._calling(), self._called_model.current():
            yield

    def _begin(self) -> None:
        """Record the client request, or begin the compaction if a reducer makes this call."""
        if in_client_call():
            return
        self._request = request = self._read()
        if request is None:
            return
        messages: object = request.messages
        if not isinstance(messages, Sequence):  # an iterator can be read only once, by the client
            call = CALL.get()
            if call is not None and reducing() is None and self._record is not record_standalone_call:
                call.fail(
                    TypeError(
                        f"the model client got its messages as {type(messages).__name__}, which is not a sequence, so "
                        "they were not recorded; pass a list"
                    )
                )
            return
        self._reduction = reduction = reducing()
        self._called_model = CalledModel(prepared=False)  # if the request cannot be recorded, no assembly is linked
        if reduction is None:  # the request ends the model call that is being prepared
            self._calling = self._record_request(request).calling
            self._called_model = CalledModel()
            return
        reduction.read = request.messages
        # The tokens are counted after the call, when the program may have added the answer to its list: copy the list.
        tokens = partial(count_tokens, messages=list(request.messages), prompts=request.prompts or ())
        self._instrumentation.watch_model_calls()
        self._compaction = reduction.compacting(
            request.model or "model", tokens, started_ns=time.time_ns(), model_spans=self._called_model.model_spans
        )
        if not self._is_stream:
            self._compaction_entered, self._attempt = True, self._compaction.__enter__()

    def _record_request(self, request: ClientRequest) -> ModelCall:
        return self._record(self._instrumentation, request)

    def on_stream(self) -> None:
        self._is_stream = True

    def on_result(self, answer: Any) -> None:
        """Record an answer that the client returned as a whole, if it may be a summary."""
        if self._attempt is None or self._text_of is None:
            return
        with self._instrumentation.suppress_errors():
            text = self._text_of(answer)
            if text is not None:
                self._record_summary(self._attempt, text)

    def on_chunk(self, chunk: Any) -> None:
        """Collect the text of one chunk of a streamed answer, if the answer may be a summary."""
        if self._compaction is None or self._chunk_text is None:
            return
        with self._instrumentation.suppress_errors():
            self._chunks.append(self._chunk_text(chunk) or "")

    def _record_summary(self, attempt: Attempt, text: str) -> None:
        if self._request is not None and self._reduction is not None:
            self._reduction.record_summary(attempt, text)
            attempt.outcome = no_summary(text, self._request.messages)

    def end(self, error: BaseException | None = None) -> None:
        """End the client's call, and the compaction if it is one."""
        self.over = True
        if self._called_model is not None:
            self._called_model.end(error)
        compaction, self._compaction = self._compaction, None
        if compaction is not None:
            with self._instrumentation.suppress_errors():
                self._end_compaction(compaction, error)

    def _end_compaction(self, compaction: AbstractContextManager[Attempt | None], error: BaseException | None) -> None:
        """End the compaction. That of a generator is entered only here, because its context must not stay attached."""
        attempt = self._attempt if self._compaction_entered else compaction.__enter__()
        if error is None and attempt is not None and self._chunks:
            self._record_summary(attempt, "".join(self._chunks))
        if error is None:
            compaction.__exit__(None, None, None)
        else:
            compaction.__exit__(type(error), error, error.__traceback__)


def in_client_call() -> bool:
    """Return True inside a client call that is recorded; a client that is called there is not a separate call."""
    current = CLIENT_CALL.get()
    return current is not None and not current[0].over and current[1] is CALL.get()


def model_in(*sources: Any) -> str | None:
    """Return the first model name among the attributes ``model`` of these objects, or the keys ``model`` of dicts."""
    names = (source.get("model") if isinstance(source, dict) else getattr(source, "model", None) for source in sources)
    return next((name for name in names if isinstance(name, str) and name), None)


def count_tokens(count: Callable[[str], int], messages: Sequence[Any], prompts: Sequence[str] = ()) -> int:
    texts = (text for message in messages for text in describe(message).texts)
    return sum(map(count, (*prompts, *texts)))


def _record_prepared_call(instrumentation: Instrumentation, request: ClientRequest) -> ModelCall:
    """Record a client request as the end of the model call prepared in this context; if there is none, of a new one."""
    call = CALL.get() or request.call or ModelCall(instrumentation, request.invoking_agent)
    call.client_called(request)
    return call


def record_standalone_call(instrumentation: Instrumentation, request: ClientRequest) -> ModelCall:
    """Record a client request as a separate model call, even if another call is prepared in this context."""
    call = ModelCall(instrumentation, request.invoking_agent)
    call.client_called(request)
    return call


def summariser_call(
    read_request: Callable[..., ClientRequest | None], text_of: Callable[[Any], str | None] | None = None
) -> Wrap:
    """Return a wrapper for a reducer's own function that calls a model to summarize messages.

    The call is recorded as a part of the reducer's step; outside of a reducer, it is not recorded. The arguments are
    those of `client`.
    """

    def read(*args: Any, **kwargs: Any) -> ClientRequest | None:
        return None if reducing() is None else read_request(*args, **kwargs)

    return client(read, text_of)


def client(
    read_request: Callable[..., ClientRequest | None],
    text_of: Callable[[Any], str | None] | None = None,
    attach_to_stream: Callable[[Any, Any], bool] | None = None,
    record: Callable[[Instrumentation, ClientRequest], ModelCall] | None = None,
    prepared: Callable[..., TrackedRun | None] | None = None,
    chunk_text: Callable[[Any], str | None] | None = None,
) -> Wrap:
    """Return a wrapper for a model client's function: a coroutine function, a generator function, or neither.

    The wrapper records the request before the function runs. This ends the model call that is being prepared. If a
    client such as a cache calls another client, only the outer client's request is recorded, unless `read_request`
    returns None for it.

    Args:
        read_request: Returns the client request from the function's arguments; None if the call is not to be recorded.
        text_of: Returns the text of the function's result if a reducer called the client for a summary; None if
            unknown.
        attach_to_stream: Attaches the call to an answer that is a stream of the framework's own type; see `run_hook`.
        record: Records the client request and returns its model call. By default, the request ends the call that is
            prepared in the current context, or a new one. `record_standalone_call` always records a new one.
        prepared: Returns the run around the function, from the `Instrumentation` and the function's arguments; None
            without one. A `ModelCall` is current while the function runs, so the request ends that call, even if
            another context prepared it. If the function only forwards its input to another client, the `ModelCall` has
            this input, and the other client's request ends it.
        chunk_text: Returns the text of one chunk of a streamed summary, like `text_of`.
    """

    def hook(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        begins_later = inspect.isasyncgenfunction(original) or inspect.isgeneratorfunction(original)

        def begin_call(_: Instrumentation, /, *args: Any, **kwargs: Any) -> ClientCall | None:
            # A client's answer to another client is not tracked. A generator runs later, so `_begin` checks it then.
            if not begins_later and in_client_call():
                return None

            def read() -> ClientRequest | None:
                request = call_if_accepted(original, read_request, args, kwargs)
                if request is None or request.client is not None or not args:
                    return request
                # The hooked function is a method of the client, whose class determines what it adds to messages.
                return request._replace(client=rules_of_client(args[0]))

            return ClientCall(instrumentation, read, text_of, record, chunk_text)

        return run_hook(begin_call, attach_to_stream)(original, instrumentation)

    if prepared is None:
        return hook
    outer_hook = run_hook(prepared, attach_to_stream)
    return lambda original, instrumentation: outer_hook(hook(original, instrumentation), instrumentation)


def innermost_client_hook(
    method: str,
    read_request: Callable[..., ClientRequest | None],
    text_of: Callable[[Any], str | None] | None = None,
    *,
    delegated_methods: Collection[str] = (),
    is_client: Callable[[Any], bool] | None = None,
    **client_options: Any,
) -> Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]]:
    """Return a wrapper for a `SubclassHook` of a client's method, which records only the innermost client's call.

    If ``FallbackModel.run`` calls ``self.models[0].run``, or ``super().run``, only that inner call is recorded: the
    outer method can still change the messages. When the hook wraps a class's method, it scans the method's bytecode for
    such calls (`scan_delegation`). `client` alone would record the outermost call.

    Args:
        method: The method's name, such as ``run``.
        read_request: Returns the client request from the method's arguments; None if the call is not to be recorded.
        text_of: Returns the text of the method's result, as for `client`.
        delegated_methods: The names of the methods by which other clients are called, such as ``run``; by default, only
            calls of ``super()`` are inner calls.
        is_client: Returns True for an object that is a client. If given, a client calls other clients only if it has
            such an object as an attribute.
        client_options: Further arguments for `client`.
    """

    def wrap(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
        calls_inherited, calls_clients = scan_delegation(owner, method, delegated_methods)

        def read_innermost(self: Any, /, *args: Any, **kwargs: Any) -> ClientRequest | None:
            if calls_inherited:
                inherited = getattr(super(owner, self), method, None)
                if inherited is not None and not getattr(inherited, "__isabstractmethod__", False):
                    return None  # the inherited method has this hook, too, and records the call
            if calls_clients and (is_client is None or _has_client(self, is_client)):
                return None  # the other client's method records the call
            return read_request(self, *args, **kwargs)

        return client(read_innermost, text_of, **client_options)(original, instrumentation)

    return wrap


def _has_client(delegating: Any, is_client: Callable[[Any], bool]) -> bool:
    """Return True if an attribute of a client is another client, or a list, tuple or dict that contains one."""
    for namespace in ("__dict__", "__pydantic_private__"):  # Pydantic keeps private attributes in a separate dict
        for value in list((getattr(delegating, namespace, None) or {}).values()):  # another thread may add attributes
            items = list(value.values()) if isinstance(value, dict) else value
            if any(map(is_client, items if isinstance(items, list | tuple) else (items,))):
                return True
    return False
