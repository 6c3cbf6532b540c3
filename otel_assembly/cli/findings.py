"""The findings of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of ``doctor``, printed as one line.

    Attributes:
        verdict: ``ok``, ``fail``, or ``note`` for a hint.
        subject: The subject of the check.
        result: The result, as text.
        indent: Spaces at the beginning of the line, if the finding belongs to the finding above it.
    """

    verdict: Verdict
    subject: str
    result: str
    indent: str = ""
