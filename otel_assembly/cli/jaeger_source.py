"""Read from a Jaeger the spans that the options of ``explain`` and ``view`` select, and as few others as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.cli.conversation_summary import AmbiguousError, ConversationSummary, summaries_of_assemblies
from otel_assembly.errors import AssemblyError, ConfigurationError
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from otel_assembly.telemetry.jaeger import FoundAssembly
    from otel_assembly.telemetry.store_reader import StoredSpan

#: The most ledgers that are read for a page. If more match, the newest are read.
_MOST_LEDGERS: Final = 20
#: The most traces of a service that a search returns. If more match, the newest are returned.
_MOST_TRACES: Final = 200
_DEFAULT_LOOKBACK: Final = "2d"


def check_jaeger_options(arguments: argparse.Namespace) -> None:
    """Check that ``--service`` and ``--lookback`` are used with ``--jaeger`` only.

    Raises:
        ConfigurationError: One of them is used without ``--jaeger``.
    """
    if arguments.jaeger is None and (arguments.service is not None or arguments.lookback is not None):
        raise ConfigurationError("--service and --lookback need --jaeger")


def spans_of_jaeger(
    arguments: argparse.Namespace, on_problem: Callable[[str], None], *, only_one: bool
) -> tuple[list[StoredSpan], set[str]]:
    """Return the spans of the conversations that the options select, and the ids of their ledgers.

    Args:
        arguments: The options.
        on_problem: Called with a sentence for each problem, such as conversations that are too many for a page.
        only_one: Whether to read a single conversation. With ``--overflowed``, this is the newest one that matches.

    Raises:
        AmbiguousError: Several conversations match, and `only_one` is set without ``--overflowed``.
        AssemblyError: No conversation matches, or the Jaeger does not answer.
    """
    from otel_assembly.telemetry.jaeger import find_assemblies, read_jaeger, read_jaeger_ledgers, read_jaeger_trace

    url, lookback = arguments.jaeger, arguments.lookback
    if arguments.trace is not None:
        spans = read_jaeger_trace(url, arguments.trace)
        ledgers = {
            (str(span.resource.get("service.name", "")), str(span.attributes[names.LEDGER_ID])): span.start_ns
            for span in spans
            if span.name == names.SPAN_ASSEMBLE_CONTEXT and names.LEDGER_ID in span.attributes
        }
        if not ledgers:
            what = "contains no assembly" if spans else "not found"
            raise AssemblyError(f"{url}: trace {arguments.trace} {what}")
        start = min(ledgers.values())
        more = read_jaeger_ledgers(url, ledgers, lookback=lookback, until=start, on_problem=on_problem)
        return [*spans, *more], {ledger for _, ledger in ledgers}
    assemblies = find_assemblies(
        url, _tags(arguments), service=arguments.service, lookback=lookback, limit=_MOST_TRACES
    )
    if assemblies is None:  # this Jaeger cannot search by attributes
        spans = read_jaeger(
            url,
            service=arguments.service,
            lookback=lookback,
            conversation=arguments.conversation,
            on_problem=on_problem,
        )
        return spans, {str(span.attributes[names.LEDGER_ID]) for span in spans if names.LEDGER_ID in span.attributes}
    if arguments.ledger is not None:
        assemblies = [assembly for assembly in assemblies if assembly.ledger.startswith(arguments.ledger)]
    if arguments.turn is not None and arguments.overflowed:
        assemblies = [
            assembly for assembly in assemblies if str(assembly.attributes.get(names.TURN)) == str(arguments.turn)
        ]
    if not assemblies:
        raise AssemblyError(f"{url}: {_nothing_found(arguments)}")
    summaries = summaries_of_assemblies(assemblies)
    if only_one and not arguments.overflowed and len(summaries) > 1:
        raise _ambiguous_error(summaries, url, assemblies)
    selected = summaries[: 1 if only_one else _MOST_LEDGERS]
    if not only_one and len(summaries) > len(selected):
        on_problem(f"showing the newest {len(selected)} of {len(summaries)} conversations; select others by an option")
    ids = {summary.ledger for summary in selected}
    keys = [(assembly.service, assembly.ledger) for assembly in assemblies if assembly.ledger in ids]
    return read_jaeger_ledgers(url, keys, lookback=lookback, on_problem=on_problem), ids


def _tags(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the span attributes to search for, with the values that the options name."""
    ledger_id = arguments.ledger if arguments.ledger is not None and len(arguments.ledger) == 32 else None
    tags = {
        names.GEN_AI_CONVERSATION_ID: arguments.conversation,
        names.GEN_AI_AGENT_NAME: arguments.agent,
        names.NAME: arguments.assembler,
        names.LEDGER_ID: ledger_id,
        names.OVERFLOWED: "true" if arguments.overflowed else None,
    }
    return {name: value for name, value in tags.items() if value is not None}


def _nothing_found(arguments: argparse.Namespace) -> str:
    """Return an error message that names the options for which no turn was found."""
    options = {
        "the conversation": arguments.conversation,
        "the agent": arguments.agent,
        "the assembler": arguments.assembler,
        "the ledger": arguments.ledger,
        "the service": arguments.service,
    }
    selected = " and ".join(f"{what} {value!r}" for what, value in options.items() if value is not None)
    what = "no overflowed turn" if arguments.overflowed else "no assembly"
    return f"{what}{f' of {selected}' if selected else ''} in the last {arguments.lookback or _DEFAULT_LOOKBACK}"


def _ambiguous_error(
    summaries: Sequence[ConversationSummary], url: str, assemblies: Sequence[FoundAssembly]
) -> AmbiguousError:
    traces = len({assembly.trace_id for assembly in assemblies})
    scope = f", in the newest {traces} traces" if traces >= _MOST_TRACES else ""
    return AmbiguousError(
        f"found {len(summaries)} conversations in {url}{scope}; select one with --conversation, --agent, --assembler, "
        "--ledger, --trace or --overflowed",
        [str(summary) for summary in summaries],
    )
