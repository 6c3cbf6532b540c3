"""Policies applied one after the other, and the end of an assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.faces import face, homes

if TYPE_CHECKING:
    from otel_assembly.chain.config import chain_from_config, chain_from_spec

__getattr__, __dir__ = face(
    __name__,
    homes(
        {
            "config": "chain_from_config chain_from_spec",
        }
    ),
)

__all__ = [
    "chain_from_config",
    "chain_from_spec",
]
