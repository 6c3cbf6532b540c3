"""`ModelClient`: the interface through which an agent calls a model of any provider."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from otel_assembly.events import ModelResponse, ResponseChunk

Piece = TypeVar("Piece")


@runtime_checkable
class ModelClient(Protocol):
    """The interface of model clients: a client sends an assembly (the prompts and events of one call) to a model.

    A client is an async callable: ``await client(prompts, events, tools=…, tool_choice=…)``. The result is a
    `ModelResponse`. A streaming client returns an async iterator of `ResponseChunk`s that ends with the complete
    `ModelResponse`. Tools are definitions in OpenAI's form, ``{"type": "function", "function": {"name": …,
    "description": …, "parameters": …}}``; ``tool_choice`` is ``auto``, ``none``, ``required``, or a tool's name.

    A client raises `ModelCallError` if the call fails, and `ModelContextLengthError` if the provider refuses the prompt
    as too long. Both errors must be raised before an iterator is returned, so that the caller can retry with a shorter
    prompt or another model. An error in the middle of a stream is raised by the iterator.

    Attributes:
        model: The model's name, as the provider knows it; also the value of `Context.model`.
        provider: Optional: the provider's name, as in `Context.provider`, which selects the provider's rules for
            messages. Without this attribute, the provider is inferred from the model's name.
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
        """Call the model; return the whole answer, or an iterator of its pieces."""
        ...


async def start_stream(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """Wait for the first piece of a streamed answer; return an iterator of all pieces.

    A refused call then raises its error here, where the caller can retry, and not when the iterator is read.
    """
    first = await anext(pieces)

    async def all_pieces() -> AsyncGenerator[Piece, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_pieces()
