"""One conversation: item ids, what each assembly did, and what it tells of items."""

__all__: list[str] = []
