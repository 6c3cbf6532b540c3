"""The frameworks' own suites: which tests of which release concern what we wrap, and what they need to run.

`upstream_suites.py` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PLUGIN = Path(__file__).parent / "upstream_plugin.py"
#: For AG2's network tests, which run on our protocols in the second run.
NETWORK_PLUGIN = Path(__file__).parent / "upstream_network_plugin.py"


@dataclass(frozen=True)
class Suite:
    """The tests of one distribution that concern what we wrap."""

    name: str
    distribution: str
    framework: str
    tests: tuple[str, ...]
    needs: tuple[str, ...]
    options: tuple[str, ...] = ()
    checkout: bool = False  # its source distribution has no tests
    plugin: Path = PLUGIN
    plugins: tuple[str, ...] = ()  # pytest plugins, beside this script, of the run with us
    variables: tuple[tuple[str, str], ...] = ()  # of its environment
    helpers: str = "tests"  # the folder from which its tests import their helpers
    extras: str = "otlp"  # ours, beside it

    @property
    def release(self) -> tuple[str, str]:
        name, _, version = self.distribution.partition("==")
        return name, version


SUITES = (
    Suite(
        "autogen-core",
        "autogen-core==0.7.5",
        "autogen",
        ("tests/test_model_context.py", "tests/test_memory.py", "tests/test_models.py", "tests/test_state.py"),
        ("autogen-agentchat==0.7.5", "autogen-ext[openai,ollama]==0.7.5", "pytest", "pytest-asyncio"),
        ("-o", "asyncio_mode=auto"),
    ),
    Suite(
        "autogen-agentchat",
        "autogen-agentchat==0.7.5",
        "autogen",
        tuple(
            f"tests/test_{name}.py"
            for name in (
                "agent",
                "assistant_agent",
                "code_executor_agent",
                "declarative_components",
                "group_chat",
                "group_chat_graph",
                "group_chat_nested",
                "group_chat_pause_resume",
                "society_of_mind_agent",
                "task_runner_tool",
            )
        ),
        (
            "autogen-core==0.7.5",
            "autogen-ext[openai,anthropic,mcp,ollama]==0.7.5",
            "mcp>=1.20,<1.24",
            "pytest",
            "pytest-asyncio",
            "pytest-mock",
        ),
    ),
    Suite(
        "langchain",
        "langchain==1.4.7",
        "langchain",
        ("tests/unit_tests/agents",),
        (
            "langchain-tests",
            "langchain-openai",
            "syrupy",
            "pytest",
            "pytest-asyncio",
            "pytest-mock",
            "pytest-socket",
            "toml",
            "blockbuster",
            "langgraph-checkpoint-sqlite",
            "lark",
            "packaging",
            "numpy",
        ),
        ("-o", "asyncio_mode=auto"),
    ),
    Suite(
        "langchain-core",
        "langchain-core==1.7.2",
        "langchain",
        ("tests/unit_tests/messages", "tests/unit_tests/runnables/test_runnable.py"),
        (
            "langchain==1.4.7",
            "langchain-tests",
            "syrupy",
            "pytest",
            "pytest-asyncio",
            "pytest-mock",
            "pytest-socket",
            "freezegun",
            "blockbuster",
            "grandalf",
            "responses",
            "numpy",
            "simsimd",
            "defusedxml",
        ),
        ("-o", "asyncio_mode=auto"),
    ),
    Suite(
        "agentscope",
        "agentscope==2.0.10",
        "agentscope",
        tuple(
            f"tests/{name}_test.py"
            for name in (
                "agent_basic",
                "agent_injection",
                "agent_interrupt",
                "agent_structured_output",
                "compress_context",
                "compress_tool_result",
                "hitl_external_execution",
                "hitl_mixed",
                "hitl_user_confirmation",
                "middleware",
                "middleware_background_acting",
                "middleware_budget",
                "middleware_filesystem_memory",
                "model_base",
                "model_count_tokens",
                "tracing",
            )
        ),
        ("agentscope[service,storage-sql,workspace-docker]==2.0.10", "aiosqlite", "pytest", "pytest-asyncio"),
        ("-o", "python_files=*_test.py", "-o", "asyncio_mode=auto"),
        checkout=True,
        plugins=("upstream_middleware",),
    ),
    Suite(
        "ag2",
        "ag2==1.2.1",
        "ag2",
        tuple(
            f"test/{name}.py"
            for name in (
                "agent/test_concurrent_asks",
                "agent/test_usage",
                "middleware/builtins/test_history_limiter",
                "middleware/test_agent_turns",
                "middleware/test_llm_call",
                "test_assembly",
                "test_compact",
            )
        ),
        ("ag2[openai]==1.2.1", "pytest", "pytest-asyncio", "dirty-equals"),
        ("-o", "asyncio_mode=auto"),
        checkout=True,
    ),
    Suite(
        "ag2-network",
        "ag2==1.2.1",
        "ag2",
        ("test/network",),
        ("ag2[openai]==1.2.1", "pytest", "pytest-asyncio", "dirty-equals", "watchdog>=4,<7", "websockets"),
        # The first asks for a role that our participants do not have, the second for a registry that is made late, the
        # third for a list where our graph has a tuple, the fourth for variables where no fold looks for them.
        (
            "-o",
            "asyncio_mode=auto",
            *(
                f"--deselect=test/network/{test}"
                for test in (
                    "test_adapter_edges.py::TestConsultingAdapter::test_validate_create_rejects_missing_respondent",
                    "test_sweeper_and_registry.py::test_default_transition_registry_singleton_is_lazy",
                    "test_workflow.py::TestGraphFactories::test_round_robin_factory",
                    "test_adapter_tools.py::test_build_packet_envelope_with_context_set",
                )
            ),
        ),
        checkout=True,
        plugin=NETWORK_PLUGIN,
    ),
    Suite(
        "pydantic-ai",
        "pydantic-ai-slim==2.33.0",
        "pydantic_ai",
        tuple(
            f"tests/{name}.py"
            for name in (
                "test_agent",
                "test_capabilities",
                "test_direct",
                "test_history_processor",
                "test_run_cancellation",
                "test_streaming",
                "test_tools",
                "test_usage_limits",
                "models/test_fallback",
                "models/test_instrumented",
                "models/test_model_function",
                "models/test_model_test",
            )
        ),
        (
            "pydantic-ai-slim[anthropic,logfire,openai]==2.33.0",
            "blockbuster>=1.5.26,<1.6",
            "clai==2.33.0",
            "dirty-equals>=0.9",
            "httpx>=0.27",
            "httpx2",
            "inline-snapshot>=0.32.5",
            "pydantic-evals==2.33.0",
            "pytest>=9.0.3",
            "pytest-mock>=3.14",
            "pytest-recording>=0.13.2",
        ),
        # Each of them compares every attribute of a model call's span, which we stamp.
        (
            "--deselect=tests/models/test_fallback.py::test_all_failed_instrumented",
            "--deselect=tests/models/test_instrumented.py::test_instrumented_model_stream",
            "--deselect=tests/models/test_instrumented.py::test_instrumented_model_stream_break",
            "--deselect=tests/models/test_instrumented.py::test_response_cost_error",
        ),
        checkout=True,
    ),
    Suite(
        "strands",
        "strands-agents==1.62.0",
        "strands",
        (
            *(
                f"tests/strands/{name}"
                for name in (
                    "_context_manager",
                    "agent",
                    "event_loop",
                    "hooks",
                    "injection",
                    "interventions",
                    "memory",
                    "middleware",
                    "multiagent",
                    "plugins",
                    "session",
                    "telemetry",
                    "vended_plugins",
                )
            ),
            *(
                f"tests/strands/models/{name}"
                for name in ("routing", "test_anthropic.py", "test_bedrock.py", "test_model.py", "test_openai.py")
            ),
        ),
        (
            "strands-agents[anthropic,litellm,openai,otel]==1.62.0",
            "moto>=5.1",
            "pytest>=9",
            "pytest-asyncio>=1",
            "pytest-timeout>=2",
            "tenacity>=9",
        ),
        # A2A is seen where the agent runs; of the last one a tool's definition is a mock.
        (
            "--ignore=tests/strands/multiagent/a2a",
            "--ignore=tests/strands/agent/test_a2a_agent.py",
            "--deselect=tests/strands/agent/test_agent_delegation.py::test_full_delegation_error_recovery",
        ),
        helpers=".",  # in its folder `tests` is one that is called as the package is
    ),
    Suite(
        "agent-framework",
        "agent-framework-core==1.13.0",
        "agent_framework",
        (
            *(
                f"tests/core/test_{name}.py"
                for name in (
                    "agents",
                    "as_tool_kwargs_propagation",
                    "clients",
                    "compaction",
                    "function_invocation_logic",
                    "harness_agent",
                    "harness_background_agents",
                    "harness_loop",
                    "harness_memory",
                    "harness_tool_approval",
                    "middleware",
                    "middleware_context_result",
                    "middleware_with_agent",
                    "middleware_with_chat",
                    "observability",
                    "sessions",
                    "telemetry",
                    "types",
                )
            ),
            "tests/workflow",
        ),
        (
            "agent-framework-openai",
            "agent-framework-orchestrations",
            "agent-framework-tools",
            "aiohttp",
            "graphviz",
            "mcp>=1.24,<2",
            "opentelemetry-sdk",
            "pytest",
            "pytest-asyncio",
            "pytest-timeout",
        ),
        ("-m", "not integration"),
        checkout=True,
    ),
    Suite(
        "haystack",
        "haystack-ai==3.1.0",
        "haystack",
        (
            *(
                f"test/components/{name}"
                for name in (
                    "agents",
                    "evaluators/test_llm_evaluator.py",
                    "extractors/image/test_llm_document_content_extractor.py",
                    "extractors/test_llm_metadata_extractor.py",
                    "generators/chat",
                    "query/test_query_expander.py",
                    "rankers/test_llm_ranker.py",
                    "routers/test_llm_messages_router.py",
                )
            ),
            "test/core/component",
            "test/core/pipeline",
            "test/core/super_component",
            "test/hooks",
            "test/tools",
            "test/tracing",
        ),
        (
            "arrow>=1.3",
            "azure-identity",
            "colorama==0.4.6",
            "numpy>=2",
            "pandas",
            "pillow",
            "pypdf",
            "pypdfium2",
            "pytest",
            "pytest-asyncio",
            "pytest-bdd",
            "pytest-rerunfailures",
            "rich",
            "structlog",
            "tiktoken",
        ),
        ("-m", "not integration and not slow"),
        checkout=True,
        variables=(("HAYSTACK_TELEMETRY_ENABLED", "False"),),
    ),
    Suite(
        "openai-agents",
        "openai-agents==0.24.0",
        "openai_agents",
        (
            "tests/memory",
            "tests/models/test_model_retry.py",
            *(
                f"tests/test_{name}.py"
                for name in (
                    "agent_as_tool",
                    "agent_hooks",
                    "agent_llm_hooks",
                    "agent_memory_leak",
                    "agent_prompt",
                    "agent_runner",
                    "agent_runner_streamed",
                    "agent_runner_sync",
                    "call_model_input_filter",
                    "call_model_input_filter_unit",
                    "cancel_streaming",
                    "extension_filters",
                    "global_hooks",
                    "guardrails",
                    "handoff_history_duplication",
                    "handoff_tool",
                    "hitl_error_scenarios",
                    "hitl_session_scenario",
                    "max_turns",
                    "run",
                    "run_hooks",
                    "run_internal_items",
                    "run_state",
                    "run_state_pending_input",
                    "run_step_execution",
                    "run_step_processing",
                    "runner_guardrail_resume",
                    "scripted_model",
                    "server_conversation_tracker",
                    "soft_cancel",
                    "stream_events",
                    "stream_input_guardrail_timing",
                    "tool_use_behavior",
                    "tracing",
                    "tracing_errors",
                    "tracing_errors_streamed",
                )
            ),
            "tests/extensions/test_tool_output_trimmer.py",
        ),
        (
            "openai-agents[encrypt,litellm,sqlalchemy]==0.24.0",
            "aiosqlite>=0.21",
            "fakeredis>=2.31.3",
            "inline-snapshot>=0.20.7",
            "pytest>=9.0.3",
            "pytest-asyncio",
            "pytest-mock>=3.14",
            "pytest-xdist",
            "rich",
            "textual",
        ),
        # The first two are cancelled in a model that has not handed on yet what it is given, the last has an item of no
        # kind.
        tuple(
            f"--deselect=tests/{test}"
            for test in (
                "test_agent_as_tool.py::test_agent_as_tool_resume_survives_cancellation_after_nested_output_commit",
                "test_agent_runner.py::test_conversation_lock_rewind_skips_when_no_snapshot",
            )
        ),
        helpers=".",  # among its tests is a folder of the name of a package that it needs
    ),
    Suite(
        "google-adk",
        "google-adk==2.0.0",
        "google_adk",
        tuple(
            f"tests/unittests/{name}"
            for name in ("agents", "apps", "flows", "plugins", "runners", "streaming", "workflow")
        ),
        ("anthropic", "mcp>=1.24,<2", "aiosqlite", "sqlalchemy", "pytest", "pytest-asyncio", "pytest-mock"),
        (
            "-o",
            "asyncio_mode=auto",
            # They ask for packages of Google's cloud, for A2A and for LiteLLM.
            *(
                f"--ignore=tests/unittests/{name}.py"
                for name in (
                    "agents/test_agent_config",
                    "agents/test_llm_agent_fields",
                    "agents/test_remote_a2a_agent",
                    "plugins/test_bigquery_agent_analytics_plugin",
                )
            ),
        ),
        checkout=True,
        extras="google-adk",  # it keeps the SDK below what the span file's exporter takes
    ),
    Suite(
        "semantic-kernel",
        "semantic-kernel==1.44.1",
        "semantic_kernel",
        tuple(
            f"tests/unit/{name}"
            for name in (
                "agents/chat_completion",
                "agents/orchestration",
                "agents/runtime",
                "agents/test_agent.py",
                "agents/test_group_chat",
                "agents/test_group_chat_strategies",
                "connectors/ai/anthropic",
                "connectors/ai/ollama",
                "connectors/ai/open_ai",
                "connectors/ai/test_function_choice_behavior.py",
                "contents",
                "core_plugins/test_conversation_summary_plugin_unit.py",
                "functions",
                "kernel",
                "processes/local_runtime",
                "services",
                "utils/agent_diagnostics",
                "utils/model_diagnostics",
            )
        ),
        (
            "semantic-kernel[anthropic,ollama]==1.44.1",
            "opentelemetry-sdk",
            "pytest",
            "pytest-asyncio",
            "pytest-timeout",
        ),
        (
            "-o",
            "asyncio_mode=auto",
            # They ask for the packages of every provider and store.
            "--ignore=tests/unit/connectors/ai/open_ai/test_openai_request_settings.py",
            "--ignore=tests/unit/utils/model_diagnostics/test_connector_decorated.py",
            # The history that they give a service is a mock, in which nobody can read.
            *(
                f"--deselect=tests/unit/connectors/ai/anthropic/services/test_anthropic_chat_completion.py::test_{test}"
                for test in (
                    "anthropic_sdk_exception",
                    "anthropic_sdk_exception_streaming",
                    "with_different_execution_settings",
                    "with_different_execution_settings_stream",
                )
            ),
        ),
        checkout=True,
    ),
    Suite(
        "llama-index",
        "llama-index-core==0.14.14",
        "llama_index",
        tuple(
            f"tests/{name}"
            for name in (
                "agent/react",
                "agent/workflow",
                "chat_engine",
                "llms",
                "memory",
                "query_engine",
                "response_synthesizers",
                "storage/chat_store",
            )
        ),
        ("openai", "pytest", "pytest-asyncio", "pytest-mock", "aiosqlite"),
        checkout=True,
    ),
    Suite(
        "llama-index-agents",
        "llama-index-core==0.14.21",
        "llama_index",
        tuple(
            f"tests/test_{name}.py"
            for name in ("context_store", "error_handling", "event_streaming", "human_in_the_loop")
        ),
        (
            "llama-index-workflows==2.20.0",
            "httpx",
            "psycopg[binary]",
            "pytest",
            "pytest-asyncio",
            "testcontainers[postgres]",
        ),
        ("-o", "addopts=", "-o", "pythonpath=src"),
        checkout=True,
    ),
)
