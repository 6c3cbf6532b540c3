"""What middleware does to an agent's request to its model: one by one, or together where the agent was made before."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.reducers import edit_of, is_watched
from otel_assembly.instrumentation.langchain.schemas import schemas_of
from otel_assembly.instrumentation.langchain.telling import changed, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.instrumentation.langchain.telling import Edit


class ModelNode:
    """A run of the node that calls the model, of an agent that was made before it was instrumented.

    Attributes:
        edit: What all its middleware together does to the messages.
        request: The last request that one of them made.
    """

    def __init__(self, edit: Edit, messages: Any) -> None:
        self.edit = edit
        self.request: Any = None
        #: The state's own list, which LangChain before 1.1 let middleware change in place.
        self._messages = messages

    def sent(self, given: Any) -> None:
        """The model is called with these messages: tell what was done to them, if this is the agent's call."""
        request, edit = self.request, self.edit
        messages = self._messages if request is None else request.messages
        if not isinstance(given, list) or not isinstance(messages, list) or not messages or not given:
            return
        if given[-1] is messages[-1] and len(given) - len(messages) in {0, 1}:
            self.request = None
            tell_request(edit, messages, edit.prompts if request is None else prompts_of(request), request)


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
                        node.edit.prompts = prompts_of(self)
                    node.request = made
        return made

    return override


def model_invoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``BaseChatModel.invoke``, by which the agent calls its model."""

    @functools.wraps(original)
    def invoke(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if instrumentation.listening():
            _model_called(instrumentation, input)
        return original(self, input, *args, **kwargs)

    return invoke


def model_ainvoke(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around ``BaseChatModel.ainvoke``."""

    @functools.wraps(original)
    async def ainvoke(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        if instrumentation.listening():
            _model_called(instrumentation, input)
        return await original(self, input, *args, **kwargs)

    return ainvoke


def _model_called(instrumentation: Instrumentation, given: Any) -> None:
    node = MODEL_NODE.get()
    if node is not None:
        with instrumentation.contained():
            node.sent(given)


def prompts_of(request: Any) -> tuple[str, ...]:
    """The system prompt of a request to the model."""
    prompt = request.system_prompt
    return (str(prompt),) if prompt else ()


def model_of(model: Any) -> str | None:
    """The name of a chat model, where it says one."""
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else None


def tell_request(edit: Edit, messages: Sequence[Any], prompts: tuple[str, ...], request: Any) -> None:
    """A request goes on with these messages: tell what became of those that it came with, unless that was told."""
    told = any(same(messages, trimmed) for trimmed in edit.trimmed)
    differs = not told and changed(edit.messages, messages)
    if edit.assembly is None and not differs and prompts == edit.prompts:
        edit.declined()
        return
    if request is not None:
        edit.model, edit.tools = model_of(request.model), schemas_of(request.tools)
    edit.tell(list(messages), prompts=prompts)


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


def _request_edit(instrumentation: Instrumentation, handler: Any, request: Any) -> Edit | None:
    edit = None
    with instrumentation.contained():
        MODEL_NODE.set(None)  # each of its middleware is watched: there is nothing left to tell of them together
        owner = getattr(inspect.unwrap(handler), "__self__", None)
        if is_watched(owner):
            edit = edit_of(instrumentation, owner, list(request.messages), prompts=prompts_of(request))
    return edit


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


def _tell_once(edit: Edit, request: Any) -> None:
    """A middleware may try its model again and again: the same messages are told once."""
    with edit.instrumentation.contained():
        prompts = prompts_of(request)
        if edit.sent is None or edit.sent[1] != prompts or changed(edit.sent[0], request.messages):
            edit.sent = list(request.messages), prompts
            tell_request(edit, edit.sent[0], prompts, request)


@contextmanager
def ending(edit: Edit) -> Iterator[None]:
    """What is still open of an edit when its middleware has returned or raised comes to its end."""
    try:
        yield
    except BaseException as error:
        with edit.instrumentation.contained():
            edit.failed(error)
        raise
    with edit.instrumentation.contained():
        edit.end()
