"""Recording of assemblies that a framework or another program runs."""

from otel_assembly.observe.conversations import ObservedAssembler

__all__ = ["ObservedAssembler"]
