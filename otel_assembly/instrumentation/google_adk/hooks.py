"""The hooks of Google ADK."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Following, Wraps, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.google_adk import calls, contents, reducers
else:
    calls, contents, reducers = (Wraps(f"{__package__}.{name}") for name in ("calls", "contents", "reducers"))

_FLOWS: Final = "google.adk.flows.llm_flows"
_REARRANGES: Final = (
    "_drop_orphaned_function_responses _rearrange_events_for_latest_function_response"
    " _rearrange_events_for_async_function_responses_in_history drop_orphaned_function_calls"
)


class GoogleADKInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Google ADK's agents: contents, compaction, plugins, callbacks, models, runs."""

    framework = "google_adk"
    requires = ("google-adk >= 2.13, < 3",)
    rows: ClassVar = {"google.genai.types": f"{__package__}.messages"}
    hooks: ClassVar = (
        *in_module(
            f"{_FLOWS}.base_llm_flow",
            ("BaseLlmFlow.run_async", calls.turns, "which agent calls its model"),
            ("BaseLlmFlow._preprocess_async", calls.prepares, "who asks, and what is prepared for it"),
            ("BaseLlmFlow._handle_before_model_callback", reducers.called_back, "what an agent's callbacks edit"),
        ),
        *in_module(
            f"{_FLOWS}.context._contents",
            ("_get_contents", contents.built, "what a session holds"),
            ("_apply_rewinds", contents.rewinds, "what was rewound"),
            ("_process_compaction_events", contents.compacts, "what summaries stand for"),
            ("_present_other_agent_message", contents.retells, "what other agents have said"),
            (_REARRANGES, contents.rearranges, "how results are put to their calls"),
            ("_add_instructions_to_user_content", reducers.instructions, "instructions among the messages"),
            ("_add_model_input_context_to_user_content", reducers.model_input, "what a run is given for its models"),
        ),
        *in_module(
            "google.adk.apps.compaction",
            ("_summarize_events_with_trace", contents.summarises, "summaries, which are made between runs as well"),
        ),
        *in_module(
            "google.adk.plugins.base_plugin",
            ("BasePlugin.before_model_callback", reducers.plugin, "what plugins edit"),
            followed=True,
        ),
        *in_module(
            "google.adk.tools.base_tool",
            ("BaseTool.process_llm_request", reducers.tool, "what tools add, such as memories"),
            followed=True,
        ),
        *in_module("google.adk.runners", ("Runner.run_async", calls.run, "a run without a span of ADK's as one trace")),
        *in_module(
            "google.adk.models.base_llm",
            (
                "BaseLlm.generate_content_async",
                Following("generate_content_async", calls.client_called),
                "what a model receives, streamed or not",
            ),
        ),
    )
