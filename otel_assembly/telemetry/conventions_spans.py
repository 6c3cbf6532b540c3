"""Which spans and events there are, and what each of them carries."""

from __future__ import annotations

from typing import Final

from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.conventions_model import EventType, SpanType, conditional, opt_in, required

_MEASURES = (
    *required(names.TOKENS_IN, unless=names.DIFF),
    *required(names.TOKENS_OUT),
    *required(names.EVENTS_IN, unless=names.DIFF),
    *required(names.EVENTS_OUT),
    *required(names.EVENTS_INJECTED, unless=names.DIFF),
    *required(names.PROMPTS_IN, unless=names.DIFF),
    *required(names.PROMPTS_OUT),
    *conditional(names.DIFF, when="the input could not be known"),
    *conditional(names.TOKENS_IN_ESTIMATED, when="items of the input, or of what a step hands on, are not counted yet"),
)

_LEDGER_STEP = required(
    names.DROPPED_COUNT,
    names.DROPPED_TOKENS,
    names.COMPACTED_COUNT,
    names.COMPACTED_TOKENS,
    names.INJECTED_TOKENS,
    unless=names.DIFF,
)

_ARRIVALS = (
    *conditional(names.ARRIVED_ITEMS, when="items were seen for the first time"),
    *conditional(
        names.ARRIVED_KINDS,
        names.ARRIVED_TOKENS,
        names.ARRIVED_BYTES,
        names.ARRIVED_ATOMS,
        names.ARRIVED_CALLS,
        given=names.ARRIVED_ITEMS,
    ),
    *conditional(names.COUNTED_ITEMS, when="earlier items were counted"),
    *conditional(names.COUNTED_TOKENS, given=names.COUNTED_ITEMS),
    *opt_in(names.ARRIVED_CONTENTS),
)

_BROKEN = conditional(names.PAIRS_BROKEN, when="the output has calls without results, or results without calls")

_STATE = conditional(names.KEPT_ITEMS, when="the output has events")

_CHANGES = (
    *conditional(names.DROPPED_ITEMS, when="an item left, or the cause of its absence changed"),
    *conditional(names.DROPPED_REASONS, given=names.DROPPED_ITEMS),
    *conditional(names.COMPACTED_ITEMS, when="items were newly compacted"),
    *conditional(names.RETURNED_ITEMS, when="items are back"),
    *conditional(names.INJECTED_ITEMS, when="items were newly injected"),
    *conditional(names.WITHDRAWN_ITEMS, when="items are no longer offered by their source"),
)

_SIGNALS = required(names.ALERTS_DELIVERED, names.HALTS_EMITTED)

_OVERFLOW = (
    *required(names.OVERFLOWED),
    *conditional(names.OVERFLOW_CAUSE, given=names.OVERFLOWED),
    *conditional(names.OVERFLOW_TOKENS, when="overflowed, and the limit is one of tokens"),
)

_ERROR = conditional(names.ERROR_TYPE, when="the status is ERROR")

_FAILURE = (
    *_ERROR,
    *conditional(names.EXCEPTION_TYPE, names.EXCEPTION_STACKTRACE, when="an exception was raised"),
)

_PROMPTS = (
    *conditional(names.PROMPT_SOURCES, when="the output has prompts"),
    *conditional(names.PROMPT_TOKENS, given=names.PROMPT_SOURCES),
)

_WHOSE = (
    *conditional(names.GEN_AI_CONVERSATION_ID, when="the caller or the framework has one"),
    *conditional(names.FRAMEWORK, when="a framework's hook made it"),
    *conditional(names.GEN_AI_AGENT_NAME, when="it is known"),
)

_EVENTS = (names.EVENT_OVERFLOW, names.EVENT_ALERT, names.EVENT_HALT)

ASSEMBLE_CONTEXT: Final = SpanType(
    name_pattern=names.SPAN_ASSEMBLE_CONTEXT,
    parent="the caller's span",
    brief="One assembly: the whole chain before one model call. It ends before the model is called.",
    attributes=(
        *required(names.ID),
        *conditional(names.NAME, when="the assembler has one"),
        *required(names.LEDGER_ID, names.TURN),
        *conditional(names.PREVIOUS_ID, when="an earlier assembly of the ledger was recorded"),
        *_WHOSE,
        *conditional(names.MODEL, when="it is known"),
        *_MEASURES,
        *required(names.TOKENS_METHOD, names.TOKENS_ENCODING),
        *_PROMPTS,
        *conditional(names.KIND_NAMES, when="the output is not empty"),
        *conditional(names.KIND_TOKENS, given=names.KIND_NAMES),
        *conditional(names.BUDGET_TOKENS, when="a policy held one"),
        *conditional(names.BUDGET_UTILIZATION, given=names.BUDGET_TOKENS),
        *conditional(names.BUDGET_FIXED, when="the policy that held the limit knows it"),
        *_OVERFLOW,
        *_SIGNALS,
        *conditional(names.PREFIX_TOKENS, names.PREFIX_HASH, when="a prompt is sent"),
        *conditional(names.PREFIX_BREAK, when="it is broken, or this is the ledger's first prompt"),
        *_LEDGER_STEP,
        *conditional(names.STEPS, when="a framework's hook made it"),
        *_BROKEN,
        *_STATE,
        *_ARRIVALS,
        *_CHANGES,
        *_FAILURE,
        *opt_in(names.GEN_AI_SYSTEM_INSTRUCTIONS),
    ),
    events=_EVENTS,
)

APPLY_POLICY: Final = SpanType(
    name_pattern=f"{names.SPAN_APPLY_POLICY} {{policy}}",
    named_by=names.POLICY_NAME,
    parent=f"`{names.SPAN_ASSEMBLE_CONTEXT}`",
    brief="One policy of the chain, or one reducer of a framework. Its numbers are those of its own step.",
    attributes=(
        *required(names.POLICY_NAME, names.POLICY_INDEX),
        *conditional(names.POLICY_KIND, when="it is known"),
        *conditional(names.POLICY_CONFIG, when="the policy has settings"),
        *_MEASURES,
        *_OVERFLOW,
        *_SIGNALS,
        *_LEDGER_STEP,
        *conditional(names.DROPPED_REPORTED, when="the framework says how many it left out"),
        *_BROKEN,
        *_CHANGES,
        *_FAILURE,
    ),
    events=_EVENTS,
)

_BLOCK_LISTS = (
    *conditional(names.BLOCKS_NAMES, when=f"there are more than {names.MAX_BLOCK_SPANS} blocks"),
    *conditional(names.BLOCKS_OUTCOMES, names.BLOCKS_REASONS, names.BLOCKS_TOKENS, given=names.BLOCKS_NAMES),
)

ALLOCATE_BUDGET: Final = SpanType(
    name_pattern=names.SPAN_ALLOCATE_BUDGET,
    parent=f"`{names.SPAN_APPLY_POLICY}`, or the caller's span",
    brief="One run of the allocator. Under a policy, the ledger stands on the spans above it; alone, here.",
    attributes=(
        *required(names.BUDGET_WINDOW, names.BUDGET_OUTPUT_RESERVE, names.BUDGET_TOKENS),
        *required(names.BUDGET_FIXED, names.BUDGET_USED, names.BUDGET_REMAINING, names.BUDGET_UTILIZATION),
        *required(names.BLOCKS_KEPT, names.BLOCKS_COMPACTED, names.BLOCKS_DROPPED),
        *_BLOCK_LISTS,
        *_OVERFLOW,
        *conditional(
            names.LEDGER_ID,
            names.TURN,
            names.TOKENS_METHOD,
            names.TOKENS_ENCODING,
            when="it runs outside of an assembly",
        ),
        *conditional(names.KIND_NAMES, when="it runs outside of an assembly, and the prompt is not empty"),
        *conditional(names.KIND_TOKENS, given=names.KIND_NAMES),
        *_STATE,
        *_ARRIVALS,
        *_FAILURE,
    ),
    events=(names.EVENT_OVERFLOW,),
)

ALLOCATE_BLOCK: Final = SpanType(
    name_pattern=f"{names.SPAN_ALLOCATE_BLOCK} {{kind}}",
    named_by=names.BLOCK_KIND,
    parent=f"`{names.SPAN_ALLOCATE_BUDGET}`",
    brief="What became of one block; in the order in which they were decided. Tokens include what joining items added.",
    attributes=(
        *required(names.BLOCK_NAME, names.BLOCK_KIND, names.BLOCK_PRIORITY),
        *required(names.BLOCK_CUTTABLE, names.BLOCK_MIN_TOKENS),
        *required(names.TOKENS_IN, names.TOKENS_OUT),
        *required(names.DECISION_OUTCOME, names.DECISION_REASON, names.BUDGET_REMAINING),
        *required(names.ITEMS_IN, names.ITEMS_OUT, names.ITEMS_INJECTED),
        *conditional(names.BLOCK_CUT, when="the blocks are the caller's own"),
        *conditional(names.BLOCK_ITEMS, when="the blocks are the caller's own, and the block has items"),
        *conditional(names.BLOCK_ORDER, when="the same, and the block may be cut"),
        *conditional(names.BLOCK_CHARGES, given=names.BLOCK_ORDER),
        *conditional(names.BLOCK_ATOMS, when="the same, and some of its items are kept or dropped together"),
        *conditional(names.BLOCK_COST, when="it may be cut, and some of its items are out from the start"),
        *conditional(names.BLOCK_ENOUGH, when="it may be cut, and has a floor"),
        *conditional(names.BLOCK_EVENTS, when="it may be cut, and holds events"),
        *conditional(names.BLOCK_LOSERS, when="another item stands for one of its items"),
        *conditional(names.BLOCK_WINNERS, given=names.BLOCK_LOSERS),
        *conditional(names.DROPPED_ITEMS, when="the allocator runs outside of an assembly, and items were dropped"),
        *conditional(names.DROPPED_REASONS, given=names.DROPPED_ITEMS),
        *conditional(names.COMPACTED_ITEMS, when="the allocator runs outside of an assembly, and items were compacted"),
        *conditional(names.INJECTED_ITEMS, when="the allocator runs outside of an assembly, and compaction made items"),
    ),
)

COMPACT_BLOCK: Final = SpanType(
    name_pattern=f"{names.SPAN_COMPACT_BLOCK} {{kind}}",
    named_by=names.BLOCK_KIND,
    parent=f"`{names.SPAN_ALLOCATE_BUDGET}`, or the policy's span",
    brief="One attempt to make something shorter; a model that it calls is called inside.",
    attributes=(
        *required(names.BLOCK_KIND),
        *required(names.COMPACTION_COMPACTOR, names.COMPACTION_ATTEMPT, names.COMPACTION_TARGET),
        *required(names.TOKENS_IN, names.COMPACTION_OUTCOME),
        *conditional(names.TOKENS_OUT, when="it returned a text"),
        *conditional(names.COMPACTION_PROVENANCE, names.COMPACTION_RESULT, when="it is what stands in the prompt"),
        *_ERROR,
    ),
)

LIST_ITEMS: Final = SpanType(
    name_pattern=names.SPAN_LIST_ITEMS,
    parent="the span whose arrays did not fit",
    brief="The rest of its parent's arrays: to be read as if it stood behind them.",
    attributes=(
        *_STATE,
        *_ARRIVALS,
        *_CHANGES,
        *_PROMPTS,
        *_BLOCK_LISTS,
        *conditional(names.BLOCK_ITEMS, names.BLOCK_ORDER, when="they did not fit on the block's span"),
        *conditional(names.BLOCK_CHARGES, given=names.BLOCK_ORDER),
        *conditional(names.BLOCK_ATOMS, names.BLOCK_LOSERS, when="they did not fit on the block's span"),
        *conditional(names.BLOCK_WINNERS, given=names.BLOCK_LOSERS),
        *conditional(names.COMPACTION_PROVENANCE, when="it did not fit on the compaction's span"),
    ),
)

INVOKE_AGENT: Final = SpanType(
    name_pattern=f"{names.SPAN_INVOKE_AGENT} {{agent}}",
    named_by=names.GEN_AI_AGENT_NAME,
    parent="none",
    brief="One request to an agent, where a run would otherwise have no span at all, so that it is one trace.",
    attributes=(
        *required(names.GEN_AI_OPERATION_NAME),
        *_WHOSE,
        *conditional(names.HALTS_EMITTED, when="a conversation was halted in it"),
        *_ERROR,
    ),
    events=(names.EVENT_HALT,),
)

HALT_SPAN: Final = SpanType(
    name_pattern=names.SPAN_HALT,
    parent="none; where a span is current that has ended or is another process's, that one",
    brief="A halt that came when no span was open. It is linked to the conversation's last assembly, if there was one.",
    attributes=(*required(names.HALTS_EMITTED, names.ERROR_TYPE), *_WHOSE),
    events=(names.EVENT_HALT,),
)

PROJECT_VIEW: Final = SpanType(
    name_pattern=f"{names.SPAN_PROJECT_VIEW} {{view}}",
    named_by=names.VIEW_NAME,
    parent="the caller's span",
    brief="What one agent gets to see of what a network of agents has said. It stands before any assembly of it.",
    attributes=(
        *required(names.VIEW_NAME),
        *_WHOSE,
        *conditional(names.MODEL, when="it is known"),
        *required(names.ENVELOPES_IN),
        *conditional(names.ENVELOPES_OUT, when="it is known"),
        *required(
            names.EVENTS_OUT, names.TOKENS_OUT, names.TOKENS_METHOD, names.TOKENS_ENCODING, unless=names.ERROR_TYPE
        ),
        *_FAILURE,
    ),
)

MODEL_CALL_STAMP: Final = (
    *required(names.ID),
    *conditional(names.GEN_AI_CONVERSATION_COMPACTED, when="something was dropped or compacted on the way"),
)
"""What is put on the span of the model call that an assembly's prompt is sent with, whoever makes that span."""

SPANS: Final = (
    ASSEMBLE_CONTEXT,
    APPLY_POLICY,
    ALLOCATE_BUDGET,
    ALLOCATE_BLOCK,
    COMPACT_BLOCK,
    LIST_ITEMS,
    INVOKE_AGENT,
    HALT_SPAN,
    PROJECT_VIEW,
)

OVERFLOW: Final = EventType(
    names.EVENT_OVERFLOW,
    (
        *required(names.OVERFLOW_CAUSE),
        *conditional(names.OVERFLOW_TOKENS, when="the limit is one of tokens"),
    ),
    "A limit could not hold. On the policy's span and on the assembly's.",
)

ALERT: Final = EventType(
    names.EVENT_ALERT,
    (
        *required(names.ALERT_SOURCE, names.ALERT_SEVERITY, names.ALERT_FINGERPRINT),
        *conditional(names.ALERT_MESSAGE, when="alert messages are exported"),
    ),
    "An observer's alert was shown to the model. On the policy's span, one for each alert.",
)

HALT: Final = EventType(
    names.EVENT_HALT,
    (
        *required(names.HALT_SOURCE),
        *conditional(names.HALT_REASON, when="alert messages are exported"),
    ),
    "The conversation was halted: no model call and no tool call starts after it. On the open assembly, else on the"
    f" span that is running, and on the run's span; where none is open, on a `{names.SPAN_HALT}` span.",
)

EVENTS: Final = (OVERFLOW, ALERT, HALT)
