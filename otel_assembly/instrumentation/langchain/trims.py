"""LangChain's ``trim_messages``, seen however it was imported: every way leads to two functions."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from otel_assembly.instrumentation.langchain.model_calls import model_of
from otel_assembly.instrumentation.langchain.runs import PLACES
from otel_assembly.instrumentation.langchain.token_trimming import CountedTrim, trims


def _model_of(counts: Any) -> str | None:
    return model_of(counts) if hasattr(counts, "get_num_tokens_from_messages") else None


_TRIM: Final = CountedTrim(
    "trim_messages",
    limit="max_tokens",
    counter="token_counter",
    flags=("include_system", "allow_partial"),
    cuts=("allow_partial", "partial_strategy"),
    system="include_system",
    role=attrgetter("type"),
    finds=PLACES.prepared,
    model_of=_model_of,
)

#: What trims from the front, and what trims from the end, by which the other one works too.
last_max_tokens, first_max_tokens = trims(_TRIM, last=True), trims(_TRIM, last=False)
