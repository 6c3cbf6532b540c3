"""What ``doctor`` says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `indent` stands before it where it is part of another one."""

    verdict: Verdict
    what: str
    found: str
    indent: str = ""
