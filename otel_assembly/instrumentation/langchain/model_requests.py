"""What middleware does to an agent's request to its model: one by one, or together where the agent was made before."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.comparing import changed
from otel_assembly.instrumentation.langchain.graph_runs import GRAPH_RUN, Place
from otel_assembly.instrumentation.langchain.models import model_of
from otel_assembly.instrumentation.langchain.observation import EDIT
from otel_assembly.instrumentation.langchain.preparing import awaiting
from otel_assembly.instrumentation.langchain.reducers import edit_of, is_watched
from otel_assembly.instrumentation.langchain.schemas import schemas_of
from otel_assembly.instrumentation.runs import followed
from otel_assembly.instrumentation.wrapping import contained
from otel_assembly.telemetry.stamp import CalledModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.instrumentation.langchain.graph_runs import GraphRun
    from otel_assembly.instrumentation.langchain.observation import ReducerCall
    from otel_assembly.instrumentation.langchain.preparing import Preparation


class ModelNode:
    """A run of the node that calls the model, of an agent that was made before it was instrumented.

    Attributes:
        edit: What all its middleware together does to the messages.
        request: The last request that one of them made.
        prompts: The system prompts of the one that it was made of; None where none was made.
    """

    def __init__(self, edit: ReducerCall, messages: Any) -> None:
        self.edit = edit
        self.prompts: tuple[str, ...] | None = None
        self.request: Any = None
        #: The state's own list, which LangChain before 1.1 let middleware change in place.
        self._messages = messages

    def sent(self, given: Sequence[Any]) -> None:
        """The model is called with these messages: tell what was done to them, if this is the agent's call."""
        request, prompts = self.request, self.prompts
        messages = self._messages if request is None else request.messages
        if not isinstance(messages, list) or not messages or not given:
            return
        if given[-1] is messages[-1] and len(given) - len(messages) in {0, 1}:
            self.request = self.prompts = None
            tell_request(self.edit, messages, prompts, request)


MODEL_NODE: Final[ContextVar[ModelNode | None]] = ContextVar("otel_assembly_langchain_model_node", default=None)


def override(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``ModelRequest.override``: what an agent that was made before does to its messages."""

    @functools.wraps(original)
    def override(self: Any, **overrides: Any) -> Any:
        made = original(self, **overrides)
        if instrumentation.listening():
            node = MODEL_NODE.get()
            if node is not None:
                with instrumentation.contained():
                    if node.request is None:
                        node.prompts = prompts_of(self)
                    node.request = made
        return made

    return override


def model_invoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``BaseChatModel.invoke``: what was prepared for this call ends before it."""

    @functools.wraps(original)
    def invoke(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not instrumentation.listening():
            return original(self, input, *args, **kwargs)
        with _model_called(instrumentation, self, input, kwargs).current():
            return original(self, input, *args, **kwargs)

    return invoke


def model_stream(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``BaseChatModel.stream`` and ``astream``, whose call begins with their first step."""

    @functools.wraps(original)
    def stream(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not instrumentation.listening():
            return original(self, input, *args, **kwargs)
        return followed(_model_called(instrumentation, self, input, kwargs), original(self, input, *args, **kwargs))

    return stream


def model_ainvoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``BaseChatModel.ainvoke``."""

    @functools.wraps(original)
    async def ainvoke(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if not instrumentation.listening():
            return await original(self, input, *args, **kwargs)
        with _model_called(instrumentation, self, input, kwargs).current():
            return await original(self, input, *args, **kwargs)

    return ainvoke


class _CalledInRun(CalledModel):
    """A call of the model in a run whose span was opened while its node ran already: the call belongs to it too."""

    def __init__(self, run: GraphRun) -> None:
        super().__init__()
        self._run = run

    @contextmanager
    def current(self) -> Iterator[None]:
        """The model is called in this block."""
        with self._run.joined(), super().current():
            yield


def _model_called(instrumentation: Instrumentation, model: Any, given: Any, settings: Mapping[str, Any]) -> CalledModel:
    around = EDIT.get()
    if around is not None and not around.calls:
        return CalledModel(prepared=False)  # a reducer's own, as a summariser's
    node, run = MODEL_NODE.get(), GRAPH_RUN.get()
    if node is not None or (run is not None and run.preparing()):
        _prepared(instrumentation, node, model, given, settings)
    return CalledModel() if run is None or run.ended else _CalledInRun(run)


def _prepared(
    instrumentation: Instrumentation, node: ModelNode | None, model: Any, given: Any, settings: Mapping[str, Any]
) -> None:
    """What was prepared for this call ends before it, with what the model is sent."""
    with instrumentation.contained():
        messages = _as_messages(given)
        if node is not None:
            node.sent(messages)
        place = Place.here()
        preparation = awaiting(place, messages)
        if preparation is not None:
            with contained(preparation.fail):
                _sent(preparation, messages, model, settings)
            preparation.end(at=place)


def _as_messages(given: Any) -> list[Any]:
    """What a chat model is given, as messages; what is a message already is the same one."""
    if hasattr(given, "to_messages"):
        return list(given.to_messages())
    from langchain_core.messages import convert_to_messages  # where a model is called, it has been imported

    return convert_to_messages([given] if isinstance(given, str) else given)


def _sent(preparation: Preparation, messages: list[Any], model: Any, settings: Mapping[str, Any]) -> None:
    """The model is sent these: what was let out, behind the system prompts that are made for the call."""
    known, start = set(map(id, preparation.out)), 0
    while start < len(messages) and messages[start].type == "system" and id(messages[start]) not in known:
        start += 1
    prompts = tuple(str(message.text) for message in messages[:start])
    preparation.knows(prompts, schemas_of(settings.get("tools") or ()), model_of(model, settings))
    preparation.arrives(messages[start:])


def prompts_of(request: Any) -> tuple[str, ...]:
    """The system prompt of a request to the model."""
    prompt = None if request is None else request.system_prompt
    return (str(prompt),) if prompt else ()


def tell_request(edit: ReducerCall, messages: Sequence[Any], came: tuple[str, ...] | None, request: Any) -> None:
    """A request goes on with these messages: tell what became of those, and of the prompts, that it came with."""
    before, after = came or (), prompts_of(request)
    open_ = edit.preparation is not None and not edit.preparation.ended
    if edit.step is not None or changed(edit.before, messages) or after != (edit.prompts if open_ else before):
        edit.tell(list(messages), prompts=after)
    else:
        edit.declined()
    if came is not None and edit.preparation is not None:
        edit.preparation.knows(before, schemas_of(request.tools), model_of(request.model))


def chain(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around what ``create_agent`` makes one of all ``wrap_model_call`` of its middleware with."""

    @functools.wraps(original)
    def _chain_model_call_handlers(handlers: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.open:
            return original(handlers, *args, **kwargs)
        return original([_watched(handler, instrumentation) for handler in handlers], *args, **kwargs)

    return _chain_model_call_handlers


def achain(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around what it makes one of all ``awrap_model_call`` with."""

    @functools.wraps(original)
    def _chain_async_model_call_handlers(handlers: Any, *args: Any, **kwargs: Any) -> Any:
        if not instrumentation.open:
            return original(handlers, *args, **kwargs)
        return original([_awatched(handler, instrumentation) for handler in handlers], *args, **kwargs)

    return _chain_async_model_call_handlers


def _is_bound(handler: Any) -> bool:
    return hasattr(handler, "__self__")


def _request_edit(instrumentation: Instrumentation, handler: Any, request: Any) -> ReducerCall | None:
    edit = None
    with instrumentation.contained():
        MODEL_NODE.set(None)  # each of its middleware is watched: there is nothing left to tell of them together
        # A decorator inside of the method has hidden whose it is, unless one stops at the method.
        owner = getattr(inspect.unwrap(handler, stop=_is_bound), "__self__", None)
        if getattr(owner, "otel_assembly_plugin", False):
            _give_way(request)
        elif is_watched(owner):
            edit = edit_of(instrumentation, owner, list(request.messages))
            edit.asker = Place.here().node
            edit.came = prompts_of(request)  # LangChain 1.0 lets middleware change a request in place
    return edit


def _give_way(request: Any) -> None:
    """A plug-in of ours makes an assembly of its own, which is what the model is sent."""
    preparation = awaiting(Place.here(), request.messages)
    if preparation is not None:
        preparation.end()


def _watched(handler: Any, instrumentation: Instrumentation) -> Any:
    @functools.wraps(handler)
    def wrap_model_call(request: Any, call: Any) -> Any:
        if not instrumentation.listening():
            return handler(request, call)
        edit = _request_edit(instrumentation, handler, request)
        if edit is None:
            return handler(request, call)

        def goes_on(request: Any) -> Any:
            _tell_once(edit, request)
            with edit.set_aside():
                return call(request)

        with edit.running(), ending(edit):
            return handler(request, goes_on)

    return wrap_model_call


def _awatched(handler: Any, instrumentation: Instrumentation) -> Any:
    @functools.wraps(handler)
    async def awrap_model_call(request: Any, call: Any) -> Any:
        if not instrumentation.listening():
            return await handler(request, call)
        edit = _request_edit(instrumentation, handler, request)
        if edit is None:
            return await handler(request, call)

        async def goes_on(request: Any) -> Any:
            _tell_once(edit, request)
            with edit.set_aside():
                return await call(request)

        with edit.running(), ending(edit):
            return await handler(request, goes_on)

    return awrap_model_call


def _tell_once(edit: ReducerCall, request: Any) -> None:
    """What is sent is told once for each call of the model, however often a middleware asks for one."""
    edit.sent = True
    with edit.instrumentation.contained():
        tell_request(edit, list(request.messages), edit.came, request)


@contextmanager
def ending(edit: ReducerCall) -> Iterator[None]:
    """What is still open of an edit when its middleware has returned or raised comes to its end."""
    try:
        yield
    except BaseException as error:
        with edit.instrumentation.contained():
            edit.failed(error)
        raise
    with edit.instrumentation.contained():
        edit.end()
