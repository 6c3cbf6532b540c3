"""Bounded copies of the clients of ``google-genai``."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.bounded_clients.request_assembler import bounded_function
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.provider_clients.apis import api_of_path

if TYPE_CHECKING:
    from otel_assembly.bounded_clients.request_assembler import RequestAssembler
    from otel_assembly.instrumentation.provider_clients.apis import ProviderAPI

_FUNCTIONS: Final = ("request", "request_streamed", "async_request", "async_request_streamed")


class _RequestDict:
    """The method, the path and the body of a request, the first three arguments of a function that sends it."""

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ProviderAPI | None, Any, str]:
        names = ("http_method", "path", "request_dict")
        method, path, body = (argument(args, kwargs, place, name) for place, name in enumerate(names))
        return api_of_path("google_genai", method, path), body, path

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any], body: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > 2:  # the body is the third argument
            return (*args[:2], body, *args[3:]), kwargs
        return args, {**kwargs, "request_dict": body}


def bounded_copy(client: Any, requests: RequestAssembler) -> Any:
    """Return a copy of a client whose resources send through an API client that assembles requests.

    Both API clients have the same attributes, and so the same connections, also those that are opened later. The
    original closes them when it is collected, so the copy keeps it alive, and does not close them itself.
    """
    client = getattr(client, "_otel_assembly_original", client)  # other policies replace those of a bounded client
    original = client._api_client  # noqa: SLF001  # google-genai has no public name for it
    kind = type(original)

    def bounded_method(name: str) -> Any:
        def send(*args: Any, **kwargs: Any) -> Any:
            return getattr(kind, name)(api_client, *args, **kwargs)

        return staticmethod(bounded_function(getattr(original, name), send, _RequestDict(), requests))

    methods = {name: bounded_method(name) for name in _FUNCTIONS}
    api_client: Any = object.__new__(
        type(kind.__name__, (kind,), {**methods, "close": _keep_open, "__del__": _keep_open})
    )
    api_client.__dict__ = original.__dict__
    copied = _with_api_client(client, original, api_client)
    copied._otel_assembly_original = client  # noqa: SLF001  # keeps it alive
    return copied


def _keep_open(api_client: Any) -> None:
    """Replace `close`, which a client also calls when it is collected."""


def _with_api_client(resource: Any, original: Any, api_client: Any) -> Any:
    """Return a copy of a client or resource, and of the resources in it, with another API client."""
    copied = copy(resource)
    for name, value in vars(resource).items():
        if value is original:
            setattr(copied, name, api_client)
        elif getattr(value, "_api_client", None) is original:
            setattr(copied, name, _with_api_client(value, original, api_client))
    return copied


hide_frames(globals())
