"""Collect the problems of a command and print them to standard error."""

from __future__ import annotations

import sys

from otel_assembly.cli.terminal import safe_text

#: The most problems that are printed in full.
_NAMED = 21


class Problems:
    """The problems that a command finds; only the first ones are printed in full, the others are counted."""

    def __init__(self) -> None:
        self.count = 0
        self._named: list[str] = []

    def add(self, problem: object) -> None:
        """Record a problem, which `print` prints on one line without control characters."""
        self.count += 1
        if len(self._named) < _NAMED:
            self._named.append(safe_text(problem))

    def print(self) -> None:
        """Print the first problems to standard error, and the number of the others."""
        for problem in self._named:
            print(f"otel-assembly: {problem}", file=sys.stderr)
        if self.count > len(self._named):
            print(f"otel-assembly: and {self.count - len(self._named):,} more problems", file=sys.stderr)
