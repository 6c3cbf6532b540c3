"""Counting tokens: the model's own tokenizer where it is public, a calibrated estimate where it is not."""

from otel_assembly.tokens.calibration import CalibratedCounter, CharacterCounter
from otel_assembly.tokens.counters import CountMethod, TiktokenCounter, TokenCounter
from otel_assembly.tokens.fast import FastTiktokenCounter
from otel_assembly.tokens.meter import MessageFraming, TokenMeter
from otel_assembly.tokens.models import counter_for
from otel_assembly.tokens.prices import Cost, InputPrice, input_price
from otel_assembly.tokens.vocabulary import shared_encoding

__all__ = [
    "CalibratedCounter",
    "CharacterCounter",
    "Cost",
    "CountMethod",
    "FastTiktokenCounter",
    "InputPrice",
    "MessageFraming",
    "TiktokenCounter",
    "TokenCounter",
    "TokenMeter",
    "counter_for",
    "input_price",
    "shared_encoding",
]
