"""A Jaeger as the source of spans, for the commands that read them: as little of it as answers what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_assembly.cli.told import AmbiguousError, Told, told_of_found
from otel_assembly.errors import AssemblyError, ConfigurationError
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from otel_assembly.telemetry.jaeger import FoundAssembly
    from otel_assembly.telemetry.store_reader import StoredSpan

#: A page shows so many ledgers of a Jaeger, the newest.
_MOST_LEDGERS: Final = 20
#: Traces of a service that are looked at for what is asked, the newest.
_LOOKED_AT: Final = 200
_DEFAULT_LOOKBACK: Final = "2d"


def check_jaeger_options(arguments: argparse.Namespace) -> None:
    """Check that no option says what to read of a Jaeger where none is named.

    Raises:
        ConfigurationError: One does.
    """
    if arguments.jaeger is None and (arguments.service is not None or arguments.lookback is not None):
        raise ConfigurationError("--service and --lookback say what to read of a Jaeger; name one with --jaeger")


def spans_of_jaeger(
    arguments: argparse.Namespace, on_problem: Callable[[str], None], *, one: bool
) -> tuple[list[StoredSpan], set[str]]:
    """The spans of the conversations that the options choose, and the ids of their ledgers.

    Args:
        arguments: The options.
        on_problem: Called with a sentence for what could not be read, or is left out.
        one: Whether it has to be one conversation; of several that overflowed the newest is taken.

    Raises:
        AmbiguousError: Several fit, and it has to be one.
        AssemblyError: None fits, or no Jaeger answers.
    """
    from otel_assembly.telemetry.jaeger import find_assemblies, read_jaeger, read_jaeger_ledgers, read_jaeger_trace

    url, lookback = arguments.jaeger, arguments.lookback
    if arguments.trace is not None:
        spans = read_jaeger_trace(url, arguments.trace)
        whose = {
            (str(span.resource.get("service.name", "")), str(span.attributes[names.LEDGER_ID])): span.start_ns
            for span in spans
            if span.name == names.SPAN_ASSEMBLE_CONTEXT and names.LEDGER_ID in span.attributes
        }
        if not whose:
            what = "holds no assembly" if spans else "is not there"
            raise AssemblyError(f"{url}: trace {arguments.trace} {what}")
        begun = min(whose.values())
        more = read_jaeger_ledgers(url, whose, lookback=lookback, until=begun, on_problem=on_problem)
        return [*spans, *more], {ledger for _, ledger in whose}
    found = find_assemblies(url, _tags(arguments), service=arguments.service, lookback=lookback, limit=_LOOKED_AT)
    if found is None:  # it cannot search by an attribute
        spans = read_jaeger(
            url,
            service=arguments.service,
            lookback=lookback,
            conversation=arguments.conversation,
            on_problem=on_problem,
        )
        return spans, {str(span.attributes[names.LEDGER_ID]) for span in spans if names.LEDGER_ID in span.attributes}
    if arguments.ledger is not None:
        found = [assembly for assembly in found if assembly.ledger.startswith(arguments.ledger)]
    if arguments.turn is not None and arguments.overflowed:
        found = [assembly for assembly in found if str(assembly.attributes.get(names.TURN)) == str(arguments.turn)]
    if not found:
        raise AssemblyError(f"{url}: {_nothing(arguments)}")
    told = told_of_found(found)
    if one and not arguments.overflowed and len(told) > 1:
        raise _ambiguous(told, url, found)
    chosen = told[: 1 if one else _MOST_LEDGERS]
    if not one and len(told) > len(chosen):
        on_problem(f"the newest {len(chosen)} of {len(told)} conversations are shown; choose others by an option")
    ids = {each.ledger for each in chosen}
    whose_all = [(assembly.service, assembly.ledger) for assembly in found if assembly.ledger in ids]
    return read_jaeger_ledgers(url, whose_all, lookback=lookback, on_problem=on_problem), ids


def _tags(arguments: argparse.Namespace) -> dict[str, str]:
    """What is searched for, as attributes of assemblies."""
    whole = arguments.ledger if arguments.ledger is not None and len(arguments.ledger) == 32 else None
    wanted = {
        names.GEN_AI_CONVERSATION_ID: arguments.conversation,
        names.GEN_AI_AGENT_NAME: arguments.agent,
        names.NAME: arguments.assembler,
        names.LEDGER_ID: whole,
        names.OVERFLOWED: "true" if arguments.overflowed else None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _nothing(arguments: argparse.Namespace) -> str:
    """That nothing was found, with what was looked for."""
    options = {
        "the conversation": arguments.conversation,
        "the agent": arguments.agent,
        "the assembler": arguments.assembler,
        "the ledger": arguments.ledger,
        "the service": arguments.service,
    }
    of = " and ".join(f"{what} {value!r}" for what, value in options.items() if value is not None)
    what = "no overflowed turn" if arguments.overflowed else "no assembly"
    return f"{what}{f' of {of}' if of else ''} in the last {arguments.lookback or _DEFAULT_LOOKBACK}"


def _ambiguous(told: Sequence[Told], url: str, found: Sequence[FoundAssembly]) -> AmbiguousError:
    traces = len({assembly.trace_id for assembly in found})
    among = f", in the newest {traces} traces" if traces >= _LOOKED_AT else ""
    return AmbiguousError(
        f"{len(told)} ledgers are told of in {url}{among}; choose one with --conversation, --agent, --assembler, "
        "--ledger, --trace or --overflowed",
        [str(one) for one in told],
    )
