"""The findings of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `indent` sets a finding below the one that it belongs to."""

    verdict: Verdict
    what: str
    found: str
    indent: str = ""
