"""Assemblies that somebody else's code runs."""
