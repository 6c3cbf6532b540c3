"""The registry of the telemetry contract: every name that we export, once.

A constant is the attribute's name, a plain ``str``, and the call that makes it is its registration: neither can be had
without the other. Which span, event and metric carries what is in `conventions_spans` and `conventions_metrics`;
`conventions_check` compares what was emitted with all of it, and ``docs/semantic-conventions.md`` is generated from it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, get_args

from otel_assembly.budget.block import Cut
from otel_assembly.budget.compaction import CompactionOutcome
from otel_assembly.decision import DecisionOutcome, DecisionReason, OverflowCause, PrefixBreak, PromptPart
from otel_assembly.errors import ERROR_ASSEMBLY_HALT as ERROR_ASSEMBLY_HALT
from otel_assembly.errors import ERROR_CANCELLED as ERROR_CANCELLED
from otel_assembly.errors import ERROR_CONTEXT_OVERFLOW as ERROR_CONTEXT_OVERFLOW
from otel_assembly.events import Severity
from otel_assembly.messages.describe import EventKind
from otel_assembly.policies.base import INJECTION, REDUCTION
from otel_assembly.telemetry.conventions_model import Attribute, DiffQuality
from otel_assembly.tokens.counters import CountMethod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.telemetry.conventions_model import AttributeType

SCOPE: Final = "otel_assembly"
"""The instrumentation scope of all our spans, events and metrics."""

MAX_ARRAY_BYTES: Final = 7 * 1024
"""What the arrays of one span may hold together; the rest stands on `SPAN_LIST_ITEMS`.

A batch of 512 spans, the SDK's default, then stays under the 4 MiB over which a gRPC receiver refuses all of it.
"""

MAX_BLOCK_SPANS: Final = 128
"""Blocks of one allocation that have a span each, those first that were not simply kept; the rest stand in arrays.

A thousand blocks a turn, a span each, overran the SDK's queue without a word.
"""

MAX_ALERT_MESSAGE: Final = 256
"""Characters of an alert's message, and of a halt's reason, that are exported."""

MAX_METRIC_NAMES: Final = 100
"""Different values of one open attribute on metrics; all later ones are `OTHER`."""

APART_NS: Final = 1_000
"""Between the starts of spans that are written at once, so that their order survives a backend of microseconds."""

OTHER: Final = "_OTHER"

STATUS_CONTEXT_OVERFLOW: Final = "the context does not fit its budget"
STATUS_ASSEMBLY_HALT: Final = "the conversation was halted"
STATUS_POLICY_FAILED: Final = "a policy failed"
STATUS_COMPACTION_FAILED: Final = "a compaction failed"
STATUS_DESCRIPTIONS: Final = (
    STATUS_CONTEXT_OVERFLOW,
    STATUS_ASSEMBLY_HALT,
    STATUS_POLICY_FAILED,
    STATUS_COMPACTION_FAILED,
)
"""The only status descriptions we set: an exception's own message could quote a conversation."""

SPAN_ASSEMBLE_CONTEXT: Final = "assemble_context"
SPAN_APPLY_POLICY: Final = "apply_policy"
SPAN_ALLOCATE_BUDGET: Final = "allocate_budget"
SPAN_ALLOCATE_BLOCK: Final = "allocate_block"
SPAN_COMPACT_BLOCK: Final = "compact_block"
SPAN_LIST_ITEMS: Final = "list_items"
SPAN_INVOKE_AGENT: Final = "invoke_agent"
SPAN_HALT: Final = "halt"
SPAN_PROJECT_VIEW: Final = "project_view"

EVENT_OVERFLOW: Final = "assembly.overflow"
EVENT_ALERT: Final = "assembly.alert"
EVENT_HALT: Final = "assembly.halt"

_registered: dict[str, Attribute] = {}

ATTRIBUTES: Final[Mapping[str, Attribute]] = MappingProxyType(_registered)
"""Every registered attribute by its name, in the order of this module."""


def _attribute(
    name: str,
    kind: AttributeType,
    brief: str,
    note: str = "",
    values: tuple[str, ...] = (),
    *,
    opt_in: bool = False,
    parallel_to: str = "",
) -> str:
    if name in _registered:
        raise AssertionError(f"{name} is registered twice")
    _registered[name] = Attribute(name, kind, brief, note, values, opt_in, parallel_to)
    return name


# Whose assembly it is

ID: Final = _attribute("assembly.id", "string", "This assembly; random.")
NAME: Final = _attribute("assembly.name", "string", "The assembler's name, as its author gave it.")
LEDGER_ID: Final = _attribute(
    "assembly.ledger.id",
    "string",
    "The ledger that ordinals and turns are counted in; random.",
    "One conversation under one assembler in one process. Ordinals of two ledgers are not comparable.",
)
TURN: Final = _attribute("assembly.turn", "int", "Assemblies of this ledger before this one, from 0.")
PREVIOUS_ID: Final = _attribute(
    "assembly.previous.id",
    "string",
    "The `assembly.id` that the changes on these spans are against.",
    "The ledger's last assembly whose span was recorded. A reader that does not have it (its export was lost) keeps"
    " the sets that this turn states and does not know the reasons of exits it missed.",
)
GEN_AI_CONVERSATION_ID: Final = _attribute(
    "gen_ai.conversation.id", "string", "The conversation, as GenAI defines it; only a real one, never made up."
)
FRAMEWORK: Final = _attribute(
    "assembly.framework", "string", "The agent framework whose assembly this is, such as `ag2` or `langchain`."
)
GEN_AI_AGENT_NAME: Final = _attribute("gen_ai.agent.name", "string", "The agent, as GenAI defines it.")
GEN_AI_OPERATION_NAME: Final = _attribute(
    "gen_ai.operation.name", "string", "The operation, as GenAI defines it.", values=("invoke_agent",)
)
MODEL: Final = _attribute(
    "assembly.model",
    "string",
    "The model that the prompt is assembled and counted for.",
    "Not GenAI's attribute for the requested model: a backend would count the span as a model call.",
)

# What went in and what came out

TOKENS_IN: Final = _attribute("assembly.tokens.in", "int", "Tokens of the input, rendered.")
TOKENS_OUT: Final = _attribute("assembly.tokens.out", "int", "Tokens of the output, rendered.")
TOKENS_METHOD: Final = _attribute(
    "assembly.tokens.method",
    "string",
    "How tokens were counted.",
    "`exact`: by the model's own tokenizer. `calibrated`: by another one, corrected by what the provider billed."
    " `estimated`: neither; also where no model is known, or a message holds images, audio or files.",
    values=get_args(CountMethod),
)
TOKENS_ENCODING: Final = _attribute("assembly.tokens.encoding", "string", "What counted, such as `o200k_base`.")
TOKENS_IN_ESTIMATED: Final = _attribute(
    "assembly.tokens.in_estimated",
    "boolean",
    "True while old items are not counted yet.",
    "`assembly.tokens.in`, `assembly.dropped.tokens` and, of a step that another follows, `assembly.tokens.out` are "
    "then lower bounds.",
)
EVENTS_IN: Final = _attribute("assembly.events.in", "int", "Events of the input.")
EVENTS_OUT: Final = _attribute("assembly.events.out", "int", "Events of the output.")
EVENTS_INJECTED: Final = _attribute(
    "assembly.events.injected",
    "int",
    "Events of the output that were not in the input, summaries and replacements included.",
)
PROMPTS_IN: Final = _attribute("assembly.prompts.in", "int", "Prompts (system-level texts) of the input.")
PROMPTS_OUT: Final = _attribute("assembly.prompts.out", "int", "Prompts of the output.")
PROMPT_SOURCES: Final = _attribute(
    "assembly.prompt.sources", "string[]", "Who gave each prompt of the output, in order: `caller`, or a policy's name."
)
PROMPT_TOKENS: Final = _attribute(
    "assembly.prompt.tokens", "int[]", "Tokens of each prompt of the output.", parallel_to=PROMPT_SOURCES
)
KIND_NAMES: Final = _attribute(
    "assembly.kind.names",
    "string[]",
    "What fills the prompt, by kind.",
    values=(*EventKind, *PromptPart),
)
KIND_TOKENS: Final = _attribute(
    "assembly.kind.tokens",
    "int[]",
    "Tokens of each kind.",
    "They sum to `assembly.tokens.out`.",
    parallel_to=KIND_NAMES,
)
DIFF: Final = _attribute(
    "assembly.diff",
    "string",
    "Set where the input could not be known.",
    "What came in and what left are then not on the span: no number rather than a false one.",
    values=tuple(DiffQuality),
)

# Budget, overflow, prefix

BUDGET_TOKENS: Final = _attribute("assembly.budget.tokens", "int", "The tightest token limit that a policy held.")
BUDGET_FIXED: Final = _attribute(
    "assembly.budget.fixed",
    "int",
    "Tokens of what may not be dropped.",
    "Prompts, tool schemas, the reply's priming, pinned items, the newest user request.",
)
BUDGET_UTILIZATION: Final = _attribute(
    "assembly.budget.utilization", "double", "`assembly.tokens.out` ÷ `assembly.budget.tokens`."
)
BUDGET_WINDOW: Final = _attribute("assembly.budget.window", "int", "The model's window, in tokens.")
BUDGET_OUTPUT_RESERVE: Final = _attribute(
    "assembly.budget.output_reserve",
    "int",
    "Tokens kept free for the reply.",
    "`assembly.budget.window` − this = `assembly.budget.tokens`.",
)
BUDGET_USED: Final = _attribute("assembly.budget.used", "int", "Tokens of the whole prompt that was allocated.")
BUDGET_REMAINING: Final = _attribute(
    "assembly.budget.remaining",
    "int",
    "Tokens that were left.",
    "On `allocate_budget` at the end; on `allocate_block` for that block, at the moment when it was decided: what lower"
    " blocks have reserved as their floors is not in it.",
)
OVERFLOWED: Final = _attribute("assembly.overflowed", "boolean", "Whether a limit could not hold, raised or not.")
OVERFLOW_TOKENS: Final = _attribute("assembly.overflow.tokens", "int", "Tokens needed − tokens of the budget.")
OVERFLOW_CAUSE: Final = _attribute(
    "assembly.overflow.cause",
    "string",
    "Why the limit could not hold.",
    "`fixed`: what may not be dropped is alone over it. `newest_atom`: the newest tool call with its results, or the"
    " newest message, does not fit beside that. `framework`: the framework's own limit.",
    values=tuple(OverflowCause),
)
PREFIX_TOKENS: Final = _attribute(
    "assembly.prefix.tokens", "int", "Tokens of the stable prefix: what equals the start of the ledger's last prompt."
)
PREFIX_HASH: Final = _attribute("assembly.prefix.hash", "string", "A digest of the stable prefix.")
PREFIX_BREAK: Final = _attribute(
    "assembly.prefix.break",
    "string",
    "Why the prompt does not begin with the whole of the last one.",
    values=tuple(PrefixBreak),
)

# The ledger: arrivals, state, changes

ARRIVED_ITEMS: Final = _attribute(
    "assembly.arrived.items",
    "string[]",
    "Ordinals of the items seen for the first time, one entry an item.",
    "Those that policies made are among them.",
)
ARRIVED_KINDS: Final = _attribute(
    "assembly.arrived.kinds", "string[]", "Their kinds.", values=tuple(EventKind), parallel_to=ARRIVED_ITEMS
)
ARRIVED_TOKENS: Final = _attribute(
    "assembly.arrived.tokens", "int[]", "Their tokens; −1 where not counted yet.", parallel_to=ARRIVED_ITEMS
)
ARRIVED_BYTES: Final = _attribute(
    "assembly.arrived.bytes", "int[]", "Bytes of their texts, as UTF-8.", parallel_to=ARRIVED_ITEMS
)
ARRIVED_ATOMS: Final = _attribute(
    "assembly.arrived.atoms",
    "string[]",
    "The ordinal of the first item of each one's atom.",
    "A tool-calling response and all its results are one atom: kept or dropped together.",
    parallel_to=ARRIVED_ITEMS,
)
ARRIVED_CALLS: Final = _attribute(
    "assembly.arrived.calls",
    "int[]",
    "Tool calls that each asks for; below 0, how many it answers.",
    "A call that never got its result parts its message from the prompt once a later response exists.",
    parallel_to=ARRIVED_ITEMS,
)
ARRIVED_CONTENTS: Final = _attribute(
    "assembly.arrived.contents", "string[]", "Their texts, redacted.", opt_in=True, parallel_to=ARRIVED_ITEMS
)
COUNTED_ITEMS: Final = _attribute(
    "assembly.counted.items", "string[]", "Earlier items whose tokens were counted, or counted anew, since then."
)
COUNTED_TOKENS: Final = _attribute("assembly.counted.tokens", "int[]", "Their tokens, each.", parallel_to=COUNTED_ITEMS)
KEPT_ITEMS: Final = _attribute("assembly.kept.items", "string[]", "The whole output, in prompt order.")
DROPPED_COUNT: Final = _attribute("assembly.dropped.count", "int", "Events of the input that are not in the output.")
DROPPED_TOKENS: Final = _attribute("assembly.dropped.tokens", "int", "Their tokens.")
DROPPED_REPORTED: Final = _attribute(
    "assembly.dropped.reported",
    "int",
    "What the framework itself says that it left out.",
    "Beside `assembly.dropped.count`, which is what is really not in the output: the two need not agree.",
)
DROPPED_ITEMS: Final = _attribute("assembly.dropped.items", "string[]", "Items whose exit, or its cause, is new.")
DROPPED_REASONS: Final = _attribute(
    "assembly.dropped.reasons",
    "string[]",
    "The rule that took each.",
    values=tuple(DecisionReason),
    parallel_to=DROPPED_ITEMS,
)
COMPACTED_COUNT: Final = _attribute(
    "assembly.compacted.count", "int", "Events of the input for which another one stands in the output."
)
COMPACTED_TOKENS: Final = _attribute("assembly.compacted.tokens", "int", "Their tokens.")
COMPACTED_ITEMS: Final = _attribute("assembly.compacted.items", "string[]", "Items that were newly compacted.")
RETURNED_ITEMS: Final = _attribute(
    "assembly.returned.items", "string[]", "Items that had left before and are in the output again."
)
INJECTED_TOKENS: Final = _attribute("assembly.injected.tokens", "int", "Tokens of the injected events.")
INJECTED_ITEMS: Final = _attribute("assembly.injected.items", "string[]", "Items that were newly injected.")
WITHDRAWN_ITEMS: Final = _attribute("assembly.withdrawn.items", "string[]", "Items that their source no longer offers.")
PAIRS_BROKEN: Final = _attribute(
    "assembly.pairs.broken",
    "int",
    "Events of the output that lost the other half of their pair; never 0.",
    "Tool results without their call, and tool calls without all their results. A call that still waits for its result"
    " is none: no later response exists, or it explicitly awaits an approval. Model APIs refuse a prompt with one.",
)

# The policy

POLICY_NAME: Final = _attribute(
    "assembly.policy.name",
    "string",
    "The policy.",
    "Its `name`, else its class; for a framework's own reducer a fixed name, such as `trim_messages`.",
)
POLICY_KIND: Final = _attribute(
    "assembly.policy.kind", "string", "Whether it adds or takes away.", values=(INJECTION, REDUCTION)
)
STEPS: Final = _attribute(
    "assembly.steps",
    "int",
    "The policies that ran: how many `apply_policy` spans belong under this one.",
    "A framework's chain need not be the same each time; that of an assembler is.",
)
POLICY_INDEX: Final = _attribute("assembly.policy.index", "int", "Its place in the chain, from 0.")
POLICY_CONFIG: Final = _attribute(
    "assembly.policy.config", "string", "Its settings as JSON: numbers, booleans and enum values, never a text."
)

# A view of a network of agents

VIEW_NAME: Final = _attribute(
    "assembly.view.name", "string", "The view by which one agent sees what a network of agents has said."
)
ENVELOPES_IN: Final = _attribute("assembly.envelopes.in", "int", "Envelopes that the view was made of.")
ENVELOPES_OUT: Final = _attribute("assembly.envelopes.out", "int", "Envelopes of which something is in the view.")

# Blocks and their compaction

BLOCKS_KEPT: Final = _attribute("assembly.blocks.kept", "int", "Blocks kept, whole or with some of their items cut.")
BLOCKS_COMPACTED: Final = _attribute("assembly.blocks.compacted", "int", "Blocks for which a shorter text stands.")
BLOCKS_DROPPED: Final = _attribute("assembly.blocks.dropped", "int", "Blocks of which nothing is in the prompt.")
BLOCKS_NAMES: Final = _attribute(
    "assembly.blocks.names",
    "string[]",
    f"Blocks that have no span of their own, past {MAX_BLOCK_SPANS}, in decision order.",
)
BLOCKS_OUTCOMES: Final = _attribute(
    "assembly.blocks.outcomes",
    "string[]",
    "What happened to each.",
    values=tuple(DecisionOutcome),
    parallel_to=BLOCKS_NAMES,
)
BLOCKS_REASONS: Final = _attribute(
    "assembly.blocks.reasons",
    "string[]",
    "The rule that decided each.",
    values=tuple(DecisionReason),
    parallel_to=BLOCKS_NAMES,
)
BLOCKS_TOKENS: Final = _attribute(
    "assembly.blocks.tokens", "int[]", "Tokens of each in the prompt.", parallel_to=BLOCKS_NAMES
)
BLOCK_NAME: Final = _attribute("assembly.block.name", "string", "The block, as its author called it.")
BLOCK_KIND: Final = _attribute(
    "assembly.block.kind", "string", "What it is for; its priority says so.", values=tuple(EventKind)
)
BLOCK_PRIORITY: Final = _attribute(
    "assembly.block.priority", "int", "1 for what is never optional, up to 9 for what is cut first."
)
BLOCK_CUTTABLE: Final = _attribute("assembly.block.cuttable", "boolean", "Whether it may be cut, compacted or dropped.")
BLOCK_MIN_TOKENS: Final = _attribute(
    "assembly.block.min_tokens", "int", "Its floor: so many tokens are reserved for it, or it is dropped."
)
BLOCK_ITEMS: Final = _attribute("assembly.block.items", "string[]", "Its items, kept or not.")
BLOCK_CUT: Final = _attribute(
    "assembly.block.cut", "string", "How it gives way where it does not fit.", values=tuple(Cut)
)
BLOCK_ORDER: Final = _attribute(
    "assembly.block.order",
    "string[]",
    "Its items that are not out from the start, the one that is cut last first.",
    "With the charges, the floors and what each block takes whole, every decision can be worked out again.",
)
BLOCK_CHARGES: Final = _attribute(
    "assembly.block.charges",
    "int[]",
    "What each is charged as it is taken in: its tokens, and at most what joining it adds.",
    parallel_to=BLOCK_ORDER,
)
BLOCK_ATOMS: Final = _attribute(
    "assembly.block.atoms",
    "int[]",
    "How many items of `assembly.block.order`, from its beginning, are kept or dropped together, each time.",
)
BLOCK_COST: Final = _attribute(
    "assembly.block.cost", "int", "Tokens that it takes whole, without the items that are out from the start."
)
BLOCK_ENOUGH: Final = _attribute(
    "assembly.block.enough", "int", "How many items of `assembly.block.order` it takes to be worth its floor."
)
BLOCK_EVENTS: Final = _attribute(
    "assembly.block.events", "int", "How many items of `assembly.block.order` are messages of their own, not texts."
)
BLOCK_LOSERS: Final = _attribute(
    "assembly.block.losers", "string[]", "Its items that are out because another says the same, or a newer version."
)
BLOCK_WINNERS: Final = _attribute(
    "assembly.block.winners", "string[]", "The item that stands for each.", parallel_to=BLOCK_LOSERS
)
DECISION_OUTCOME: Final = _attribute(
    "assembly.decision.outcome",
    "string",
    "What happened.",
    "A block is `kept` also where some of its items were cut: `assembly.decision.reason` then says by which rule.",
    values=tuple(DecisionOutcome),
)
DECISION_REASON: Final = _attribute(
    "assembly.decision.reason", "string", "The rule that decided.", values=tuple(DecisionReason)
)
ITEMS_IN: Final = _attribute("assembly.items.in", "int", "Items of the block.")
ITEMS_OUT: Final = _attribute(
    "assembly.items.out", "int", "Items of the block in the prompt, those that compaction made included."
)
ITEMS_INJECTED: Final = _attribute("assembly.items.injected", "int", "Items that compaction made.")
COMPACTION_COMPACTOR: Final = _attribute(
    "assembly.compaction.compactor", "string", "The compactor's class or function name."
)
COMPACTION_ATTEMPT: Final = _attribute(
    "assembly.compaction.attempt", "int", "Which attempt it is, from 1, over all compactors of one compaction."
)
COMPACTION_TARGET: Final = _attribute(
    "assembly.compaction.target", "int", "Tokens that the compactor was asked to keep to."
)
COMPACTION_OUTCOME: Final = _attribute(
    "assembly.compaction.outcome",
    "string",
    "How the attempt ended.",
    "In all cases but `compacted` the original is still there: another attempt follows, or the original is cut by the"
    " block's rule.",
    values=tuple(CompactionOutcome),
)
COMPACTION_PROVENANCE: Final = _attribute(
    "assembly.compaction.provenance",
    "string[]",
    "The items that it stands for: the leaves, also where a summary was compacted once more.",
)
COMPACTION_RESULT: Final = _attribute(
    "assembly.compaction.result", "string", "The ordinal of what was made; lossy, always."
)

# Alerts, halts, errors

ALERTS_DELIVERED: Final = _attribute(
    "assembly.alerts.delivered",
    "int",
    "Observer alerts shown to the model here for the first time; one whose model call failed is shown again, and counts"
    " once.",
)
HALTS_EMITTED: Final = _attribute(
    "assembly.halts.emitted",
    "int",
    "Halts that this span's work brought about; 1 or more wherever an `assembly.halt` event stands.",
)
ALERT_SOURCE: Final = _attribute("assembly.alert.source", "string", "The observer that raised the alert.")
ALERT_SEVERITY: Final = _attribute(
    "assembly.alert.severity", "string", "How bad it is; `fatal` halts.", values=tuple(Severity)
)
ALERT_MESSAGE: Final = _attribute(
    "assembly.alert.message", "string", f"The observer's words, cut at {MAX_ALERT_MESSAGE} characters."
)
ALERT_FINGERPRINT: Final = _attribute(
    "assembly.alert.fingerprint", "string", "A digest of source, severity and message: the same for the same alert."
)
HALT_REASON: Final = _attribute(
    "assembly.halt.reason", "string", f"Why, as whoever halted says it, cut at {MAX_ALERT_MESSAGE} characters."
)
HALT_SOURCE: Final = _attribute("assembly.halt.source", "string", "Who halted.")
ERROR_TYPE: Final = _attribute(
    "error.type",
    "string",
    f"`{ERROR_CONTEXT_OVERFLOW}`, `{ERROR_ASSEMBLY_HALT}`, `{ERROR_CANCELLED}`, or the class of the exception that was "
    "raised, with its module unless it is built in.",
    "Of a policy that raised, the class of what it raised. On a `compact_block` in which nothing was, its outcome.",
)
EXCEPTION_TYPE: Final = _attribute("exception.type", "string", "The class of the exception that was raised.")
EXCEPTION_STACKTRACE: Final = _attribute(
    "exception.stacktrace",
    "string",
    "The frames of its stack: files, lines, functions.",
    "Never its message, nor those of its causes: they quote what the policy was given.",
)

# Content

GEN_AI_SYSTEM_INSTRUCTIONS: Final = _attribute(
    "gen_ai.system_instructions", "string", "The prompts of the output, as GenAI's JSON, redacted.", opt_in=True
)

# On the span of the model call that the prompt is sent with, whoever makes it

GEN_AI_CONVERSATION_COMPACTED: Final = _attribute(
    "gen_ai.conversation.compacted",
    "boolean",
    "True where something was dropped or compacted on the way to this call, as GenAI defines it; never false.",
)

# On metrics alone

COMPONENT: Final = _attribute("assembly.component", "string", "The part of the telemetry that failed.")
