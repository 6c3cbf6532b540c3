"""What watches a framework without an instrumentor of OpenTelemetry's shape, given that shape."""

from __future__ import annotations

from opentelemetry import trace


class _PydanticAI:
    """Pydantic AI's own telemetry, which all that watch it are built on."""

    def uninstrument(self):
        from pydantic_ai import Agent

        Agent.instrument_all(False)


class Logfire(_PydanticAI):
    """Pydantic Logfire, whose tracer provider is the program's."""

    def provide(self, processor):
        import logfire

        logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[processor])

    def instrument(self):
        import logfire

        logfire.instrument_pydantic_ai()


class OpenInferencePydanticAI(_PydanticAI):
    """OpenInference's span processor for Pydantic AI."""

    def instrument(self):
        from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor
        from pydantic_ai import Agent

        trace.get_tracer_provider().add_span_processor(OpenInferenceSpanProcessor())
        Agent.instrument_all()


class OpenInferenceAgentFramework:
    """OpenInference's span processor for Microsoft's agent-framework, and that framework's own telemetry."""

    def instrument(self):
        from agent_framework.observability import enable_instrumentation
        from openinference.instrumentation.agent_framework import AgentFrameworkToOpenInferenceProcessor

        trace.get_tracer_provider().add_span_processor(AgentFrameworkToOpenInferenceProcessor())
        enable_instrumentation(enable_sensitive_data=True)

    def uninstrument(self):
        from agent_framework.observability import OBSERVABILITY_SETTINGS

        OBSERVABILITY_SETTINGS.enable_instrumentation = False
