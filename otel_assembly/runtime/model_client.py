"""`ModelClient`: what calls a model, whoever its provider is."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from otel_assembly.events import ModelResponse, ResponseChunk

Piece = TypeVar("Piece")


@runtime_checkable
class ModelClient(Protocol):
    """Sends an assembly's prompts and events to a model.

    It is an async callable: ``await client(prompts, events, tools=…, tool_choice=…)``. What comes back is the whole
    answer, or, of a client that streams, an async iterator of its pieces (`ResponseChunk`) with the whole
    `ModelResponse` last. Tools are definitions in OpenAI's form, ``{"type": "function", "function": {"name": …,
    "description": …, "parameters": …}}``; ``tool_choice`` is ``auto``, ``none``, ``required``, or a tool's name.

    It raises `ModelCallError` where the provider does not answer, and `ModelContextLengthError` where it refuses the
    prompt as too long: before it gives an iterator, so that whoever calls it can assemble less, or call another.
    What cuts a stream in the middle is raised where it is read.

    Attributes:
        model: The model's name, as its provider knows it; `Context.model` is the same.
        provider: Optional: the provider's name, as in `Context.provider`, whose rules the assembled messages obey.
            Without this attribute, the model's name decides.
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


async def begun(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """The pieces of an answer, once the first has come: what the provider refuses is raised here, not to a reader."""
    first = await anext(pieces)

    async def all_of_them() -> AsyncGenerator[Piece, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_of_them()
