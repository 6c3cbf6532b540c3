"""`AnthropicModel`: a model client for Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import ModelResponse, ResponseChunk, Thinking, ToolCallEvent, Usage
from otel_assembly.ledger.figures import Breakpoints
from otel_assembly.runtime.anthropic_messages import to_anthropic
from otel_assembly.runtime.model_client import start_stream
from otel_assembly.runtime.provider_errors import checked_options, converted_errors, incomplete_answer, sdk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

_PROVIDER: Final = "anthropic"
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "none": "none", "required": "any"}
#: The tool choices that Anthropic accepts while thinking is enabled; others force a tool call.
_CHOICES_WITH_THINKING: Final = ("auto", "none")
#: The name of the attribute with the text of a content block or of a streamed delta, by its type.
_TEXTS: Final[Mapping[str, str]] = {"text": "text", "thinking": "thinking"}
_DELTAS: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
#: The usage fields for tokens written to the cache or read from it, which `input_tokens` does not include.
_CACHE_FIELDS: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")


class AnthropicModel:
    """A `ModelClient` for Anthropic's Messages API; needs the ``anthropic`` package (extra ``anthropic``).

    The SDK retries failed calls, twice by default. A halt of the conversation does not stop a running call or its
    retries. To stop retries after a halt, set ``max_retries=0`` and retry in a middleware. The client belongs to the
    event loop in which it is first used.

    With thinking (``thinking={"type": "enabled", …}``), the thinking blocks of responses with tool calls are sent back
    to the model. Anthropic rejects a request with thinking that forces a tool call. So if a call of the client has the
    `tool_choice` ``required`` or a tool's name, ``auto`` is sent instead, and the model may answer without a tool call.

    Args:
        model: The model's name.
        max_tokens: The most tokens that the model may generate for one answer, including its thinking.
        base_url: The server's URL; None: the URL in the SDK's environment variables, else Anthropic's.
        api_key: The API key; None: the key in the SDK's environment variables.
        max_retries: The number of times that the SDK repeats a failed call.
        client: An existing ``anthropic.AsyncAnthropic``, which replaces `base_url`, `api_key` and `max_retries`; None:
            a new client.
        streams: True to stream answers; False to wait for the whole answer.
        caches: True to set Anthropic's cache control marks after the system prompts and after the last message, so that
            the next request can read this one's content from the prompt cache. False: no marks are set.
        options: Further arguments of ``messages.create``, such as ``stop_sequences``.

    Raises:
        ConfigurationError: The ``anthropic`` package is not installed, or ``stream`` is among the options.
    """

    provider = _PROVIDER

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int = 4_096,
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
        client: Any = None,
        streams: bool = False,
        caches: bool = False,
        **options: Any,
    ) -> None:
        self.model = model
        self._client = client or sdk("anthropic", "anthropic").AsyncAnthropic(
            base_url=base_url, api_key=api_key, max_retries=max_retries
        )
        self._streams = streams
        self._caches = caches
        self._options = {"max_tokens": max_tokens, **checked_options(options)}
        thinking = options.get("thinking")
        self._is_thinking = isinstance(thinking, Mapping) and thinking.get("type", "disabled") != "disabled"

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
            RenderError: An event has no equivalent in Anthropic's API.
        """
        breakpoints = Breakpoints(len(prompts) - 1 if prompts else None, (len(events) - 1,) if events else ())
        rendered = to_anthropic(prompts, events, breakpoints=breakpoints if self._caches else None)
        request = {**self._options, "model": self.model, "messages": rendered["messages"]}
        if rendered["system"]:
            request["system"] = rendered["system"]
        if tools:
            request["tools"] = [_tool(tool) for tool in tools]
            if tool_choice is not None:
                request["tool_choice"] = _choice(tool_choice, is_thinking=self._is_thinking)
        if self._streams:
            return await start_stream(self._streamed(request))
        with converted_errors(_PROVIDER, self.model):
            answer = await self._client.messages.create(**request)
            blocks = [_Block(block) for block in answer.content]
            return _response(blocks, _usage(answer.usage), answer.stop_reason)

    async def _streamed(self, request: Mapping[str, Any]) -> AsyncGenerator[ResponseChunk | ModelResponse, None]:
        blocks: dict[int, _Block] = {}
        usage: Usage | None = None
        stop_reason: str | None = None
        is_whole = False
        with converted_errors(_PROVIDER, self.model):
            async with await self._client.messages.create(**request, stream=True) as pieces:
                async for piece in pieces:
                    match piece.type:
                        case "message_start":
                            usage = _usage(piece.message.usage)
                        case "message_delta":
                            usage = _usage(piece.usage, usage)
                            stop_reason = piece.delta.stop_reason or stop_reason
                        case "message_stop":
                            is_whole = True
                        case "content_block_start":
                            blocks[piece.index] = _Block(piece.content_block)
                        case "content_block_delta":
                            blocks[piece.index].grow(piece.delta)
                            if piece.delta.type == "text_delta" and piece.delta.text:
                                yield ResponseChunk(content=piece.delta.text)
            if not is_whole:
                raise incomplete_answer(_PROVIDER, self.model)
        yield _response(list(blocks.values()), usage, stop_reason)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def __repr__(self) -> str:
        return f"AnthropicModel({self.model!r})"


class _Block:
    """A content block of the model's answer; a streamed block grows with each delta."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.type: str = block.type
        #: The pieces of the block's text, thinking or arguments that were received so far.
        self._pieces: list[str] = [getattr(block, _TEXTS[block.type], None) or ""] if block.type in _TEXTS else []
        self._signature: str = getattr(block, "signature", None) or ""

    def grow(self, delta: Any) -> None:
        """Append a streamed delta to the block; unknown types of deltas are ignored."""
        if delta.type in _DELTAS:
            self._pieces.append(getattr(delta, _DELTAS[delta.type]))
        elif delta.type == "signature_delta":
            self._signature += delta.signature

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(self._pieces)

    def call(self) -> ToolCallEvent:
        """Return the block as a tool call, whose arguments are the model's text, which may be invalid JSON."""
        arguments = self.text or _json_text(self._block.input)
        return ToolCallEvent(id=self._block.id, name=self._block.name, arguments=arguments)

    def thought(self, behind: int) -> Thinking:
        """Return the block as a `Thinking` part.

        Args:
            behind: The block's position: the number of other parts of the response that precede it. The text of the
                response is one part, and so is each tool call.
        """
        if self.type == "redacted_thinking":
            return Thinking(form="redacted_thinking", sealed=self._block.data, behind=behind)
        return Thinking(form="thinking", text=self.text, signature=self._signature, behind=behind)


def _response(blocks: Sequence[_Block], usage: Usage | None, stop_reason: str | None) -> ModelResponse:
    texts: list[str] = []
    calls: list[ToolCallEvent] = []
    thinking: list[Thinking] = []
    for block in blocks:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "tool_use":
            calls.append(block.call())
        elif block.type in ("thinking", "redacted_thinking"):
            # All texts count as one part, and a text of only white space counts as none, as in `to_anthropic`.
            thinking.append(block.thought(len(calls) + bool("".join(texts).strip())))
    return ModelResponse(
        content="".join(texts),
        tool_calls=tuple(calls),
        usage=usage,
        thinking=tuple(thinking),
        finish_reason=stop_reason,
    )


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value else "{}"


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a tool definition from OpenAI's form to Anthropic's; other forms are unchanged."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return dict(tool)
    definition = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    return {**definition, "description": function["description"]} if function.get("description") else definition


def _choice(tool_choice: str, *, is_thinking: bool) -> dict[str, str]:
    kind = _CHOICES.get(tool_choice)
    if is_thinking and kind not in _CHOICES_WITH_THINKING:
        return {"type": "auto"}
    return {"type": kind} if kind is not None else {"type": "tool", "name": tool_choice}


def _usage(usage: Any, earlier: Usage | None = None) -> Usage | None:
    """Convert Anthropic's usage; input tokens include the tokens read from the cache and written to it.

    A stream reports input tokens in its first event and output tokens in its last event. Some servers report input
    tokens only in the last event.

    Args:
        usage: The usage object of the answer or event, or None.
        earlier: The usage of the stream's previous events.
    """
    if usage is None:
        return earlier
    input_counts = [getattr(usage, name, None) or 0 for name in ("input_tokens", *_CACHE_FIELDS)]
    billed = max(sum(input_counts), earlier.input_tokens if earlier is not None else 0)
    return Usage(input_tokens=billed, output_tokens=usage.output_tokens or 0)
