"""Middlewares: hooks around the steps of an agent, with the interface of AgentScope 2.x.

Most hooks wrap a step. The first middleware in the list is the outermost, so events of a step pass the innermost one
first. ``on_system_prompt`` does not wrap: each middleware receives the prompt that the previous one returned. `Agent`
does not call ``list_tools``; pass the tools to the agent yourself.

A `MiddlewareBase` works in agents of AgentScope and in `Agent`.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, get_args

from otel_assembly._internal.arguments import instance, several
from otel_assembly.errors import AssemblyError, ConfigurationError, MiddlewareError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    #: Runs the inner layers and the step. Keyword arguments replace values of `input_kwargs`; the others are kept.
    NextHandler: TypeAlias = Callable[..., Any]

#: The outcomes of a permission check.
Behavior: TypeAlias = Literal["allow", "deny", "ask", "external"]

HOOKS: Final = (
    "on_reply",
    "on_reasoning",
    "on_check_permission",
    "on_acting",
    "on_model_call",
    "on_compress_context",
    "on_system_prompt",
)
_RAISED: Final = "raised {}; its own error is the cause of this one"
_NO_RESULT: Final = "gave no result: call next_handler() and {}, or give another result"


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """Whether a tool call may run.

    Attributes:
        behavior: ``allow``; ``deny``; ``ask``: the call is pending until a person confirms it; ``external``: the call
            runs outside the agent, and its result is passed to the agent.
        message: The reason, shown to the person or the model.
        updated_input: Arguments that replace those of the model, by name; None: keep the model's arguments.

    Raises:
        ConfigurationError: The behavior is unknown.
    """

    behavior: Behavior
    message: str = ""
    updated_input: Mapping[str, Any] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.behavior not in get_args(Behavior):
            known = ", ".join(get_args(Behavior))
            raise ConfigurationError(f"the behavior of a PermissionDecision is {self.behavior!r}; it is one of {known}")


class MiddlewareBase:
    """Base class of middlewares: override the hooks that you need. Other hooks have no cost.

    Every wrapping hook receives the agent, `input_kwargs` (the step's inputs by name) and `next_handler`, which runs
    the inner layers. ``next_handler()`` passes the inputs unchanged; ``next_handler(name=value)`` replaces one. A hook
    may call it several times (a retry, a vote, a fallback), or return another result without calling it.

    The hook names, the keys of `input_kwargs` and the order are those of AgentScope 2.x.
    """

    def is_implemented(self, hook_name: str) -> bool:
        """Whether the class overrides this hook; a function that is set on the instance does not count."""
        base = getattr(MiddlewareBase, hook_name, None)
        own = getattr(type(self), hook_name, None)
        return own is not None and own is not base

    async def get_middleware_key(self) -> str:
        """Return the key of this middleware's state; by default the name of its class."""
        return type(self).__name__

    async def list_tools(self) -> Sequence[Any]:
        """Return the tools that this middleware adds. `Agent` does not call this method."""
        return []

    def on_reply(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wrap a whole reply. `input_kwargs`: ``inputs``, ``structured_schema``. Yields events, the answer last."""
        raise self._missing("on_reply")

    def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wrap one round's reasoning. `input_kwargs`: ``tool_choice``. Yields events; one is the model's response."""
        raise self._missing("on_reasoning")

    def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wrap the run of one tool. `input_kwargs`: ``tool_call``. Yields events, the result last."""
        raise self._missing("on_acting")

    async def on_check_permission(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> PermissionDecision:
        """Wrap a permission check. `input_kwargs`: ``tool_call``, ``tool``, ``tool_input``. Returns the decision."""
        raise self._missing("on_check_permission")

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Wrap one model call. `input_kwargs`: ``current_model``, ``messages``, ``tools``, ``tool_choice``.

        Returns a response, or an iterator of its parts. The hook ends before the iterator is read.
        """
        raise self._missing("on_model_call")

    async def on_compress_context(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> None:
        """Wrap the early compression of the context. `input_kwargs`: ``context_config``, ``instructions``."""
        raise self._missing("on_compress_context")

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        """Return the system prompt, given the prompt that the previous middleware returned."""
        raise self._missing("on_system_prompt")

    def _missing(self, hook: str) -> RuntimeError:
        return RuntimeError(f"{type(self).__name__} does not implement {hook}")


def checked_middlewares(middlewares: Any) -> tuple[Any, ...]:
    """Check middlewares and return them as a tuple.

    Raises:
        ConfigurationError: The value is not a sequence, or an entry is a class, not a middleware, or derived from
            AgentScope's own base class.
    """
    checked = several("middlewares", middlewares)
    for index, middleware in enumerate(checked):
        instance(f"middleware at index {index}", middleware)
        name = type(middleware).__name__
        bases = type(middleware).__mro__
        if any(base.__name__ == "MiddlewareBase" and base.__module__.startswith("agentscope.") for base in bases):
            raise ConfigurationError(
                f"middleware {name} (index {index}) is derived from AgentScope's base class, so its hooks expect "
                "AgentScope's messages; derive it from otel_assembly.MiddlewareBase, which works in both"
            )
        if not callable(getattr(middleware, "is_implemented", None)):
            raise ConfigurationError(
                f"{name} (index {index}) is not a middleware: it has no 'is_implemented'; derive it from "
                "otel_assembly.MiddlewareBase"
            )
        if not any(middleware.is_implemented(hook) for hook in HOOKS):
            _refuse_unknown_hooks(middleware, index)
    return checked


def _refuse_unknown_hooks(middleware: object, index: int) -> None:
    """Raise if a middleware without hooks has a method that looks like a misspelled hook."""
    kind = type(middleware)
    unknown = [name for base in kind.__mro__ for name in vars(base) if name.startswith("on_") and name not in HOOKS]
    if unknown:
        raise ConfigurationError(
            f"middleware {kind.__name__} (index {index}) has no known hook, but {unknown[0]!r}; the hooks are "
            f"{', '.join(HOOKS)}"
        )


class Onion:
    """The middlewares that implement one hook, as layers around a step.

    If a layer returns no result or raises an error, a `MiddlewareError` names the layer. Errors of the step itself are
    raised unchanged.

    Args:
        middlewares: All middlewares of an agent, the outermost first. Those with the hook are the layers.
        hook: The hook's name.
        is_result: Whether an event is the step's result; used only for steps that yield events.
    """

    __slots__ = ("_hook", "_is_result", "_layers")

    def __init__(
        self, middlewares: Sequence[Any], hook: str, is_result: Callable[[Any], bool] = lambda event: event is not None
    ) -> None:
        self._layers = [middleware for middleware in middlewares if middleware.is_implemented(hook)]
        self._hook = hook
        self._is_result = is_result

    def __bool__(self) -> bool:
        return bool(self._layers)

    def events(
        self, agent: Any, step: Callable[..., AsyncGenerator[Any, None]], given: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Run a step that yields events inside all layers, and yield its events."""
        if not self._layers:
            return step(**given)
        return _Pass(self._layers, self._hook, agent, step, self._is_result).events(0, given)

    async def run(self, agent: Any, step: Callable[..., Awaitable[Any]], given: dict[str, Any]) -> Any:
        """Run a step inside all layers and return its result."""
        if not self._layers:
            return await step(**given)
        return await _Pass(self._layers, self._hook, agent, step, self._is_result).run(0, given)


@dataclass(slots=True)
class _Pass:
    """One run through the layers; `raised` collects the errors of the step, which are no fault of a layer."""

    layers: Sequence[Any]
    hook: str
    agent: Any
    step: Callable[..., Any]
    is_result: Callable[[Any], bool]
    raised: list[BaseException] = field(default_factory=list)

    async def run(self, index: int, given: dict[str, Any]) -> Any:
        """Run the layers from an index inward and return their result."""
        if index == len(self.layers):
            try:
                result = await self.step(**given)
            except BaseException as error:
                self.raised.append(error)
                raise
            return _Pieces(self, None, result) if hasattr(result, "__aiter__") else result
        layer = self.layers[index]

        def next_handler(**changed: Any) -> Awaitable[Any]:
            return self.run(index + 1, {**given, **changed})

        try:
            result = await getattr(layer, self.hook)(self.agent, given, next_handler)
        except Exception as error:
            if self._passed_through(error):
                raise
            raise _fault(layer, self.hook, _RAISED.format(type(error).__name__)) from error
        if result is None and self.hook != "on_compress_context":
            raise _fault(layer, self.hook, _NO_RESULT.format("return its result"))
        if hasattr(result, "__aiter__") and not isinstance(result, _Pieces):
            return _Pieces(self, layer, result)
        return result

    async def events(self, index: int, given: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Run the layers from an index inward and yield their events."""
        if index == len(self.layers):
            try:
                async with aclosing(self.step(**given)) as step:
                    async for event in step:
                        yield event
            except BaseException as error:
                self.raised.append(error)
                raise
            return
        layer, has_result = self.layers[index], False
        inner_generators: list[AsyncGenerator[Any, None]] = []

        def next_handler(**changed: Any) -> AsyncGenerator[Any, None]:
            inner_generators.append(self.events(index + 1, {**given, **changed}))
            return inner_generators[-1]

        try:
            async with aclosing(getattr(layer, self.hook)(self.agent, given, next_handler)) as inner:
                async for event in inner:
                    has_result = has_result or self.is_result(event)
                    yield event
        except Exception as error:
            if self._passed_through(error):
                raise
            raise _fault(layer, self.hook, _RAISED.format(type(error).__name__)) from error
        finally:
            # If reading stops inside a layer's loop, its inner generators, and so the step, would stay open.
            for events in inner_generators:
                with suppress(RuntimeError):  # another task is still reading it
                    await events.aclose()
        if not has_result:
            raise _fault(layer, self.hook, _NO_RESULT.format("yield its events"))

    def _passed_through(self, error: BaseException) -> bool:
        """Whether an error came from the step, or is an `AssemblyError`; such errors are raised unchanged."""
        return isinstance(error, AssemblyError) or any(error is raised for raised in self.raised)

    def failing(self, layer: Any, error: BaseException) -> BaseException:
        """Return the error to raise if a streamed answer fails; `layer` is None if the step streams it."""
        if layer is None:
            self.raised.append(error)
        if not isinstance(error, Exception) or self._passed_through(error):
            return error
        return _fault(layer, self.hook, _RAISED.format(type(error).__name__))


class _Pieces:
    """A streamed answer that is read after its hook has ended; errors while reading name the layer."""

    __slots__ = ("_layer", "_pass", "_pieces")

    def __init__(self, passing: _Pass, layer: Any, pieces: Any) -> None:
        self._pass = passing
        self._layer = layer
        self._pieces = aiter(pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            raised = self._pass.failing(self._layer, error)
            if raised is error:
                raise
            raise raised from error

    async def aclose(self) -> None:
        """Close the stream."""
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()


async def system_prompt_of(middleware: Any, agent: Any, prompt: str) -> str:
    """Return the system prompt as changed by a middleware.

    Raises:
        MiddlewareError: The middleware raised an error, or returned no text.
    """
    try:
        made = await middleware.on_system_prompt(agent, prompt)
    except AssemblyError:
        raise
    except Exception as error:
        raise _fault(middleware, "on_system_prompt", _RAISED.format(type(error).__name__)) from error
    if not isinstance(made, str):
        raise _fault(middleware, "on_system_prompt", f"gave a {type(made).__name__}, expected the prompt as a text")
    return made


def _fault(layer: Any, hook: str, problem: str) -> MiddlewareError:
    return MiddlewareError(type(layer).__name__, hook, problem)
