"""Prompts built from sources: permission, evidence, budget, order (the CLEAR pass)."""
