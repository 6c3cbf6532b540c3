"""Why a model stopped, in the values of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: For each value of the conventions, the providers' values. They are Anthropic's `stop_reason` (Messages), OpenAI's
#: `finish_reason` (Chat Completions) and `incomplete_details.reason` (Responses), those that the OpenAI-compatible
#: servers of Gemini and Bedrock return, and those of TGI, vLLM, DeepSeek and OpenRouter that differ from OpenAI's.
_WORDS: Final[Mapping[str, str]] = {
    "stop": "stop completed end_turn stop_sequence eos eos_token end complete",
    "length": "length max_tokens max_output_tokens max_completion_tokens model_length model_context_window_exceeded",
    "content_filter": "content_filter content_filtered refusal safety recitation blocklist prohibited_content spii "
    "guardrail_intervened image_safety",
    "tool_call": "tool_call tool_calls function_call function_calls tool_use",
    "error": "error failed abort aborted cancelled incomplete insufficient_system_resource network_error "
    "malformed_function_call unexpected_tool_call malformed_response",
}
_VALUES: Final = {word: value for value, words in _WORDS.items() for word in words.split()}

#: The reasons of incomplete responses. Anthropic's `pause_turn` has no equivalent in the conventions: a turn with tools
#: that Anthropic runs was interrupted.
CUT_OFF: Final = frozenset({"length", "content_filter", "error", "pause_turn"})


def finish_reason(word: str) -> str:
    """Return the value of OpenTelemetry's GenAI conventions for a provider's value; an unknown value is unchanged."""
    return _VALUES.get(word.lower(), word)
