"""Instrumentation of agent frameworks whose model calls are recorded at the providers' clients.

Each framework here is a few rows of a table: the functions that run an agent, and its reducers.
"""

from otel_assembly.instrumentation.client_frameworks.hooks import (
    AgnoInstrumentor,
    CrewAIInstrumentor,
    DSPyInstrumentor,
    SmolagentsInstrumentor,
)

__all__ = ["AgnoInstrumentor", "CrewAIInstrumentor", "DSPyInstrumentor", "SmolagentsInstrumentor"]
