"""Capabilities that change what is sent, before each request: each is a step."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.model_call import CALL, Sent
from otel_assembly.instrumentation.pydantic_ai.messages import behind_prompts, instructions_of
from otel_assembly.instrumentation.reductions import Reducer, reducer

if TYPE_CHECKING:
    from collections.abc import Mapping

_FRAMEWORK: Final = ("pydantic_ai.", "pydantic_ai_harness.")
_COMPACTION: Final = "pydantic_ai_harness.compaction."
_PROCESSOR: Final = "history_processor"
_BY_PROVIDER: Final = "provider_compaction"
_NAMES: Final = {
    "AnthropicCompaction": _BY_PROVIDER,
    "OpenAICompaction": _BY_PROVIDER,
    "SlidingWindowCompaction": "sliding_window",
    "SummarizingCompaction": "summarization",
    "PendingMessageDrainCapability": "pending_messages",
}
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _taken_in(_: Any, __: Any, request_context: Any, **___: Any) -> Sent | None:
    return None if CALL.get() is None else read(request_context)


def _let_out(result: Any, *_: Any, **__: Any) -> Sent:
    return read(result)


def read(request: Any) -> Sent:
    """What a request's messages are, as far as it is prepared."""
    system, held = behind_prompts(request.messages)
    return Sent(held, [*system, *instructions_of(request.model_request_parameters, request.model)])


def _policy(capability: Any, *_: Any, **__: Any) -> str:
    """A name of low cardinality: of what the framework brings, what it does; of a user's, what it is called there."""
    name = type(capability).__name__
    if name == "ProcessHistory":
        said = getattr(capability.processor, "__name__", type(capability.processor).__name__)
        return _PROCESSOR if said.startswith("<") else said
    if not type(capability).__module__.startswith(_FRAMEWORK):
        return name
    return _NAMES.get(name) or _WORDS.sub("_", name.removesuffix("Compaction")).lower()


def _kind(capability: Any, *_: Any, **__: Any) -> str | None:
    name, module = type(capability).__name__, type(capability).__module__
    reduces = name == "ProcessHistory" or module.startswith(_COMPACTION) or _NAMES.get(name) == _BY_PROVIDER
    return "reduction" if reduces else None


def _said(_: Any, __: Any, capability: Any, *___: Any, **____: Any) -> Mapping[str, Any]:
    """The tokens that the harness's compaction is to keep within, where they are said."""
    held = [getattr(capability, name, None) for name in ("target_tokens", "max_tokens")]
    limit = next((limit for limit in held if isinstance(limit, int)), None)
    known = limit is not None and type(capability).__module__.startswith(_COMPACTION)
    return {"budget": limit, "of_prompt": True} if known else {}


def _config(capability: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    """What it was made with, but for what every capability is."""
    given = fields(capability) if is_dataclass(capability) else ()
    names = {field.name for field in given if field.init and field.name[0] != "_"} - {"id", "defer_loading"}
    return {name: value for name in names if isinstance(value := getattr(capability, name, None), int | float)}


before_request: Final = reducer(Reducer(_taken_in, _let_out, _policy, _kind, _config, _said))
