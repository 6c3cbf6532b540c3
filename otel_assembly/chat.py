"""Where how plain dicts are read used to stand; it is `otel_assembly.messages` now."""

from __future__ import annotations

from otel_assembly.messages import MEDIA_TOKENS, ROLES, ChatSummary

__all__ = ["MEDIA_TOKENS", "ROLES", "ChatSummary"]
