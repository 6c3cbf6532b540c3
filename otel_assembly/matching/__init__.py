"""Which events that came out are those that went in: pure comparison of sequences."""
