"""`ModelClient`: what calls a model, whoever its provider is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from otel_assembly.events import ModelResponse, ResponseChunk


@runtime_checkable
class ModelClient(Protocol):
    """Sends an assembly's prompts and events to a model.

    It is an async callable: ``await client(prompts, events, tools=…, tool_choice=…)``. What comes back is the whole
    answer, or, of a client that streams, an async iterator of its pieces (`ResponseChunk`) with the whole
    `ModelResponse` last. Tools are definitions in OpenAI's form, ``{"type": "function", "function": {"name": …,
    "description": …, "parameters": …}}``; ``tool_choice`` is ``auto``, ``none``, ``required``, or a tool's name.

    It raises `ModelCallError` where the provider does not answer, and `ModelContextLengthError` where it refuses the
    prompt as too long; of an iterator, while it is read.

    Attributes:
        model: The model's name, as its provider knows it; `Context.model` is the same.
    """

    @property
    def model(self) -> str:
        """The model's name, as its provider knows it."""
        ...

    async def __call__(
        self,
        prompts: Sequence[str],
        events: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | None = None,
    ) -> ModelResponse | AsyncIterator[ResponseChunk | ModelResponse]:
        """The model's answer, whole or piece by piece."""
        ...
