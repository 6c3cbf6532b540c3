"""Chains of policies: their configuration, their application to one assembly, and the end of that assembly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly._internal.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from otel_assembly.chain.config import chain_from_config, chain_from_spec

__getattr__, __dir__ = lazy_attributes(__name__, {"chain_from_config": "config", "chain_from_spec": "config"})

__all__ = ["chain_from_config", "chain_from_spec"]
