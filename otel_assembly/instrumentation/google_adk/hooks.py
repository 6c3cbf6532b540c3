"""The hooks of Google ADK: which of its functions are wrapped, and what their wrappers record."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import Hook, LazyWrappers, SubclassHook, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.google_adk import calls, contents
else:
    calls, contents = (LazyWrappers(f"{__package__}.{module}") for module in ("calls", "contents"))

_FLOW, _APPS = "flows.llm_flows.base_llm_flow", "apps.compaction"
_ESTIMATE, _SUMMARIZE = "_estimate_prompt_token_count", "_summarize_events_with_trace"
_CALLBACK, _GENERATE = "before_model_callback", "generate_content_async"
_APIGEE: Final = f"CompletionsHTTPClient.{_GENERATE}"
_PLUGINS: Final = SubclassHook.for_method(_CALLBACK, calls.plugin_callback)
_TOOLS: Final = SubclassHook.for_method("process_llm_request", calls.tool_request)
_MODELS: Final = SubclassHook(_GENERATE, calls.client_called)
_RESULTS: Final = "tool results that are moved or dropped to fit their calls"
#: The functions that turn events into contents, with the recorded data, and the release that introduced each.
_CONTENTS: Final = (
    ("_get_contents", contents.get_contents, "the contents of a session's events", "2"),
    ("_apply_rewinds", contents.apply_rewinds, "events that a rewind drops", "2.6"),
    ("_process_compaction_events", contents.process_compaction_events, "events that summaries replace", "2"),
    ("_present_other_agent_message", contents.rewrite_agent_message, "rewritten messages of other agents", "2"),
    ("_drop_orphaned_function_responses", contents.arrange_tool_results, _RESULTS, "2.8"),
    ("_rearrange_events_for_latest_function_response", contents.arrange_tool_results, _RESULTS, "2"),
    ("_rearrange_events_for_async_function_responses_in_history", contents.arrange_tool_results, _RESULTS, "2"),
    ("drop_orphaned_function_calls", contents.arrange_tool_results, _RESULTS, "2.10"),
    ("_add_instructions_to_user_content", calls.instructions, "dynamic instructions added to the messages", "2"),
    ("_add_model_input_context_to_user_content", calls.model_input, "model input context added to the messages", "2.4"),
)
#: The modules that contain these functions, and the releases in which they do.
_CONTENTS_MODULES: Final = {"contents": "<2.10", "context._contents": ">=2.10"}


class GoogleADKInstrumentor(AssemblyInstrumentor):
    """Instruments the context assembly of Google ADK's agents: contents, compaction, plugins, models, runs."""

    framework = "google_adk"
    requires = ("google-adk >= 2, < 3",)
    rows: ClassVar = {"google.adk.models.llm_request": f"{__package__}.messages"}
    hooks: ClassVar = (
        *in_package(
            "google.adk",
            ("runners", "Runner.run_async", calls.run, "runs as one trace if ADK's own spans are not recorded"),
            (_FLOW, "BaseLlmFlow.run_async", calls.flow_run, "which agent calls its model"),
            (_FLOW, "BaseLlmFlow._preprocess_async", calls.preprocess, "requests to models"),
            (_FLOW, f"BaseLlmFlow._handle_{_CALLBACK}", calls.before_model_callbacks, "edits by an agent's callbacks"),
            (_APPS, _ESTIMATE, contents.outside_model_call, "token estimates, which are no model calls"),
            (_APPS, _SUMMARIZE, contents.summarize_events, "summaries, also those made between runs"),
            ("plugins.base_plugin", f"BasePlugin.{_CALLBACK}", _PLUGINS, "edits by plugins"),
            ("tools.base_tool", "BaseTool.process_llm_request", _TOOLS, "contents that tools add"),
            ("models.base_llm", f"BaseLlm.{_GENERATE}", _MODELS, "requests that models receive"),
            ("models.apigee_llm", _APIGEE, calls.completions, "requests that Apigee's proxy receives"),
        ),
        *(
            Hook(f"google.adk.flows.llm_flows.{module}", target, wrap, purpose, f"{versions},>={since}")
            for module, versions in _CONTENTS_MODULES.items()
            for target, wrap, purpose, since in _CONTENTS
        ),
    )
