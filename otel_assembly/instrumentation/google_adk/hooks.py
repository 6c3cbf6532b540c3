"""The hooks of Google ADK."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.google_adk import calls, contents
else:
    calls, contents = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "contents"))

_BEFORE, _ASKS, _ADDS = "before_model_callback", "generate_content_async", "process_llm_request"
_TURN, _PAIRS = "BaseLlmFlow", "how results are put to their calls"
#: What makes contents of events, and the release since which it does so by a function of its own.
_CONTENTS: Final = (
    ("_get_contents", contents.built, "what a session holds", "2"),
    ("_apply_rewinds", contents.rewinds, "what was rewound", "2.6"),
    ("_process_compaction_events", contents.compacts, "what summaries stand for", "2"),
    ("_present_other_agent_message", contents.retells, "what other agents have said", "2"),
    ("_drop_orphaned_function_responses", contents.rearranges, _PAIRS, "2.8"),
    ("_rearrange_events_for_latest_function_response", contents.rearranges, _PAIRS, "2"),
    ("_rearrange_events_for_async_function_responses_in_history", contents.rearranges, _PAIRS, "2"),
    ("drop_orphaned_function_calls", contents.rearranges, _PAIRS, "2.10"),
    ("_add_instructions_to_user_content", calls.instructions, "instructions among the messages", "2"),
    ("_add_model_input_context_to_user_content", calls.model_input, "what a run is given for its models", "2.4"),
)
#: Where that stands, in which releases.
_PLACES: Final = {"contents": "<2.10", "context._contents": ">=2.10"}


class GoogleADKInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Google ADK's agents: contents, compaction, plugins, models, runs."""

    framework = "google_adk"
    requires = ("google-adk >= 2, < 3",)
    rows: ClassVar = {"google.adk.models.llm_request": f"{__package__}.messages"}
    hooks: ClassVar = (
        *in_package(
            "google.adk",
            ("runners", "Runner.run_async", calls.run, "a run that has no span of ADK's as one trace"),
            ("flows.llm_flows.base_llm_flow", f"{_TURN}.run_async", calls.turns, "which agent calls its model"),
            ("flows.llm_flows.base_llm_flow", f"{_TURN}._preprocess_async", calls.prepares, "what is prepared for it"),
            ("flows.llm_flows.base_llm_flow", f"{_TURN}._handle_{_BEFORE}", calls.called_back, "what callbacks edit"),
            ("apps.compaction", "_estimate_prompt_token_count", contents.apart, "that contents are only counted"),
            ("apps.compaction", "_summarize_events_with_trace", contents.summarises, "summaries, between runs as well"),
            (
                "plugins.base_plugin",
                f"BasePlugin.{_BEFORE}",
                SubclassHook.for_method(_BEFORE, calls.plugin),
                "plugins' edits",
            ),
            ("tools.base_tool", f"BaseTool.{_ADDS}", SubclassHook.for_method(_ADDS, calls.tool), "what tools add"),
            ("models.base_llm", f"BaseLlm.{_ASKS}", SubclassHook(_ASKS, calls.client_called), "what a model receives"),
            ("models.apigee_llm", f"CompletionsHTTPClient.{_ASKS}", calls.completions, "what Apigee's proxy receives"),
        ),
        *(
            Hook(f"google.adk.flows.llm_flows.{module}", target, wrap, purpose, f"{versions},>={since}")
            for module, versions in _PLACES.items()
            for target, wrap, purpose, since in _CONTENTS
        ),
    )
