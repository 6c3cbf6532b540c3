"""What could not be read, on standard error: the first of it by name, the rest as a count."""

from __future__ import annotations

import sys

from otel_assembly.cli.terminal import safe_text

#: So many are named.
_NAMED = 21


class Problems:
    """Problems as they are met, said together when all is read."""

    def __init__(self) -> None:
        self.count = 0
        self._named: list[str] = []

    def add(self, problem: object) -> None:
        """Take a problem down."""
        self.count += 1
        if len(self._named) < _NAMED:
            self._named.append(safe_text(problem))

    def say(self) -> None:
        """Print them."""
        for problem in self._named:
            print(f"otel-assembly: {problem}", file=sys.stderr)
        if self.count > len(self._named):
            print(f"otel-assembly: and {self.count - len(self._named):,} more like these", file=sys.stderr)
