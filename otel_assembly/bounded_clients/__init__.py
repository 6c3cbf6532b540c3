"""Copies of providers' clients whose requests are assembled by this library's policies before they are sent."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_assembly._internal.arguments import instance
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.bounded_clients import request_assembler as _requests
    from otel_assembly.policies.base import AssemblyPolicy

    Client = TypeVar("Client")
else:
    _requests = LazyModule("otel_assembly.bounded_clients.request_assembler")

__all__ = ["bounded"]

#: The module that copies a client, and the library's name in telemetry, by the base classes of clients.
_FAMILIES: Final = {
    **{
        f"{library}._base_client.{kind}APIClient": ("stainless", library)
        for library in ("openai", "anthropic", "groq")
        for kind in ("Sync", "Async")
    },
    "google.genai.client.Client": ("google_genai", "google_genai"),
    "google.genai.client.AsyncClient": ("google_genai", "google_genai"),
}


def bounded(
    client: Client,
    policies: Sequence[AssemblyPolicy] | Assembler,
    *,
    dependencies: Mapping[Any, Any] | None = None,
) -> Client:
    """Return a copy of a provider's client that applies policies to the messages of each request before it is sent.

    The copy has the type of the client, and so have the clients that its ``with_options`` or ``copy`` returns. The
    client itself does not change. Bounded are Chat Completions of OpenAI and Groq, Responses, Anthropic's Messages and
    Gemini's ``generate_content``, with their streams. All other requests are sent unchanged. Messages that the policies
    keep are sent as they are; only summaries and shortened results are new objects. No request is sent if an error is
    raised.

    A halt of a named conversation (see `otel_assembly.conversation`) also stops its later requests. Without a name, a
    halt stops only the request that caused it.

    Args:
        client: A client of ``openai``, ``anthropic``, ``groq`` or ``google-genai``, sync or async, or the module
            ``litellm``. For the module, the result is an object with its functions, of which ``completion``,
            ``acompletion``, ``responses`` and ``aresponses`` are bounded.
        policies: The chain of policies in order, or an `Assembler`.
        dependencies: Objects by their type, which policies look up, such as a `KnowledgeStore`; None for none.

    Raises:
        ConfigurationError: The client is of another kind, or there are no policies. A request raises this error if it
            refers to messages that the provider stores (``previous_response_id`` or ``conversation``): policies cannot
            drop these.
        ContextOverflowError: A request raises it if the content that must not be dropped exceeds a budget.
        HaltedError: A request raises it if the conversation is halted.
        PolicyFailedError: A request raises it if a policy raised.

    Example:
        >>> import openai
        >>> from otel_assembly import BudgetPolicy, bounded
        >>> client = bounded(openai.OpenAI(api_key="key"), [BudgetPolicy(window=128_000, output_reserve=8_000)])
        >>> isinstance(client, openai.OpenAI)
        True
    """
    instance("client", client)
    assembler = policies if isinstance(policies, Assembler) else Assembler(policies)
    if not assembler.policies:
        raise ConfigurationError("bounded: policies is empty, so nothing would be bounded; give [BudgetPolicy(...)]")
    module, library = _family_of(client)
    requests = _requests.RequestAssembler(library, assembler, dependencies or {})
    copied: Client = import_module(f"{__name__}.{module}").bounded_copy(client, requests)
    return copied


def _family_of(client: object) -> tuple[str, str]:
    if isinstance(client, ModuleType) and client.__name__ == "litellm":
        return "litellm", "litellm"
    names = [f"{base.__module__}.{base.__qualname__}" for base in type(client).__mro__]
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), None)
    if family is None:
        given = f"the module {client.__name__}" if isinstance(client, ModuleType) else f"a {names[0]}"
        raise ConfigurationError(
            f"bounded: client is {given}; give a client object of openai, anthropic, groq or google-genai, or the "
            "module litellm"
        )
    return family
