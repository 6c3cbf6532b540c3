"""Names of spans, events and attributes, and limits, of this library's semantic conventions.

The registry in ``registry/`` defines what each name means and where it is used. `conventions_registry` reads the
registry, and `conventions_check` compares exported telemetry with it.
"""

from __future__ import annotations

from typing import Final

from otel_assembly.errors import ERROR_ASSEMBLY_HALT as ERROR_ASSEMBLY_HALT
from otel_assembly.errors import ERROR_CANCELLED as ERROR_CANCELLED
from otel_assembly.errors import ERROR_CONTEXT_OVERFLOW as ERROR_CONTEXT_OVERFLOW

SCOPE: Final = "otel_assembly"
"""The instrumentation scope of this library's spans, events and metrics, except the GenAI spans."""

MAX_ARRAY_BYTES: Final = 7 * 1024
"""The most bytes of all arrays of one span; longer arrays continue on `SPAN_LIST_ITEMS` spans.

With this limit, a batch of 512 spans (the SDK's default) stays below 4 MiB, the largest message that gRPC receivers
accept by default.
"""

MAX_BLOCK_SPANS: Final = 128
"""The most blocks of one allocation with a span; blocks that changed come first, the rest is listed in arrays.

Without a limit, 1,000 blocks per turn overflowed the queue of the SDK's batch processor, which drops spans silently.
"""

MAX_ALERT_MESSAGE: Final = 256
"""The most characters of an alert's message or a halt's reason; longer texts are truncated."""

MAX_METRIC_NAMES: Final = 100
"""The most values in a process of a metric attribute without a fixed set of values; later values become `OTHER`."""

SIBLING_INTERVAL_NS: Final = 1_000
"""Nanoseconds between the start times of sibling spans that are written together.

The difference keeps their order in backends that store microseconds.
"""

OTHER: Final = "_OTHER"

STATUS_CONTEXT_OVERFLOW: Final = "the context does not fit its budget"
STATUS_WINDOW_OVERFLOW: Final = "the context does not fit the model's window"
STATUS_PROVIDER_OVERFLOW: Final = "the model's provider refused the prompt as too long"
STATUS_ASSEMBLY_HALT: Final = "the conversation was halted"
STATUS_POLICY_FAILED: Final = "a policy failed"
STATUS_COMPACTION_FAILED: Final = "a compaction failed"
STATUS_POST_REFUSED: Final = "the post was refused"
STATUS_POST_UNSURE: Final = "it is unknown whether the post was accepted"
STATUS_HYDRATE_FAILED: Final = "the session could not be read"
STATUS_TURN_FAILED: Final = "the turn produced no answer"
STATUS_DESCRIPTIONS: Final = (
    STATUS_CONTEXT_OVERFLOW,
    STATUS_WINDOW_OVERFLOW,
    STATUS_PROVIDER_OVERFLOW,
    STATUS_ASSEMBLY_HALT,
    STATUS_POLICY_FAILED,
    STATUS_COMPACTION_FAILED,
    STATUS_POST_REFUSED,
    STATUS_POST_UNSURE,
    STATUS_HYDRATE_FAILED,
    STATUS_TURN_FAILED,
)
"""All status descriptions, some of which are followed by numbers.

An exception's message is never used, because it may quote the conversation.
"""

SPAN_ASSEMBLE_CONTEXT: Final = "assemble_context"
SPAN_APPLY_POLICY: Final = "apply_policy"
SPAN_ALLOCATE_BUDGET: Final = "allocate_budget"
SPAN_ALLOCATE_BLOCK: Final = "allocate_block"
SPAN_COMPACT_BLOCK: Final = "compact_block"
SPAN_LIST_ITEMS: Final = "list_items"
SPAN_INVOKE_AGENT: Final = "invoke_agent"
SPAN_HALT: Final = "halt"
SPAN_PROJECT_VIEW: Final = "project_view"
SPAN_POST_ENVELOPE: Final = "post_envelope"
SPAN_HYDRATE: Final = "hydrate"
SPAN_SERVE_TURN: Final = "serve_turn"

EVENT_OVERFLOW: Final = "assembly.overflow"
EVENT_ALERT: Final = "assembly.alert"
EVENT_HALT: Final = "assembly.halt"
EVENT_RESUMED: Final = "assembly.resumed"
EVENT_PROVIDER_EDIT: Final = "assembly.provider_edit"

# Identity of the assembly

FORMAT_VERSION: Final = "assembly.format.version"
READ_FORMAT: Final = 1
"""The value of `FORMAT_VERSION` that this version writes and reads. It increases with each incompatible change."""
ID: Final = "assembly.id"
NAME: Final = "assembly.name"
LEDGER_ID: Final = "assembly.ledger.id"
TURN: Final = "assembly.turn"
PREVIOUS_ID: Final = "assembly.previous.id"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
FRAMEWORK: Final = "assembly.framework"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
MODEL: Final = "assembly.model"
MODEL_WINDOW: Final = "assembly.model.window"

# Input and output

TOKENS_IN: Final = "assembly.tokens.in"
TOKENS_OUT: Final = "assembly.tokens.out"
TOKENS_METHOD: Final = "assembly.tokens.method"
TOKENS_ENCODING: Final = "assembly.tokens.encoding"
TOKENS_ESTIMATED_ITEMS: Final = "assembly.tokens.estimated.items"
EVENTS_IN: Final = "assembly.events.in"
EVENTS_OUT: Final = "assembly.events.out"
EVENTS_INJECTED: Final = "assembly.events.injected"
PROMPTS_IN: Final = "assembly.prompts.in"
PROMPTS_OUT: Final = "assembly.prompts.out"
PROMPT_SOURCES: Final = "assembly.prompt.sources"
PROMPT_TOKENS: Final = "assembly.prompt.tokens"
KIND_NAMES: Final = "assembly.kind.names"
KIND_TOKENS: Final = "assembly.kind.tokens"
INPUT_UNKNOWN: Final = "assembly.input.unknown"

# The provider

PROVIDER_HELD_EVENTS: Final = "assembly.provider.held_events"
PROVIDER_ALLOWED_EDITS: Final = "assembly.provider.allowed_edits"
PROVIDER_EDIT_TYPE: Final = "assembly.provider.edit.type"
PROVIDER_EDIT_REASON: Final = "assembly.provider.edit.reason"
PROVIDER_EDIT_CLEARED_TOKENS: Final = "assembly.provider.edit.cleared_tokens"
PROVIDER_EDIT_CLEARED_TOOL_USES: Final = "assembly.provider.edit.cleared_tool_uses"
PROVIDER_EDIT_CLEARED_THINKING_TURNS: Final = "assembly.provider.edit.cleared_thinking_turns"
PROVIDER_EDIT_CLEARED_BLOCKS: Final = "assembly.provider.edit.cleared_blocks"

# Budget, overflow, prefix

BUDGET_LIMIT: Final = "assembly.budget.limit"
BUDGET_FIXED: Final = "assembly.budget.fixed"
BUDGET_UTILIZATION: Final = "assembly.budget.utilization"
BUDGET_WINDOW: Final = "assembly.budget.window"
BUDGET_OUTPUT_RESERVE: Final = "assembly.budget.output_reserve"
BUDGET_USED: Final = "assembly.budget.used"
BUDGET_REMAINING: Final = "assembly.budget.remaining"
OVERFLOWED: Final = "assembly.overflowed"
OVERFLOW_TOKENS: Final = "assembly.overflow.tokens"
OVERFLOW_CAUSE: Final = "assembly.overflow.cause"
PREFIX_TOKENS: Final = "assembly.prefix.tokens"
PREFIX_HASH: Final = "assembly.prefix.hash"
PREFIX_BREAK: Final = "assembly.prefix.break"

# Items: new items, input and output of an assembly, dropped and compacted items

ARRIVED_ITEMS: Final = "assembly.arrived.items"
ARRIVED_KINDS: Final = "assembly.arrived.kinds"
ARRIVED_TOKENS: Final = "assembly.arrived.tokens"
ARRIVED_BYTES: Final = "assembly.arrived.bytes"
ARRIVED_ATOMS: Final = "assembly.arrived.atoms"
ARRIVED_CALLS: Final = "assembly.arrived.calls"
ARRIVED_CONTENTS: Final = "assembly.arrived.contents"
ARRIVED_SOURCES: Final = "assembly.arrived.sources"
OFFERED_ITEMS: Final = "assembly.offered.items"
KEPT_ITEMS: Final = "assembly.kept.items"
DROPPED_COUNT: Final = "assembly.dropped.count"
DROPPED_TOKENS: Final = "assembly.dropped.tokens"
NEWLY_DROPPED_COUNT: Final = "assembly.newly_dropped.count"
RESUMED_COUNT: Final = "assembly.resumed.count"
RESUMED_ITEMS: Final = "assembly.resumed.items"
DROPPED_UNLISTED_REASONS: Final = "assembly.dropped.unlisted_reasons"
DROPPED_REPORTED_COUNT: Final = "assembly.dropped.reported_count"
DROPPED_ITEMS: Final = "assembly.dropped.items"
DROPPED_REASONS: Final = "assembly.dropped.reasons"
COMPACTED_COUNT: Final = "assembly.compacted.count"
COMPACTED_TOKENS: Final = "assembly.compacted.tokens"
COMPACTED_ITEMS: Final = "assembly.compacted.items"
INJECTED_TOKENS: Final = "assembly.injected.tokens"
INJECTED_ITEMS: Final = "assembly.injected.items"
PAIRS_BROKEN: Final = "assembly.pairs.broken"

# The policy

POLICY_NAME: Final = "assembly.policy.name"
POLICY_KIND: Final = "assembly.policy.kind"
STEPS: Final = "assembly.steps"
POLICY_INDEX: Final = "assembly.policy.index"
POLICY_CONFIG: Final = "assembly.policy.config"

# A view of a network of agents

VIEW_NAME: Final = "assembly.view.name"
ENVELOPES_IN: Final = "assembly.envelopes.in"
ENVELOPES_OUT: Final = "assembly.envelopes.out"

# Sessions between agents

SESSION_TYPE: Final = "assembly.session.type"
SESSION_SEQUENCE: Final = "assembly.session.sequence"
ENVELOPE_TYPE: Final = "assembly.envelope.type"
POST_OUTCOME: Final = "assembly.post.outcome"
POST_CONFLICTS: Final = "assembly.post.conflicts"
HYDRATE_ENVELOPE_COUNT: Final = "assembly.hydrate.envelope_count"
HYDRATE_FROM_SNAPSHOT: Final = "assembly.hydrate.from_snapshot"
VIOLATION_KIND: Final = "assembly.violation.kind"

# Blocks and their compaction

BLOCKS_KEPT: Final = "assembly.blocks.kept"
BLOCKS_COMPACTED: Final = "assembly.blocks.compacted"
BLOCKS_DROPPED: Final = "assembly.blocks.dropped"
BLOCKS_NAMES: Final = "assembly.blocks.names"
BLOCKS_OUTCOMES: Final = "assembly.blocks.outcomes"
BLOCKS_REASONS: Final = "assembly.blocks.reasons"
BLOCKS_TOKENS: Final = "assembly.blocks.tokens"
BLOCK_NAME: Final = "assembly.block.name"
BLOCK_KIND: Final = "assembly.block.kind"
BLOCK_PRIORITY: Final = "assembly.block.priority"
BLOCK_CUTTABLE: Final = "assembly.block.cuttable"
BLOCK_MIN_TOKENS: Final = "assembly.block.min_tokens"
BLOCK_ITEMS: Final = "assembly.block.items"
BLOCK_CUT_STRATEGY: Final = "assembly.block.cut_strategy"
BLOCK_RANKED_ITEMS: Final = "assembly.block.ranked_items"
BLOCK_RANKED_TOKENS: Final = "assembly.block.ranked_tokens"
BLOCK_ATOM_SIZES: Final = "assembly.block.atom_sizes"
BLOCK_TOTAL_TOKENS: Final = "assembly.block.total_tokens"
BLOCK_MIN_ITEMS: Final = "assembly.block.min_items"
BLOCK_MESSAGE_COUNT: Final = "assembly.block.message_count"
BLOCK_SUPERSEDED_ITEMS: Final = "assembly.block.superseded_items"
BLOCK_SUPERSEDED_BY: Final = "assembly.block.superseded_by"
DECISION_OUTCOME: Final = "assembly.decision.outcome"
DECISION_REASON: Final = "assembly.decision.reason"
ITEMS_IN: Final = "assembly.items.in"
ITEMS_OUT: Final = "assembly.items.out"
ITEMS_INJECTED: Final = "assembly.items.injected"
COMPACTION_COMPACTOR: Final = "assembly.compaction.compactor"
COMPACTION_ATTEMPT: Final = "assembly.compaction.attempt"
COMPACTION_TARGET_TOKENS: Final = "assembly.compaction.target_tokens"
COMPACTION_OUTCOME: Final = "assembly.compaction.outcome"
COMPACTION_PROVENANCE: Final = "assembly.compaction.provenance"
COMPACTION_RESULT: Final = "assembly.compaction.result"

# Alerts, halts, errors

ALERTS_DELIVERED: Final = "assembly.alerts.delivered"
HALTS_EMITTED: Final = "assembly.halts.emitted"
ALERT_SOURCE: Final = "assembly.alert.source"
ALERT_SEVERITY: Final = "assembly.alert.severity"
ALERT_MESSAGE: Final = "assembly.alert.message"
ALERT_FINGERPRINT: Final = "assembly.alert.fingerprint"
HALT_REASON: Final = "assembly.halt.reason"
HALT_SOURCE: Final = "assembly.halt.source"
RESUME_REASON: Final = "assembly.resume.reason"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# Content

GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"

# On the model call's span, which another instrumentation may have created

GEN_AI_CONVERSATION_COMPACTED: Final = "gen_ai.conversation.compacted"

# On the GenAI spans of an agent's run, which `TracingMiddleware` starts

PENDING_CALLS: Final = "assembly.pending.calls"
PENDING_TOOLS: Final = "assembly.pending.tools"
TOOL_EXTERNAL: Final = "assembly.tool.external"
TOOL_STILL_RUNNING: Final = "assembly.tool.still_running"
TOOL_ARGUMENTS_CHANGED: Final = "assembly.tool.arguments_changed"
ERROR_TOOL: Final = "tool_error"
"""The ``error.type`` of a tool call whose error is passed to the model."""

# Only on metrics

COMPONENT: Final = "assembly.component"
COST_PART: Final = "assembly.cost.part"
