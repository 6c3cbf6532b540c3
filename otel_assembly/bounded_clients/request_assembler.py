"""Assembles the requests of a bounded client: what the copies of all libraries' clients share."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from otel_assembly._internal.arguments import objects
from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.bounded_clients.request_bodies import MESSAGES_KEYS, assembled_body
from otel_assembly.bounded_clients.unnamed_conversations import UnnamedConversations
from otel_assembly.context import Context
from otel_assembly.errors import ConfigurationError, HaltedError
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.provider_clients.conversations import current_conversation
from otel_assembly.instrumentation.provider_clients.own_prompts import IS_BOUNDED, OWN_PROMPTS
from otel_assembly.messages.provider_rules import Provider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.bounded_clients.unnamed_conversations import UnnamedConversation
    from otel_assembly.instrumentation.provider_clients.apis import ProviderAPI
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The provider whose rules each API has. Chat Completions is the API of many providers, which the model's name tells.
_PROVIDERS: Final = {
    "responses": Provider.RESPONSES,
    "messages": Provider.ANTHROPIC,
    "generate_content": Provider.GEMINI,
}
#: The fields of a request that refer to messages which the provider stores.
_STORED: Final = ("previous_response_id", "conversation", "thread")


class _PreparedRequest(NamedTuple):
    """A request, its context, and its conversation if that has no name."""

    request: ProviderRequest
    context: Context
    unnamed: UnnamedConversation | None


class RequestAssembler:
    """Assembles the requests of one bounded client, and of those that are derived from it.

    Args:
        library: The client's library, for telemetry and errors.
        assembler: Runs the policies.
        dependencies: Objects by type, for the policies.
    """

    def __init__(self, library: str, assembler: Assembler, dependencies: Mapping[Any, Any]) -> None:
        self.library = library
        self._assembler = assembler
        self._dependencies = objects(dependencies)
        self._unnamed = UnnamedConversations()

    async def assemble(self, api: ProviderAPI, body: Any, path: str) -> Any:
        """Return the body to send: the same object if the policies changed nothing.

        Raises:
            ConfigurationError: The messages cannot be read, or the provider stores some of them.
            AssemblyError: As `Assembler.assemble` raises it.
        """
        prepared = self._prepare(api, body, path)
        request = prepared.request
        assembly = await self._assembler.assemble(request.prompts, request.messages, prepared.context)
        return self._body_to_send(api, body, prepared, assembly)

    def assemble_sync(self, api: ProviderAPI, body: Any, path: str) -> Any:
        """Do what `assemble` does, for a synchronous client."""
        prepared = self._prepare(api, body, path)
        request = prepared.request
        assembly = self._assembler.assemble_sync(request.prompts, request.messages, prepared.context)
        return self._body_to_send(api, body, prepared, assembly)

    def _read(self, api: ProviderAPI, body: Any, path: str) -> ProviderRequest:
        where = f"bounded {self.library} client, request to {path.partition('?')[0]}"
        request = api.read_request(body, path)
        if request is None:
            raise ConfigurationError(f"{where}: {MESSAGES_KEYS[api.name]!r} cannot be read; pass a list of messages")
        if request.previous_response_id is not None or request.conversation_id is not None:
            field = next((name for name in _STORED if body.get(name)), _STORED[0])
            raise ConfigurationError(
                f"{where}: {field!r} refers to messages that the provider stores, which policies cannot drop; send the "
                f"messages themselves as {MESSAGES_KEYS[api.name]!r}, or use the client that is not bounded"
            )
        return request

    def _prepare(self, api: ProviderAPI, body: Any, path: str) -> _PreparedRequest:
        request, named = self._read(api, body, path), current_conversation()
        unnamed = self._unnamed.take(request, named.agent) if named.id is None else None
        context = Context(conversation_id=named.id) if unnamed is None else unnamed.context
        context.agent_name, context.framework, context.model = named.agent, self.library, request.model
        context.tools, context.dependencies = tuple(request.tools), self._dependencies
        context.provider, context.client = _PROVIDERS.get(api.name), api.client_rules
        return _PreparedRequest(request, context, unnamed)

    def _body_to_send(self, api: ProviderAPI, body: Any, prepared: _PreparedRequest, assembly: Assembly) -> Any:
        OWN_PROMPTS.discard(assembly)  # the request that sends it is marked by IS_BOUNDED
        if assembly.halt is not None:
            error = HaltedError(assembly.halt.reason, assembly.halt.source)
            error.assembly = assembly
            raise error
        if prepared.unnamed is not None:  # not after an error: a halt ends with its request
            self._unnamed.put(prepared.unnamed)
        return assembled_body(api, body, prepared.request, assembly)


class RequestFunction(Protocol):
    """How a library's function receives a request among its arguments."""

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ProviderAPI | None, Any, str]:
        """Return the API, the body and the path of a request; None as the API if it calls no model."""

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any], body: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with another body."""


def bounded_function(
    original: Callable[..., Any], send: Callable[..., Any], form: RequestFunction, requests: RequestAssembler
) -> Callable[..., Any]:
    """Return a function that assembles each request before it is sent.

    Args:
        original: The library's function, whose name and kind (sync or async) the result has.
        send: Calls the library's function, as it is wrapped at the time of the call.
        form: Reads and writes the request in the function's arguments.
        requests: Assembles the requests.
    """

    @wraps(original)
    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        api, body, path = form.read(args, kwargs)
        if api is None or api.name not in MESSAGES_KEYS:
            return await send(*args, **kwargs)
        assembled = await requests.assemble(api, body, path)
        if assembled is not body:
            args, kwargs = form.write(args, kwargs, assembled)
        with context_value(IS_BOUNDED, True):
            return await send(*args, **kwargs)

    @wraps(original)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        api, body, path = form.read(args, kwargs)
        if api is None or api.name not in MESSAGES_KEYS:
            return send(*args, **kwargs)
        assembled = requests.assemble_sync(api, body, path)
        if assembled is not body:
            args, kwargs = form.write(args, kwargs, assembled)
        with context_value(IS_BOUNDED, True):
            return send(*args, **kwargs)

    return asynchronous if inspect.iscoroutinefunction(inspect.unwrap(original)) else synchronous


hide_frames(globals())
