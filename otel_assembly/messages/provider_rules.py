"""What each provider's API accepts, and what its client adds to a request: one row per API.

A row holds facts that a provider documents or that its API enforces; each names its source. Code that depends on a
provider reads its row, and contains no such fact of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Provider(StrEnum):
    """An API that models are called through."""

    CHAT = "chat"  # OpenAI's Chat Completions, and every server with the same interface
    RESPONSES = "responses"  # OpenAI's Responses
    ANTHROPIC = "anthropic"  # Messages
    BEDROCK = "bedrock"  # Converse
    GEMINI = "gemini"  # generateContent


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """The rules of one API.

    Attributes:
        alternates: Whether two neighboring messages of one role are refused.
    """

    alternates: bool = False


RULES: Final[Mapping[Provider, ProviderRules]] = {
    Provider.CHAT: ProviderRules(),
    Provider.RESPONSES: ProviderRules(),
    # Anthropic joins neighbors of one role, Gemini accepts them.
    Provider.ANTHROPIC: ProviderRules(),
    Provider.GEMINI: ProviderRules(),
    # Converse answers "A conversation must alternate between user and assistant roles" (ValidationException).
    Provider.BEDROCK: ProviderRules(alternates=True),
}
