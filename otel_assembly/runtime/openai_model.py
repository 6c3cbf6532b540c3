"""`OpenAIModel`: a model behind Chat Completions, OpenAI's own or that of any server that has the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import ModelResponse, ResponseChunk, Thinking, ToolCallEvent, Usage
from otel_assembly.messages.event_facts import THOUGHT_KEYS, ThoughtKey
from otel_assembly.runtime.model_client import begun
from otel_assembly.runtime.openai_messages import to_openai
from otel_assembly.runtime.provider_errors import broken_off, failing, options_of, sdk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

_CHOICES: Final = ("auto", "none", "required")


class OpenAIModel:
    """A `ModelClient` of Chat Completions, by the ``openai`` package (extra ``openai``).

    The SDK makes a call anew by itself, twice by default, where that may help. A halt does not reach into a call under
    way, nor between its attempts: where it has to, give ``max_retries=0`` and let a middleware call again, which asks
    the guard each time. The client belongs to the event loop in which it is first used.

    Args:
        model: The model's name, as the server knows it.
        base_url: The server; None: as the SDK's environment variables say, else OpenAI.
        api_key: The key; None: as the SDK's environment variables say.
        max_retries: How often the SDK makes a failed call anew.
        client: An ``openai.AsyncOpenAI`` of your own, instead of one of these three.
        streams: Whether answers come in pieces.
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
        self._options = options_of(options)

    async def __call__(
        self,
        prompts: Sequence[str],
        events: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | None = None,
    ) -> ModelResponse | AsyncIterator[ResponseChunk | ModelResponse]:
        """The model's answer; where it streams, an iterator of its pieces, with the whole answer last.

        Raises:
            ModelContextLengthError: The prompt is too long for the model.
            ModelCallError: The server did not answer, or not to the end.
            RenderError: An event that a chat completion has no form for.
        """
        request = {**self._options, "model": self.model, "messages": to_openai(prompts, events)}
        if tools:
            request["tools"] = [dict(tool) for tool in tools]
            if tool_choice is not None:
                request["tool_choice"] = _choice(tool_choice)
        if self._streams:
            return await begun(self._streamed(request))
        with failing(self.provider, self.model):
            answer = await self._client.chat.completions.create(**request)
            if not answer.choices:
                raise broken_off(self.provider, self.model)
            message = answer.choices[0].message
            calls = [_call(call) for call in message.tool_calls or ()]
            content = message.content or getattr(message, "refusal", None) or ""
            thinking = [Thinking(form=key, text=said) for key, said in [_thought(message)] if said]
            return ModelResponse(
                content=content,
                tool_calls=tuple(calls),
                usage=_usage(answer.usage),
                thinking=tuple(thinking),
                finish_reason=answer.choices[0].finish_reason,
            )

    async def _streamed(self, request: Mapping[str, Any]) -> AsyncGenerator[ResponseChunk | ModelResponse, None]:
        said: list[str] = []
        thought: dict[ThoughtKey, list[str]] = {}
        calls: dict[int, dict[str, str]] = {}
        usage = ended = None
        options = {"include_usage": True, **(request.get("stream_options") or {})}
        request = {**request, "stream": True, "stream_options": options}
        with failing(self.provider, self.model):
            async with await self._client.chat.completions.create(**request) as chunks:
                async for chunk in chunks:
                    usage = _usage(chunk.usage) or usage
                    for choice in chunk.choices[:1]:
                        ended = choice.finish_reason or ended
                        key, piece = _thought(choice.delta)
                        if piece:
                            thought.setdefault(key, []).append(piece)
                        text = choice.delta.content or getattr(choice.delta, "refusal", None)
                        if text:
                            said.append(text)
                            yield ResponseChunk(content=text)
                        for part in choice.delta.tool_calls or ():
                            _grow(calls, part)
            if ended is None:
                raise broken_off(self.provider, self.model)
        made = [_event(one["id"], one["name"], one["arguments"]) for one in calls.values()]
        thinking = [Thinking(form=key, text="".join(pieces)) for key, pieces in thought.items()]
        yield ModelResponse(
            content="".join(said),
            tool_calls=tuple(made),
            usage=usage,
            thinking=tuple(thinking),
            finish_reason=ended,
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
    """What the model thought, and under which name the server says it; some say it under both."""
    for key in THOUGHT_KEYS:
        text = getattr(message, key, None)
        if isinstance(text, str) and text:
            return key, text
    return THOUGHT_KEYS[0], ""


def _call(call: Any) -> ToolCallEvent:
    function = getattr(call, "function", None)
    if function is not None:
        return _event(call.id, function.name, function.arguments)
    return _event(call.id, call.custom.name, call.custom.input)


def _event(call_id: str | None, name: str | None, arguments: str | None) -> ToolCallEvent:
    """A call as the model wrote it, well or not; one to which the server gave no id gets one."""
    given = {"id": call_id} if call_id else {}
    return ToolCallEvent(**given, name=name or "", arguments=arguments or "{}")


def _grow(calls: dict[int, dict[str, str]], part: Any) -> None:
    """Put a piece of a call to what has come of it; a server that counts no pieces begins a new call with an id.

    Gemini's counts every call as the first one: there another id begins a new call where a name comes with it. An id
    alone does not, for old releases of vLLM give each piece one.
    """
    index = part.index
    if index is None:
        index = len(calls) if part.id or not calls else len(calls) - 1
    begun = calls.get(index)
    if begun is not None and begun["name"] and part.id not in (None, "", begun["id"]) and _named(part):
        whole = calls.pop(index)
        calls[-1 - len(calls)] = whole
    call = calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
    call["id"] = part.id or call["id"]
    if part.function is not None:
        call["name"] += part.function.name or ""
        call["arguments"] += part.function.arguments or ""


def _named(part: Any) -> bool:
    return part.function is not None and bool(part.function.name)


def _usage(usage: Any) -> Usage | None:
    """What was billed; the cached tokens are among those of the prompt."""
    if usage is None or not isinstance(usage.prompt_tokens, int):
        return None
    return Usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens or 0)
