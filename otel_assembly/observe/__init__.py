"""Assemblies that somebody else's code runs."""

from otel_assembly.observe.assembler import ObservedAssembler

__all__ = [
    "ObservedAssembler",
]
