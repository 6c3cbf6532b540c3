"""LiteLLM with bounded functions: its API is a module, so that the copy is an object in the place of the module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.bounded_clients.request_assembler import bounded_function
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.provider_clients.apis import api_of_operation

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from otel_assembly.bounded_clients.request_assembler import RequestAssembler
    from otel_assembly.instrumentation.provider_clients.apis import ProviderAPI

#: The arguments that each function accepts by position, up to the last one that a request consists of.
_FUNCTIONS: Final = {
    "completion": ("model", "messages"),
    "acompletion": ("model", "messages"),
    "responses": ("input", "model"),
    "aresponses": ("input", "model"),
}


class _Arguments:
    """The arguments of one of LiteLLM's functions: those of a request body, by position or by name."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._names = _FUNCTIONS[function]

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ProviderAPI | None, Any, str]:
        named = {name: argument(args, kwargs, place, name) for place, name in enumerate(self._names)}
        return api_of_operation(self._function), {**kwargs, **named}, self._function

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any], body: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        by_position = [body[name] for name in self._names[: len(args)]]
        by_name = {name: value for name, value in body.items() if name not in self._names[: len(args)]}
        return (*by_position, *args[len(self._names) :]), by_name


class BoundedLiteLLM:
    """The names of LiteLLM's module, of which some functions are bounded."""

    def __init__(self, module: ModuleType, requests: RequestAssembler) -> None:
        functions = {
            name: bounded_function(getattr(module, name), _sender(module, name), _Arguments(name), requests)
            for name in _FUNCTIONS
            if hasattr(module, name)  # `responses` came with a later release
        }
        vars(self).update(functions, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"set {name!r} on the module litellm itself: this object only has its names")

    def __dir__(self) -> list[str]:
        return dir(self._module)


def _sender(module: ModuleType, name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(module, name)(*args, **kwargs)


def bounded_copy(module: ModuleType, requests: RequestAssembler) -> BoundedLiteLLM:
    """Return an object with the names of LiteLLM's module, whose functions that call models are bounded."""
    return BoundedLiteLLM(module, requests)


hide_frames(globals())
