"""Sessions between agents: a log that loses nothing, and views of it that are assemblies (seed 003)."""
