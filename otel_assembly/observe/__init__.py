"""Assemblies that somebody else's code runs."""

from otel_assembly.observe.conversations import ObservedAssembler

__all__ = [
    "ObservedAssembler",
]
