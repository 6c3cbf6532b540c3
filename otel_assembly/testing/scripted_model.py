"""`ScriptedModel`: a model client with scripted answers that records its requests."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import ConfigurationError
from otel_assembly.events import ModelResponse, ResponseChunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A request that the model received.

    Attributes:
        prompts: The system prompts.
        events: The events (messages).
        tools: The tool definitions, in OpenAI's form.
        tool_choice: ``auto``, ``none``, ``required`` or a tool's name; None if the caller passed no choice.
    """

    prompts: tuple[str, ...]
    events: tuple[Any, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | None = None


class ScriptedModel:
    """A model that gives scripted answers, one per call.

    An answer is a text, a `ModelResponse`, an exception, which is raised, or a function of ``(prompts, events)``, async
    or not, that returns one of these. A list of texts is streamed in these pieces; an exception in it ends the stream.

    Args:
        answers: One answer per call, in order.
        model: The name of the model.
        streams: Whether a text is streamed word by word; a list is always streamed in its pieces.

    Attributes:
        received: The requests: a `ReceivedCall` for each call.
    """

    def __init__(self, *answers: Any, model: str = "scripted", streams: bool = False) -> None:
        self.model = model
        self.received: list[ReceivedCall] = []
        self._answers = answers
        self._streams = streams

    async def __call__(
        self,
        prompts: Sequence[str],
        events: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | None = None,
    ) -> ModelResponse | AsyncIterator[ResponseChunk | ModelResponse]:
        """Record the request and return the next answer of the script.

        Raises:
            ConfigurationError: The script has no more answers, or the answer has an invalid type.
        """
        number = len(self.received)
        self.received.append(ReceivedCall(tuple(prompts), tuple(events), tuple(tools), tool_choice))
        if number >= len(self._answers):
            raise ConfigurationError(
                f"ScriptedModel was called {number + 1} times and has {len(self._answers)} answers; "
                "give it an answer for each call"
            )
        answer = self._answers[number]
        if callable(answer) and not _is_exception(answer):
            answer = answer(prompts, events)
            if inspect.isawaitable(answer):
                answer = await answer
        if _is_exception(answer):
            raise answer
        if isinstance(answer, list | tuple):
            if invalid := [piece for piece in answer if not (isinstance(piece, str) or _is_exception(piece))]:
                raise ConfigurationError(
                    f"answer {number} of ScriptedModel has a piece of type {type(invalid[0]).__qualname__}; "
                    "give texts, and an exception where the stream is to end"
                )
            return _in_pieces(answer, None)
        if isinstance(answer, str):
            answer = ModelResponse(content=answer)
        if not isinstance(answer, ModelResponse):
            raise ConfigurationError(
                f"answer {number} of ScriptedModel is of type {type(answer).__qualname__}; "
                "give a text, a ModelResponse, an exception, a function that returns one of them, or a list of texts"
            )
        return _in_pieces(_words(answer.content), answer) if self._streams else answer


def _is_exception(answer: Any) -> bool:
    return isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException))


def _words(text: str) -> list[str]:
    return re.findall(r"\S*\s+|\S+", text)


async def _in_pieces(
    pieces: Sequence[Any], whole: ModelResponse | None
) -> AsyncIterator[ResponseChunk | ModelResponse]:
    sent_pieces: list[str] = []
    for piece in pieces:
        if _is_exception(piece):
            raise piece
        if piece:
            sent_pieces.append(piece)
            yield ResponseChunk(content=piece)
    yield whole if whole is not None else ModelResponse(content="".join(sent_pieces))
