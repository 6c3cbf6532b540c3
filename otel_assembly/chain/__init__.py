"""Policies applied one after the other, and the end of an assembly."""

from otel_assembly.chain.config import chain_from_config, chain_from_spec

__all__ = [
    "chain_from_config",
    "chain_from_spec",
]
