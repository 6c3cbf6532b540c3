"""The append-only log of events, views of it, and what its items take in tokens."""
