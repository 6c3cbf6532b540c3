"""Registers readers for AutoGen's LLM messages. It is imported only after AutoGen, because it needs the classes."""

from __future__ import annotations

from math import ceil
from typing import Any

from autogen_core import Image
from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, SystemMessage, UserMessage

from otel_assembly.messages import MEDIA_TOKENS
from otel_assembly.messages.context_messages import register_messages


def _image_tokens(part: Any) -> int:
    """Return the tokens of an image by OpenAI's published rule for high detail; an estimate for other media."""
    if not isinstance(part, Image):
        return MEDIA_TOKENS
    # At most 2048 pixels, and 768 on the shorter side; each started tile of 512 pixels counts 170 tokens.
    width, height = part.image.size
    scale = min(1.0, 2048 / max(width, height, 1), 768 / max(min(width, height), 1))
    across, down = (max(1, ceil(int(side * scale) / 512)) for side in (width, height))
    return 85 + 170 * across * down


register_messages(SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage, _image_tokens)
