"""Why a model stopped, in the values of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The providers' values for each value of the conventions. Anthropic: Messages `stop_reason`; OpenAI: Chat
#: Completions `finish_reason`, Responses `incomplete_details.reason`; Gemini and Bedrock as their OpenAI-compatible
#: servers pass them on; TGI, vLLM, DeepSeek and OpenRouter where they differ from OpenAI.
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

#: The reasons of incomplete responses. Anthropic's `pause_turn`, which has no equivalent in the conventions, means that
#: a turn with the provider's own tools was interrupted.
CUT_OFF: Final = frozenset({"length", "content_filter", "error", "pause_turn"})


def finish_reason(word: str) -> str:
    """Return the conventions' value for a provider's value; an unknown value is unchanged."""
    return _VALUES.get(word.lower(), word)
