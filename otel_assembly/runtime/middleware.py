"""Middleware: what stands around the steps of an agent, in the shape that AgentScope 2.x gave it.

Onions wrap a step: the first middleware of the list is the outermost, and what a step yields passes the innermost one
first. ``on_system_prompt`` is a transformer: each gets what the one before it made. ``list_tools`` is asked only by
those who want the tools.

A `MiddlewareBase` knows no framework: an agent of AgentScope takes it as it is, and so does our `Agent`.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, get_args

from otel_assembly._internal.arguments import instance, several
from otel_assembly.errors import AssemblyError, ConfigurationError, MiddlewareError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    #: What a layer calls to have the rest done; it may name what it changes, and leave out what it does not.
    NextHandler: TypeAlias = Callable[..., Any]

#: What a check of a tool call can come to.
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
_NO_RESULT: Final = "gave no result: call next_handler() and {}, or give a result of its own"


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """Whether a tool call may run.

    Attributes:
        behavior: ``allow``; ``deny``; ``ask``: it waits until a person has confirmed it; ``external``: somebody else
            runs it, and the result is given to the agent.
        message: Why, for the person or the model that reads it.
        updated_input: Other arguments to run it with, by name; None: those that the model gave.

    Raises:
        ConfigurationError: The behavior is none of these.
    """

    behavior: Behavior
    message: str = ""
    updated_input: Mapping[str, Any] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.behavior not in get_args(Behavior):
            known = ", ".join(get_args(Behavior))
            raise ConfigurationError(f"the behavior of a PermissionDecision is {self.behavior!r}; it is one of {known}")


class MiddlewareBase:
    """Subclass it and write the hooks that are needed; those that are not cost nothing.

    Every onion hook gets the agent, `input_kwargs` (what flows into the step, by name), and `next_handler`, which does
    the rest: ``next_handler()`` with what came in, ``next_handler(name=value)`` with a change. It may be called any
    number of times (a retry, a vote, a fallback), or never, where the hook has a result of its own.

    The names, the keys of `input_kwargs` and the order are those of AgentScope 2.x.
    """

    def is_implemented(self, hook_name: str) -> bool:
        """Whether the class has a hook of its own of this name; a function put on the instance is none."""
        base = getattr(MiddlewareBase, hook_name, None)
        own = getattr(type(self), hook_name, None)
        return own is not None and own is not base

    async def get_middleware_key(self) -> str:
        """The name under which state of this middleware is kept; by default its class's."""
        return type(self).__name__

    async def list_tools(self) -> Sequence[Any]:
        """The tools that it brings; nobody asks but whoever puts the agent's tools together."""
        return []

    def on_reply(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wraps a whole reply. `input_kwargs`: ``inputs``, ``structured_schema``. Yields events, last the answer."""
        raise self._missing("on_reply")

    def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wraps one round's reasoning. `input_kwargs`: ``tool_choice``. Yields events; one is the model's response."""
        raise self._missing("on_reasoning")

    def on_acting(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> AsyncGenerator[Any, None]:
        """Wraps the run of one tool. `input_kwargs`: ``tool_call``. Yields events; the last is the result."""
        raise self._missing("on_acting")

    async def on_check_permission(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler
    ) -> PermissionDecision:
        """Wraps the check of a call. `input_kwargs`: ``tool_call``, ``tool``, ``tool_input``. Gives the decision."""
        raise self._missing("on_check_permission")

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Wraps one call of the model. `input_kwargs`: ``current_model``, ``messages``, ``tools``, ``tool_choice``.

        Gives a response, or an iterator of its parts. It is over before such an iterator is read.
        """
        raise self._missing("on_model_call")

    async def on_compress_context(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> None:
        """Wraps the compression ahead of need. `input_kwargs`: ``context_config``, ``instructions``."""
        raise self._missing("on_compress_context")

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        """Gives the system prompt, made of what the middleware before this one made."""
        raise self._missing("on_system_prompt")

    def _missing(self, hook: str) -> RuntimeError:
        return RuntimeError(f"{type(self).__name__} does not implement {hook}")


def checked_middlewares(given: Any) -> tuple[Any, ...]:
    """Middlewares that our `Agent` can run.

    Raises:
        ConfigurationError: It is no sequence, or something in it is a class, is no middleware, or reads AgentScope's
            own messages.
    """
    middlewares = several("middlewares", given)
    for index, one in enumerate(middlewares):
        instance(f"middleware at index {index}", one)
        name = type(one).__name__
        if any(base.__name__ == "MiddlewareBase" and base.__module__.startswith("agentscope.") for base in _bases(one)):
            raise ConfigurationError(
                f"middleware {name} (index {index}) is AgentScope's: its hooks read AgentScope's messages, which this "
                "agent has none of; derive it from otel_assembly.MiddlewareBase and it runs in both"
            )
        if not callable(getattr(one, "is_implemented", None)):
            raise ConfigurationError(
                f"{name} (index {index}) is no middleware: it has no 'is_implemented'; derive it from "
                "otel_assembly.MiddlewareBase"
            )
        if not any(one.is_implemented(hook) for hook in HOOKS):
            _refuse_unknown_hooks(one, index)
    return middlewares


def _bases(one: object) -> tuple[type, ...]:
    return type(one).__mro__


def _refuse_unknown_hooks(one: object, index: int) -> None:
    """A middleware with no hook brings tools, or has misspelt the one it means."""
    unknown = [name for base in _bases(one) for name in vars(base) if name.startswith("on_") and name not in HOOKS]
    if unknown:
        raise ConfigurationError(
            f"middleware {type(one).__name__} (index {index}) has no hook, but {unknown[0]!r}; the hooks are "
            f"{', '.join(HOOKS)}"
        )


class Onion:
    """One hook's layers around a step.

    A layer that gives no result, or raises of its own accord, is named by a `MiddlewareError`. What the step itself
    raises comes through as it is.

    Args:
        middlewares: All of an agent's; those that have the hook are its layers, the first the outermost.
        hook: The hook's name.
        is_result: Which of the events that a step yields is its result; of a step that yields none, unused.
    """

    __slots__ = ("_hook", "_is_result", "_layers")

    def __init__(
        self, middlewares: Sequence[Any], hook: str, is_result: Callable[[Any], bool] = lambda event: event is not None
    ) -> None:
        self._layers = [one for one in middlewares if one.is_implemented(hook)]
        self._hook = hook
        self._is_result = is_result

    def __bool__(self) -> bool:
        return bool(self._layers)

    def events(
        self, agent: Any, step: Callable[..., AsyncGenerator[Any, None]], given: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """What a step yields that yields events, through all layers."""
        if not self._layers:
            return step(**given)
        return _Pass(self._layers, self._hook, agent, step, self._is_result).events(0, given)

    async def run(self, agent: Any, step: Callable[..., Awaitable[Any]], given: dict[str, Any]) -> Any:
        """What a step gives, through all layers."""
        if not self._layers:
            return await step(**given)
        return await _Pass(self._layers, self._hook, agent, step, self._is_result).run(0, given)


@dataclass(slots=True)
class _Pass:
    """One way through the layers of an onion; `raised` is what came out of what a layer wraps, and is not its fault."""

    layers: Sequence[Any]
    hook: str
    agent: Any
    step: Callable[..., Any]
    is_result: Callable[[Any], bool]
    raised: list[BaseException] = field(default_factory=list)

    async def run(self, index: int, given: dict[str, Any]) -> Any:
        """The result of the layers from an index on."""
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
            raise _fault(layer, self.hook, _NO_RESULT.format("return what it gives"))
        if hasattr(result, "__aiter__") and not isinstance(result, _Pieces):
            return _Pieces(self, layer, result)
        return result

    async def events(self, index: int, given: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """What the layers from an index on yield."""
        if index == len(self.layers):
            try:
                async with aclosing(self.step(**given)) as step:
                    async for event in step:
                        yield event
            except BaseException as error:
                self.raised.append(error)
                raise
            return
        layer, gave = self.layers[index], False
        handed: list[AsyncGenerator[Any, None]] = []

        def next_handler(**changed: Any) -> AsyncGenerator[Any, None]:
            handed.append(self.events(index + 1, {**given, **changed}))
            return handed[-1]

        try:
            async with aclosing(getattr(layer, self.hook)(self.agent, given, next_handler)) as inner:
                async for event in inner:
                    gave = gave or self.is_result(event)
                    yield event
        except Exception as error:
            if self._passed_through(error):
                raise
            raise _fault(layer, self.hook, _RAISED.format(type(error).__name__)) from error
        finally:
            # A layer that loops over them and is left itself leaves them open, with the step that they stand for.
            for events in handed:
                with suppress(RuntimeError):  # somebody else reads it still
                    await events.aclose()
        if not gave:
            raise _fault(layer, self.hook, _NO_RESULT.format("yield what it yields"))

    def _passed_through(self, error: BaseException) -> bool:
        """Whether an error came out of what a layer wraps, or is ours, which says itself what it is."""
        return isinstance(error, AssemblyError) or any(error is one for one in self.raised)

    def failing(self, layer: Any, error: BaseException) -> BaseException:
        """What to raise for an error in the midst of a layer's pieces; without a layer, of those of the step itself."""
        if layer is None:
            self.raised.append(error)
        if not isinstance(error, Exception) or self._passed_through(error):
            return error
        return _fault(layer, self.hook, _RAISED.format(type(error).__name__))


class _Pieces:
    """An answer that comes in pieces, once the hook around it is over: what raises in the middle says whose it is."""

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
        """Nobody reads on."""
        close = getattr(self._pieces, "aclose", None)
        if close is not None:
            await close()


async def system_prompt_of(one: Any, agent: Any, prompt: str) -> str:
    """The system prompt that a middleware makes of one.

    Raises:
        MiddlewareError: It raised of its own accord, or gave no text.
    """
    try:
        made = await one.on_system_prompt(agent, prompt)
    except AssemblyError:
        raise
    except Exception as error:
        raise _fault(one, "on_system_prompt", _RAISED.format(type(error).__name__)) from error
    if not isinstance(made, str):
        raise _fault(one, "on_system_prompt", f"gave a {type(made).__name__}, expected the prompt as a text")
    return made


def _fault(layer: Any, hook: str, problem: str) -> MiddlewareError:
    return MiddlewareError(type(layer).__name__, hook, problem)
