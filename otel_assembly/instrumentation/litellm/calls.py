"""The wrappers of LiteLLM's functions that call models."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.provider_clients.apis import api_of_operation
from otel_assembly.instrumentation.provider_clients.hooks import client_hook, provider_call

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.provider_clients.calls import ProviderCall


def _call(
    function: str, positional: tuple[str, ...], instrumentation: Instrumentation, /, *args: Any, **kwargs: Any
) -> ProviderCall | None:
    """Return the call of a function of LiteLLM, whose arguments are those of OpenAI's API."""
    data = {**kwargs, **{name: argument(args, kwargs, place, name) for place, name in enumerate(positional)}}
    return provider_call(instrumentation, api_of_operation(function), data, function, None)


def _attach_to_stream(call: ProviderCall, answer: Any) -> bool:
    """Follow a stream of LiteLLM's: it becomes an object of a subclass, because programs iterate over it directly."""
    if not hasattr(answer, "__next__") and not hasattr(answer, "__anext__"):
        return False
    answer.__class__ = _followed(type(answer))  # type: ignore[arg-type]  # a class is hashable
    answer._otel_assembly_call = call  # noqa: SLF001  # an attribute of the subclass
    return True


@cache
def _followed(stream_type: type) -> type[Any]:
    """Return a subclass of a stream's class that passes each chunk, and the end, to the call."""

    class Followed(stream_type):  # type: ignore[misc]  # known only while the program runs
        _otel_assembly_call: ProviderCall

        def __next__(self) -> Any:
            try:
                chunk = super().__next__()
            except StopIteration:
                self._otel_assembly_call.end()
                raise
            except BaseException as error:
                self._otel_assembly_call.end(error)
                raise
            self._otel_assembly_call.on_chunk(chunk)
            return chunk

        async def __anext__(self) -> Any:
            try:
                chunk = await super().__anext__()
            except StopAsyncIteration:
                self._otel_assembly_call.end()
                raise
            except BaseException as error:
                self._otel_assembly_call.end(error)
                raise
            self._otel_assembly_call.on_chunk(chunk)
            return chunk

        def __del__(self) -> None:  # a stream that is dropped unfinished
            self._otel_assembly_call.end()
            finalize = getattr(super(), "__del__", None)  # not all of LiteLLM's streams have this method
            if finalize is not None:
                finalize()

    Followed.__name__, Followed.__qualname__, Followed.__module__ = (
        stream_type.__name__,
        stream_type.__qualname__,
        stream_type.__module__,
    )
    return Followed


completion: Final = client_hook(partial(_call, "completion", ("model", "messages")), _attach_to_stream)
text_completion: Final = client_hook(partial(_call, "text_completion", ("prompt", "model")), _attach_to_stream)
responses: Final = client_hook(partial(_call, "responses", ("input", "model")), _attach_to_stream)


hide_frames(globals())
