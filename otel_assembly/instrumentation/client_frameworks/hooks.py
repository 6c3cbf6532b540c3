"""The frameworks without an instrumentor of their own: the functions that run an agent, and the reducers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from otel_assembly.instrumentation.hooks import LazyWrappers, in_package
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from otel_assembly.instrumentation.client_frameworks import agents, dspy_engine, reducers
else:
    agents, dspy_engine, reducers = (
        LazyWrappers(f"{__package__}.{module}") for module in ("agents", "dspy_engine", "reducers")
    )

_RUN: Final = "agents' names and runs"
_ENGINE: Final = "clients.engines.lm15_engine"
_REQUESTS: Final = "requests to models"
_COMPRESSION: Final = "compression.manager"
_SHORTENED: Final = "tool results that are shortened"
_FILTERED: Final = "tool calls that the history lacks"
_HISTORY: Final = "messages that limits of the history drop"
_SUMMARIES: Final = "summaries of long histories"


class SmolagentsInstrumentor(AssemblyInstrumentor):
    """Instruments the agents of smolagents: their names and runs."""

    framework = "smolagents"
    requires = ("smolagents >= 1.20, < 2",)
    hooks: ClassVar = in_package(
        "smolagents",
        ("agents", "MultiStepAgent.run", agents.named_run, _RUN),
        ("local_python_executor", "timeout", agents.smolagents_timeout, "runs of agents that code calls", ">= 1.24"),
    )


class AgnoInstrumentor(AssemblyInstrumentor):
    """Instruments the agents and teams of Agno: their names, sessions and runs."""

    framework = "agno"
    requires = ("agno >= 2.5, < 4",)
    hooks: ClassVar = in_package(
        "agno",
        ("agent.agent", "Agent.run Agent.arun Agent.continue_run Agent.acontinue_run", agents.agno_run, _RUN),
        ("team.team", "Team.run Team.arun", agents.agno_run, _RUN),
        ("session.agent", "AgentSession.get_messages", reducers.agno_history, _HISTORY),
        ("session.team", "TeamSession.get_messages", reducers.agno_history, _HISTORY),
        ("agent._messages", "filter_tool_calls", reducers.agno_filter, _FILTERED),
        ("team._messages", "filter_tool_calls", reducers.agno_filter, _FILTERED),
        ("agent._messages", "apply_compaction aapply_compaction", reducers.agno_compact, _SUMMARIES, ">= 3.1.10"),
        (_COMPRESSION, "CompressionManager.compress CompressionManager.acompress", reducers.agno_compress, _SHORTENED),
    )


class CrewAIInstrumentor(AssemblyInstrumentor):
    """Instruments the crews and agents of CrewAI: their names and runs, and the summaries of long histories."""

    framework = "crewai"
    requires = ("crewai >= 1.15, < 2",)
    hooks: ClassVar = in_package(
        "crewai",
        ("agent.core", "Agent.execute_task Agent.aexecute_task", agents.crewai_agent_run, _RUN),
        ("agent.core", "Agent.kickoff Agent.kickoff_async", agents.crewai_agent_run, _RUN),
        ("crew", "Crew.kickoff Crew.akickoff", agents.crewai_crew_run, _RUN),
        ("utilities.agent_utils", "summarize_messages", reducers.crewai_summarize, _SUMMARIES, "< 1.15.29"),
        ("llms.context_window", "summarize_messages", reducers.crewai_llm_summarize, _SUMMARIES, ">= 1.15.29"),
    )


class DSPyInstrumentor(AssemblyInstrumentor):
    """Instruments the modules of DSPy, their names and runs, and its own clients of models."""

    framework = "dspy"
    requires = ("dspy >= 3, < 4",)
    hooks: ClassVar = in_package(
        "dspy",
        ("primitives.module", "Module.__call__ Module.acall", agents.dspy_run, _RUN),
        (_ENGINE, "LM15Engine.complete LM15Engine.stream", dspy_engine.request, _REQUESTS, ">= 3.4"),
        (_ENGINE, "AsyncLM15Engine.complete AsyncLM15Engine.stream", dspy_engine.request, _REQUESTS, ">= 3.4"),
    )
