"""`OpenAIModel`: a model client for OpenAI's Chat Completions and compatible servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import ModelResponse, ResponseChunk, Thinking, ToolCallEvent, Usage
from otel_assembly.messages.event_facts import THOUGHT_KEYS, ThoughtKey
from otel_assembly.runtime.model_client import start_stream
from otel_assembly.runtime.openai_messages import to_openai
from otel_assembly.runtime.provider_errors import checked_options, converted_errors, incomplete_answer, sdk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

_CHOICES: Final = ("auto", "none", "required")


class OpenAIModel:
    """A `ModelClient` for Chat Completions; needs the ``openai`` package (extra ``openai``).

    The SDK retries failed calls, twice by default. A halt of the conversation does not stop a running call or its
    retries. To stop retries after a halt, set ``max_retries=0`` and retry in a middleware. The client belongs to the
    event loop in which it is first used.

    Args:
        model: The model's name, as the server knows it.
        base_url: The server's URL; None: the URL in the SDK's environment variables, else OpenAI's.
        api_key: The API key; None: the key in the SDK's environment variables.
        max_retries: The number of times that the SDK repeats a failed call.
        client: An existing ``openai.AsyncOpenAI``, which replaces `base_url`, `api_key` and `max_retries`; None: a new
            client.
        streams: True to stream answers; False to wait for the whole answer.
        provider: The provider's name, in errors and telemetry.
        options: Further arguments of ``chat.completions.create``, such as ``temperature``.

    Raises:
        ConfigurationError: The ``openai`` package is not installed, or ``stream`` is among the options.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
        client: Any = None,
        streams: bool = False,
        provider: str = "openai",
        **options: Any,
    ) -> None:
        self.model = model
        self.provider = provider
        self._client = client or sdk("openai", "openai").AsyncOpenAI(
            base_url=base_url, api_key=api_key, max_retries=max_retries
        )
        self._streams = streams
        self._options = checked_options(options)

    async def __call__(
        self,
        prompts: Sequence[str],
        events: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | None = None,
    ) -> ModelResponse | AsyncIterator[ResponseChunk | ModelResponse]:
        """Call the model; return its answer, or an iterator of chunks that ends with the answer.

        Raises:
            ModelContextLengthError: The prompt is too long for the model.
            ModelCallError: The call failed, or the answer is incomplete.
            RenderError: An event has no equivalent in Chat Completions.
        """
        request = {**self._options, "model": self.model, "messages": to_openai(prompts, events)}
        if tools:
            request["tools"] = [dict(tool) for tool in tools]
            if tool_choice is not None:
                request["tool_choice"] = _choice(tool_choice)
        if self._streams:
            return await start_stream(self._streamed(request))
        with converted_errors(self.provider, self.model):
            answer = await self._client.chat.completions.create(**request)
            if not answer.choices:
                raise incomplete_answer(self.provider, self.model)
            message = answer.choices[0].message
            calls = [_call(call) for call in message.tool_calls or ()]
            content = message.content or getattr(message, "refusal", None) or ""
            thinking = [Thinking(form=key, text=text) for key, text in [_thought(message)] if text]
            return ModelResponse(
                content=content,
                tool_calls=tuple(calls),
                usage=_usage(answer.usage),
                thinking=tuple(thinking),
                finish_reason=answer.choices[0].finish_reason,
            )

    async def _streamed(self, request: Mapping[str, Any]) -> AsyncGenerator[ResponseChunk | ModelResponse, None]:
        texts: list[str] = []
        thoughts: dict[ThoughtKey, list[str]] = {}
        calls: dict[int, dict[str, str]] = {}
        usage = finish_reason = None
        options = {"include_usage": True, **(request.get("stream_options") or {})}
        request = {**request, "stream": True, "stream_options": options}
        with converted_errors(self.provider, self.model):
            async with await self._client.chat.completions.create(**request) as chunks:
                async for chunk in chunks:
                    usage = _usage(chunk.usage) or usage
                    for choice in chunk.choices[:1]:
                        finish_reason = choice.finish_reason or finish_reason
                        key, piece = _thought(choice.delta)
                        if piece:
                            thoughts.setdefault(key, []).append(piece)
                        text = choice.delta.content or getattr(choice.delta, "refusal", None)
                        if text:
                            texts.append(text)
                            yield ResponseChunk(content=text)
                        for part in choice.delta.tool_calls or ():
                            _add_piece(calls, part)
            if finish_reason is None:
                raise incomplete_answer(self.provider, self.model)
        tool_calls = [_call_event(call["id"], call["name"], call["arguments"]) for call in calls.values()]
        thinking = [Thinking(form=key, text="".join(pieces)) for key, pieces in thoughts.items()]
        yield ModelResponse(
            content="".join(texts),
            tool_calls=tuple(tool_calls),
            usage=usage,
            thinking=tuple(thinking),
            finish_reason=finish_reason,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def __repr__(self) -> str:
        return f"OpenAIModel({self.model!r})"


def _choice(tool_choice: str) -> Any:
    if tool_choice in _CHOICES:
        return tool_choice
    return {"type": "function", "function": {"name": tool_choice}}


def _thought(message: Any) -> tuple[ThoughtKey, str]:
    """Return the model's thinking (its reasoning text) in a message, and the message's key that contains it.

    Servers use different keys, such as ``reasoning_content``. If a message has several of them, the first one is used.
    If it has none, the text is empty.
    """
    for key in THOUGHT_KEYS:
        text = getattr(message, key, None)
        if isinstance(text, str) and text:
            return key, text
    return THOUGHT_KEYS[0], ""


def _call(call: Any) -> ToolCallEvent:
    function = getattr(call, "function", None)
    if function is not None:
        return _call_event(call.id, function.name, function.arguments)
    return _call_event(call.id, call.custom.name, call.custom.input)


def _call_event(call_id: str | None, name: str | None, arguments: str | None) -> ToolCallEvent:
    """Create a tool call event. The arguments are the model's text, which may be invalid JSON.

    If the server sent no id, the event generates one.
    """
    known_id = {"id": call_id} if call_id else {}
    return ToolCallEvent(**known_id, name=name or "", arguments=arguments or "{}")


def _add_piece(calls: dict[int, dict[str, str]], part: Any) -> None:
    """Append a streamed piece of a tool call to the call that it belongs to.

    If a server sends no index, a piece with an id begins a new call. Gemini sends the same index for every call, so a
    new id together with a name begins a new call. A new id alone does not, because old releases of vLLM send a new id
    with each piece.
    """
    index = part.index
    if index is None:
        index = len(calls) if part.id or not calls else len(calls) - 1
    open_call = calls.get(index)
    if open_call is not None and open_call["name"] and part.id not in (None, "", open_call["id"]) and _has_name(part):
        whole = calls.pop(index)
        calls[-1 - len(calls)] = whole
    call = calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
    call["id"] = part.id or call["id"]
    if part.function is not None:
        call["name"] += part.function.name or ""
        call["arguments"] += part.function.arguments or ""


def _has_name(part: Any) -> bool:
    return part.function is not None and bool(part.function.name)


def _usage(usage: Any) -> Usage | None:
    """Convert the usage of a response; its prompt tokens include cached tokens. None if there is no usage."""
    if usage is None or not isinstance(usage.prompt_tokens, int):
        return None
    return Usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens or 0)
