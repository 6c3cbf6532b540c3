"""Problems that are printed to standard error: the first ones in full, the others as a number."""

from __future__ import annotations

import sys

from otel_assembly.cli.terminal import safe_text

#: The most problems that are printed in full.
_NAMED = 21


class Problems:
    """Problems that are collected during a command and printed together."""

    def __init__(self) -> None:
        self.count = 0
        self._named: list[str] = []

    def add(self, problem: object) -> None:
        """Add a problem."""
        self.count += 1
        if len(self._named) < _NAMED:
            self._named.append(safe_text(problem))

    def print(self) -> None:
        """Print the problems to standard error."""
        for problem in self._named:
            print(f"otel-assembly: {problem}", file=sys.stderr)
        if self.count > len(self._named):
            print(f"otel-assembly: and {self.count - len(self._named):,} more problems", file=sys.stderr)
