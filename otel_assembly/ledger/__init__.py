"""One conversation: item ids, what each assembly did, and what changed since the one before."""

__all__: list[str] = []
