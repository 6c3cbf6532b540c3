"""pydantic-ai-harness' `SlidingWindowCompaction`, which replaces the conversation by what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import BUDGET
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def _pydantic(*, exact: bool) -> Driver:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.tools import RunContext
    from pydantic_ai.usage import RunUsage
    from pydantic_ai_harness.compaction import SlidingWindowCompaction

    encode = shared_encoding("o200k_base").encode_ordinary

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return ModelRequest(parts=[UserPromptPart(text)])
        if message["role"] == "tool":
            return ModelRequest(parts=[ToolReturnPart("lookup", text, message["tool_call_id"])])
        calls = [
            ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in message.get("tool_calls") or []
        ]
        return ModelResponse(parts=[*calls, *([TextPart(text)] if text else [])])

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        strategy: Any = SlidingWindowCompaction(
            max_tokens=BUDGET,
            keep_tokens=BUDGET * 9 // 10,
            tokenizer=(lambda text: len(encode(text))) if exact else None,
        )
        model = TestModel()
        context: Any = RunContext(deps=None, model=model, usage=RunUsage(), messages=held)

        async def turn(new: list[Any]) -> Any:
            context.messages.extend(new)
            request = ModelRequestContext(
                model=model,
                messages=context.messages,
                model_settings=None,
                model_request_parameters=ModelRequestParameters(),
            )
            return await strategy.before_model_request(context, request)

        return turn

    return lambda events: list(map(of, events)), start


PEERS = (
    Peer(
        "pydantic-ai-harness SlidingWindow",
        "pydantic-ai-harness",
        lambda: _pydantic(exact=False),
        "characters",
        "replaced",
    ),
    Peer(
        "pydantic-ai-harness SlidingWindow, exact",
        "pydantic-ai-harness",
        lambda: _pydantic(exact=True),
        "exact",
        "replaced",
    ),
)
