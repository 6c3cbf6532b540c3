"""The model calls of DSPy 3.4 and later, which has clients of its own: the "native engine".

Earlier releases, and other engines, call LiteLLM, whose calls its own instrumentor records.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.provider_clients.apis import ProviderAPI
from otel_assembly.instrumentation.provider_clients.hooks import client_hook, provider_call
from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer, ProviderRequest, read_chat

if TYPE_CHECKING:
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.provider_clients.calls import ProviderCall


def _read_request(request: Any, _: str) -> ProviderRequest | None:
    """Read a request as a body of OpenAI's Chat Completions API, for which DSPy has a function."""
    body = import_module("dspy.clients.lm15_boundary").request_kwargs(request, "chat")
    return read_chat({**body, "model": request.model})


def _answer(text: str | None, answer_id: str | None = None) -> ProviderAnswer | None:
    return ProviderAnswer([{"role": "assistant", "content": text}], answer_id) if text else None


class _TextCollector:
    """Collects the text of a streamed answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, chunk: Any) -> None:
        delta: Any = getattr(chunk, "delta", None)
        if delta is not None and delta.type == "text":
            self._texts.append(delta.text)

    def answer(self) -> ProviderAnswer | None:
        return _answer("".join(self._texts))


_API: Final = ProviderAPI(
    "chat_completions", _read_request, lambda answer: _answer(answer.text, answer.id), _TextCollector
)


def _call(instrumentation: Instrumentation, engine: Any, request: Any, /) -> ProviderCall | None:
    return provider_call(instrumentation, _API, request, "", engine)


request: Final = client_hook(_call)


hide_frames(globals())
