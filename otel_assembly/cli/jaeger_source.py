"""A Jaeger as the source of spans, for the commands that read them: what its options say, and the spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from otel_assembly.telemetry.store_reader import StoredSpan


def check_jaeger_options(arguments: argparse.Namespace) -> None:
    """Check that no option says what to read of a Jaeger where none is named.

    Raises:
        ConfigurationError: One does.
    """
    if arguments.jaeger is None and (arguments.service is not None or arguments.lookback is not None):
        raise ConfigurationError("--service and --lookback say what to read of a Jaeger; name one with --jaeger")


def spans_of_jaeger(arguments: argparse.Namespace, on_problem: Callable[[str], None]) -> list[StoredSpan]:
    """The spans that the options name, as `read_jaeger` reads them."""
    from otel_assembly.telemetry.jaeger import read_jaeger

    return read_jaeger(
        arguments.jaeger,
        service=arguments.service,
        lookback=arguments.lookback,
        conversation=arguments.conversation,
        on_problem=on_problem,
    )
