"""`AnthropicModel`: a model behind Anthropic's Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.events import ModelResponse, ResponseChunk, Thinking, ToolCallEvent, Usage
from otel_assembly.ledger.figures import Breakpoints
from otel_assembly.runtime.anthropic_messages import to_anthropic
from otel_assembly.runtime.model_client import begun
from otel_assembly.runtime.provider_errors import broken_off, failing, options_of, sdk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

_PROVIDER: Final = "anthropic"
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "none": "none", "required": "any"}
#: The choices that Anthropic takes of a model that thinks; it refuses a call that is forced to use a tool.
_WHILE_IT_THINKS: Final = ("auto", "none")
#: Where the text of a block stands, by its type; and the piece of one, by the type of a delta.
_TEXTS: Final[Mapping[str, str]] = {"text": "text", "thinking": "thinking"}
_DELTAS: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
#: The input tokens that are billed beside `input_tokens`: they came from the cache, or went there.
_CACHED: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")


class AnthropicModel:
    """A `ModelClient` of Anthropic's Messages, by the ``anthropic`` package (extra ``anthropic``).

    The SDK makes a call anew by itself, twice by default, where that may help. A halt does not reach into a call under
    way, nor between its attempts: where it has to, give ``max_retries=0`` and let a middleware call again, which asks
    the guard each time. The client belongs to the event loop in which it is first used. A model that thinks
    (``thinking={"type": "enabled", …}``) is sent back what it thought where it called tools; it cannot be forced to
    call one, so that a `tool_choice` that would is ``auto`` there.

    Args:
        model: The model's name.
        max_tokens: Tokens of an answer at most.
        base_url: The server; None: as the SDK's environment variables say, else Anthropic.
        api_key: The key; None: as the SDK's environment variables say.
        max_retries: How often the SDK makes a failed call anew.
        client: An ``anthropic.AsyncAnthropic`` of your own, instead of one of these three.
        streams: Whether answers come in pieces.
        caches: Whether the end of the prompts and the end of the conversation are marked for Anthropic's cache.
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
        self._options = {"max_tokens": max_tokens, **options_of(options)}
        thinking = options.get("thinking")
        self._thinks = isinstance(thinking, Mapping) and thinking.get("type", "disabled") != "disabled"

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
            RenderError: An event that Anthropic's messages have no form for.
        """
        ends = Breakpoints(len(prompts) - 1 if prompts else None, (len(events) - 1,) if events else ())
        rendered = to_anthropic(prompts, events, breakpoints=ends if self._caches else None)
        request = {**self._options, "model": self.model, "messages": rendered["messages"]}
        if rendered["system"]:
            request["system"] = rendered["system"]
        if tools:
            request["tools"] = [_tool(tool) for tool in tools]
            if tool_choice is not None:
                request["tool_choice"] = _choice(tool_choice, thinks=self._thinks)
        if self._streams:
            return await begun(self._streamed(request))
        with failing(_PROVIDER, self.model):
            answer = await self._client.messages.create(**request)
            blocks = [_Block(block) for block in answer.content]
            return _response(blocks, _usage(answer.usage), answer.stop_reason)

    async def _streamed(self, request: Mapping[str, Any]) -> AsyncGenerator[ResponseChunk | ModelResponse, None]:
        blocks: dict[int, _Block] = {}
        usage: Usage | None = None
        stop_reason: str | None = None
        is_whole = False
        with failing(_PROVIDER, self.model):
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
                raise broken_off(_PROVIDER, self.model)
        yield _response(list(blocks.values()), usage, stop_reason)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def __repr__(self) -> str:
        return f"AnthropicModel({self.model!r})"


class _Block:
    """A block of an answer, whole or while it is being written."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.type: str = block.type
        #: Texts, thoughts, and arguments as the model wrote them; what the block began with stands first.
        self._written: list[str] = [getattr(block, _TEXTS[block.type], None) or ""] if block.type in _TEXTS else []
        self._signature: str = getattr(block, "signature", None) or ""

    def grow(self, delta: Any) -> None:
        """Take what came of it; what nobody knows is passed over."""
        if delta.type in _DELTAS:
            self._written.append(getattr(delta, _DELTAS[delta.type]))
        elif delta.type == "signature_delta":
            self._signature += delta.signature

    @property
    def text(self) -> str:
        """What has been written so far."""
        return "".join(self._written)

    def call(self) -> ToolCallEvent:
        """The call with its arguments as the model wrote them, well or not."""
        arguments = self.text or _written(self._block.input)
        return ToolCallEvent(id=self._block.id, name=self._block.name, arguments=arguments)

    def thought(self, behind: int) -> Thinking:
        """What was thought, where it stood."""
        if self.type == "redacted_thinking":
            return Thinking(form="redacted_thinking", sealed=self._block.data, behind=behind)
        return Thinking(form="thinking", text=self.text, signature=self._signature, behind=behind)


def _response(blocks: Sequence[_Block], usage: Usage | None, stop_reason: str | None) -> ModelResponse:
    said: list[str] = []
    calls: list[ToolCallEvent] = []
    thinking: list[Thinking] = []
    for block in blocks:
        if block.type == "text":
            said.append(block.text)
        elif block.type == "tool_use":
            calls.append(block.call())
        elif block.type in ("thinking", "redacted_thinking"):
            # Texts are one part of a response, and one of nothing but white space is none that is sent.
            thinking.append(block.thought(len(calls) + bool("".join(said).strip())))
    return ModelResponse(
        content="".join(said),
        tool_calls=tuple(calls),
        usage=usage,
        thinking=tuple(thinking),
        finish_reason=stop_reason,
    )


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value else "{}"


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool of OpenAI's form in Anthropic's; one that is in it already stays."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return dict(tool)
    made = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    return {**made, "description": function["description"]} if function.get("description") else made


def _choice(tool_choice: str, *, thinks: bool) -> dict[str, str]:
    kind = _CHOICES.get(tool_choice)
    if thinks and kind not in _WHILE_IT_THINKS:
        return {"type": "auto"}
    return {"type": kind} if kind is not None else {"type": "tool", "name": tool_choice}


def _usage(usage: Any, before: Usage | None = None) -> Usage | None:
    """What was billed: the input with what came from the cache and what went there, which Anthropic tells apart.

    A stream tells the input at its beginning, and the output as it ends; some servers tell the input at the end alone.
    """
    if usage is None:
        return before
    told = [getattr(usage, name, None) or 0 for name in ("input_tokens", *_CACHED)]
    billed = max(sum(told), before.input_tokens if before is not None else 0)
    return Usage(input_tokens=billed, output_tokens=usage.output_tokens or 0)
