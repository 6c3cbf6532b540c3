"""``otel-assembly``, and ``python -m otel_assembly``: the command line, which Ctrl-C ends quietly from its start on."""

from __future__ import annotations

import os
import signal
from typing import Any


def main() -> int:
    """Run the command line; the exit status is returned."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # whoever started it wants it not to be heard
        from otel_assembly.cli import main as run

        return run()
    # An exception in the midst of imports would be told at length, and some of it by modules that drop it.
    signal.signal(signal.SIGINT, _end)
    from otel_assembly.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    finally:
        signal.signal(signal.SIGINT, _end)  # what is left to do is Python's own end


def _end(*_: Any) -> None:
    os.write(2, b"otel-assembly: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    raise SystemExit(main())
