"""Hooks of `trim_messages`.

The function is instrumented in the two private functions that it calls, so that it does not matter how a program
imported it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from otel_assembly.instrumentation.langchain.model_calls import model_of
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.langchain.token_trimming import CountedTrim, trims


def _model_of_counter(owner: Any) -> str | None:
    return model_of(owner) if hasattr(owner, "get_num_tokens_from_messages") else None


_TRIM: Final = CountedTrim(
    "trim_messages",
    limit="max_tokens",
    counter="token_counter",
    flags=("include_system", "allow_partial"),
    cuts=("allow_partial", "partial_strategy"),
    system="include_system",
    role=attrgetter("type"),
    find_call=GRAPH_CONTEXT.call_for_reducer,
    model_of=_model_of_counter,
)

#: Hooks of ``_last_max_tokens``, and of ``_first_max_tokens``, which the former calls with the messages reversed.
last_max_tokens, first_max_tokens = trims(_TRIM, last=True), trims(_TRIM, last=False)
