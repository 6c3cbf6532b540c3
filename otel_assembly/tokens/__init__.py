"""Token counting: with the model's tokenizer if it is public, otherwise by a calibrated estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes, modules_of
from otel_assembly.tokens.calibration import CalibratedCounter, CharacterCounter
from otel_assembly.tokens.meter import CountMethod, MessageFraming, TiktokenCounter, TokenCounter, TokenMeter
from otel_assembly.tokens.models import counter_for
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from otel_assembly.tokens.fast import FastTiktokenCounter
    from otel_assembly.tokens.prices import Cost, InputPrice, ListedWindow, context_window, input_price

__getattr__, __dir__ = lazy_attributes(
    __name__,
    modules_of({"fast": "FastTiktokenCounter", "prices": "Cost InputPrice ListedWindow context_window input_price"}),
)

__all__ = [
    "CalibratedCounter",
    "CharacterCounter",
    "Cost",
    "CountMethod",
    "FastTiktokenCounter",
    "InputPrice",
    "ListedWindow",
    "MessageFraming",
    "TiktokenCounter",
    "TokenCounter",
    "TokenMeter",
    "context_window",
    "counter_for",
    "input_price",
    "shared_encoding",
]
