"""The ledger of one conversation: item ids, the record of each assembly, and the numbers of its items."""

__all__: list[str] = []
