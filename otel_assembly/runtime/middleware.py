"""Middlewares: hooks around the steps of an agent, with the interface of AgentScope 2.x.

Most hooks wrap a step, such as a model call. The first middleware in the list is the outermost, so the innermost
middleware receives a step's events first. ``on_system_prompt`` does not wrap a step: each middleware receives the
prompt that the previous middleware returned. `Agent` does not call ``list_tools``; pass the tools to the agent
yourself.

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
    """The decision whether a tool call may run.

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
            behaviors = ", ".join(get_args(Behavior))
            raise ConfigurationError(
                f"the behavior of a PermissionDecision is {self.behavior!r}; it is one of {behaviors}"
            )


class MiddlewareBase:
    """Base class of middlewares: override the hooks that you need. Other hooks have no cost.

    Every wrapping hook receives the agent, `input_kwargs` (the step's inputs by name) and `next_handler`, which runs
    the inner layers. ``next_handler()`` passes the inputs unchanged; ``next_handler(name=value)`` replaces one. A hook
    may call it several times (a retry, a vote, a fallback), or return another result without calling it.

    The hook names, the keys of `input_kwargs` and the order are those of AgentScope 2.x.
    """

    def is_implemented(self, hook_name: str) -> bool:
        """Return True if the middleware's class overrides this hook; functions set on the instance are ignored."""
        base_hook = getattr(MiddlewareBase, hook_name, None)
        class_hook = getattr(type(self), hook_name, None)
        return class_hook is not None and class_hook is not base_hook

    async def get_middleware_key(self) -> str:
        """Return the key under which AgentScope stores this middleware's state; by default the class name."""
        return type(self).__name__

    async def list_tools(self) -> Sequence[Any]:
        """Return the tools that this middleware adds in AgentScope. `Agent` does not call this method."""
        return []

    def on_reply(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wrap a whole call of `Agent.ask`; yield its events, the answer last.

        `input_kwargs` contains ``inputs`` and ``structured_schema``.
        """
        raise self._not_implemented("on_reply")

    def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wrap one model call and the streaming of its answer; yield events, one of them the model's response.

        `input_kwargs` contains ``tool_choice``. The events of a streamed answer pass this hook as they arrive.
        """
        raise self._not_implemented("on_reasoning")

    def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wrap the run of one tool call; yield events, the result last. `input_kwargs` contains ``tool_call``."""
        raise self._not_implemented("on_acting")

    async def on_check_permission(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> PermissionDecision:
        """Wrap the permission check of one tool call; return the decision.

        `input_kwargs` contains ``tool_call``, ``tool`` and ``tool_input``.
        """
        raise self._not_implemented("on_check_permission")

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Wrap one request to the model; return the response, or an iterator of its parts.

        `input_kwargs` contains ``current_model``, ``messages``, ``tools`` and ``tool_choice``. The iterator is read
        after this hook has returned.
        """
        raise self._not_implemented("on_model_call")

    async def on_compress_context(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> None:
        """Wrap `Agent.compress_context`, which compacts messages before the token budget is exceeded.

        `input_kwargs` contains ``context_config`` and ``instructions``.
        """
        raise self._not_implemented("on_compress_context")

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        """Return the system prompt to use.

        Args:
            agent: The agent.
            current_prompt: The agent's system prompt, or the prompt that the previous middleware returned.
        """
        raise self._not_implemented("on_system_prompt")

    def _not_implemented(self, hook: str) -> RuntimeError:
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
            _check_hook_names(middleware, index)
    return checked


def _check_hook_names(middleware: object, index: int) -> None:
    """Check that a middleware without hooks has no ``on_…`` method, which may be a misspelled hook.

    Raises:
        ConfigurationError: The middleware has such a method.
    """
    kind = type(middleware)
    unknown = [name for base in kind.__mro__ for name in vars(base) if name.startswith("on_") and name not in HOOKS]
    if unknown:
        raise ConfigurationError(
            f"middleware {kind.__name__} (index {index}) has no known hook, but {unknown[0]!r}; the hooks are "
            f"{', '.join(HOOKS)}"
        )


class HookLayers:
    """The middlewares that implement one hook; each of these layers wraps the next one, and the last wraps the step.

    If a layer returns no result or raises an error, a `MiddlewareError` names the layer. Errors of the step itself are
    raised unchanged.

    Args:
        middlewares: All middlewares of an agent, the outermost first. Those with the hook are the layers.
        hook: The hook's name.
        is_result: A function that returns True for the event that is the step's result; used only for steps that yield
            events.
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
        self, agent: Any, step: Callable[..., AsyncGenerator[Any, None]], inputs: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Return an asynchronous generator that runs a step, wrapped by all layers, and yields the events.

        Args:
            agent: The agent, which is passed to the hooks.
            step: A function whose asynchronous generator yields the step's events.
            inputs: The keyword arguments of `step`. A layer may change them for the layers inside it.
        """
        if not self._layers:
            return step(**inputs)
        return _LayerRun(self._layers, self._hook, agent, step, self._is_result).events(0, inputs)

    async def run(self, agent: Any, step: Callable[..., Awaitable[Any]], inputs: dict[str, Any]) -> Any:
        """Run a step, wrapped by all layers, and return its result."""
        if not self._layers:
            return await step(**inputs)
        return await _LayerRun(self._layers, self._hook, agent, step, self._is_result).run(0, inputs)


@dataclass(slots=True)
class _LayerRun:
    """One run of a step of the agent, wrapped by the layers (the middlewares with the step's hook).

    Attributes:
        layers: The layers, the outermost first.
        hook: The hook's name.
        agent: The agent, which is passed to the hooks.
        step: The step.
        is_result: Returns True for the event that is the step's result.
        step_errors: The errors that the step itself raised; they are not reported as errors of a layer.
    """

    layers: Sequence[Any]
    hook: str
    agent: Any
    step: Callable[..., Any]
    is_result: Callable[[Any], bool]
    step_errors: list[BaseException] = field(default_factory=list)

    async def run(self, index: int, inputs: dict[str, Any]) -> Any:
        """Run the layer at an index, which runs the inner layers and the step; return the result."""
        if index == len(self.layers):
            try:
                result = await self.step(**inputs)
            except BaseException as error:
                self.step_errors.append(error)
                raise
            return _StreamedAnswer(self, None, result) if hasattr(result, "__aiter__") else result
        layer = self.layers[index]

        def next_handler(**changed: Any) -> Awaitable[Any]:
            return self.run(index + 1, {**inputs, **changed})

        try:
            result = await getattr(layer, self.hook)(self.agent, inputs, next_handler)
        except Exception as error:
            if self._is_not_from_layer(error):
                raise
            raise _middleware_error(layer, self.hook, _RAISED.format(type(error).__name__)) from error
        if result is None and self.hook != "on_compress_context":
            raise _middleware_error(layer, self.hook, _NO_RESULT.format("return its result"))
        if hasattr(result, "__aiter__") and not isinstance(result, _StreamedAnswer):
            return _StreamedAnswer(self, layer, result)
        return result

    async def events(self, index: int, inputs: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Run the layer at an index, which runs the layers inside it and the step; yield the events that it yields."""
        if index == len(self.layers):
            try:
                async with aclosing(self.step(**inputs)) as events:
                    async for event in events:
                        yield event
            except BaseException as error:
                self.step_errors.append(error)
                raise
            return
        layer, has_result = self.layers[index], False
        inner_generators: list[AsyncGenerator[Any, None]] = []

        def next_handler(**changed: Any) -> AsyncGenerator[Any, None]:
            inner_generators.append(self.events(index + 1, {**inputs, **changed}))
            return inner_generators[-1]

        try:
            async with aclosing(getattr(layer, self.hook)(self.agent, inputs, next_handler)) as inner:
                async for event in inner:
                    has_result = has_result or self.is_result(event)
                    yield event
        except Exception as error:
            if self._is_not_from_layer(error):
                raise
            raise _middleware_error(layer, self.hook, _RAISED.format(type(error).__name__)) from error
        finally:
            # If reading stops inside a layer's loop, its inner generators, and so the step, would stay open.
            for generator in inner_generators:
                with suppress(RuntimeError):  # another task is still reading the generator
                    await generator.aclose()
        if not has_result:
            raise _middleware_error(layer, self.hook, _NO_RESULT.format("yield its events"))

    def _is_not_from_layer(self, error: BaseException) -> bool:
        """Return True if the step raised the error, or if it is an `AssemblyError`; such errors are not wrapped."""
        return isinstance(error, AssemblyError) or any(error is step_error for step_error in self.step_errors)

    def error_to_raise(self, layer: Any, error: BaseException) -> BaseException:
        """Return the error to raise if reading a streamed answer fails.

        Args:
            layer: The layer that returned the stream; None if the step returned it.
            error: The error that the stream raised.
        """
        if layer is None:
            self.step_errors.append(error)
        if not isinstance(error, Exception) or self._is_not_from_layer(error):
            return error
        return _middleware_error(layer, self.hook, _RAISED.format(type(error).__name__))


class _StreamedAnswer:
    """The stream that a layer (a middleware) or the step returned as its result.

    The stream is read after the layer's hook has returned, so the layer's run no longer catches its errors. An error
    that the stream of a layer raises is therefore raised here as a `MiddlewareError` that names the layer. Errors of
    the step itself, and each `AssemblyError`, are raised unchanged.

    Args:
        layer_run: The run of the step and its layers.
        layer: The layer that returned the stream; None if the step returned it.
        parts: The stream.
    """

    __slots__ = ("_layer", "_layer_run", "_parts")

    def __init__(self, layer_run: _LayerRun, layer: Any, parts: Any) -> None:
        self._layer_run = layer_run
        self._layer = layer
        self._parts = aiter(parts)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            raised = self._layer_run.error_to_raise(self._layer, error)
            if raised is error:
                raise
            raise raised from error

    async def aclose(self) -> None:
        """Close the stream."""
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()


async def system_prompt_of(middleware: Any, agent: Any, prompt: str) -> str:
    """Call a middleware's ``on_system_prompt`` hook and return the system prompt that the hook returned.

    Raises:
        MiddlewareError: The middleware raised an error, or returned no text.
    """
    try:
        new_prompt = await middleware.on_system_prompt(agent, prompt)
    except AssemblyError:
        raise
    except Exception as error:
        raise _middleware_error(middleware, "on_system_prompt", _RAISED.format(type(error).__name__)) from error
    if not isinstance(new_prompt, str):
        raise _middleware_error(
            middleware, "on_system_prompt", f"gave a {type(new_prompt).__name__}, expected the prompt as a text"
        )
    return new_prompt


def _middleware_error(layer: Any, hook: str, problem: str) -> MiddlewareError:
    return MiddlewareError(type(layer).__name__, hook, problem)
