"""Policies applied one after the other, and the end of an assembly."""
