"""Instrumentation of LiteLLM: programs that call its functions themselves, without an agent framework."""

from otel_assembly.instrumentation.litellm.hooks import LiteLLMInstrumentor

__all__ = ["LiteLLMInstrumentor"]
