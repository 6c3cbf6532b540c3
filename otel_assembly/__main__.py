"""The command line: ``otel-assembly``, and ``python -m otel_assembly``. Ctrl-C ends it without a traceback."""

from __future__ import annotations

import os
import signal
from typing import Any


def main() -> int:
    """Run the command line, and return its exit status."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # the parent process turned Ctrl-C off
        from otel_assembly.cli import main as run

        return run()
    # During imports, an interrupt would print a traceback, or an imported module would suppress the interrupt.
    signal.signal(signal.SIGINT, _end)
    from otel_assembly.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    finally:
        signal.signal(signal.SIGINT, _end)  # Python itself is shutting down


def _end(*_: Any) -> None:
    os.write(2, b"otel-assembly: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    raise SystemExit(main())
