"""``replay``: assemble every turn of recorded conversations with a chain, and print the dropped items."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import LARGEST_INTEGER
from otel_assembly.assembler import Assembler
from otel_assembly.chain.config import chain_from_config, chain_from_spec
from otel_assembly.cli.export import Export, file_exporter, otlp_exporter
from otel_assembly.cli.extras import SPAN_FILES, TABLES, over_otlp, require
from otel_assembly.cli.page_files import split_prompts
from otel_assembly.cli.problems import Problems
from otel_assembly.cli.replay_page import ReplayPage
from otel_assembly.cli.report import make_report
from otel_assembly.cli.tally import ReplayedExit, ReplayedTurn, Tally, Variant
from otel_assembly.cli.terminal import reader_may_leave, safe_text
from otel_assembly.context import Context
from otel_assembly.errors import AssemblyError, ConfigurationError, ContextOverflowError, TranscriptError
from otel_assembly.history.history import History
from otel_assembly.messages import broken_pairs
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.policies.registry import token_limit
from otel_assembly.recorder import NullRecorder
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.tokens import context_window, counter_for, input_price

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_assembly.cli.transcripts import Transcript
    from otel_assembly.decision import DecisionOutcome
    from otel_assembly.policies import AssemblyPolicy
    from otel_assembly.recorder import Recorder
    from otel_assembly.tokens import MessageFraming

#: The most digits of a number on the command line.
_MOST_DIGITS: Final = 40


class _Chosen(argparse.Action):
    """Collects the chains of all options in the order of the command line."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        chosen = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*chosen, (str(option_string), values)])


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "replay",
        help="assemble every turn of recorded conversations again, and print what is dropped and why",
        description="Read recorded conversations (.json, .jsonl, .gz: messages and requests of OpenAI, Anthropic, "
        "Bedrock and Gemini, AutoGen state, OpenTelemetry GenAI messages), assemble the context of every assistant "
        "turn, export the telemetry, and print what was dropped, by which policy and why.",
        epilog="--budget, --policies and --config may be repeated: each adds a variant, and the variants are compared "
        "side by side. Without any of them, whole conversations are kept.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .json or .jsonl file, optionally gzipped; - is standard input"
    )
    parser.add_argument(
        "--budget",
        dest="chosen",
        action=_Chosen,
        type=_positive,
        metavar="N",
        help="a budget of N tokens; short for --policies conversation,budget:window=N:output_reserve=0",
    )
    parser.add_argument(
        "--policies",
        dest="chosen",
        action=_Chosen,
        metavar="SPEC",
        help="a chain, such as conversation,sliding_window:max_events=50,budget:window=8000:output_reserve=500",
    )
    parser.add_argument("--config", dest="chosen", action=_Chosen, metavar="FILE", help="a chain in YAML or JSON")
    parser.add_argument("--model", metavar="NAME", help="count tokens for this model (default tokenizer: o200k_base)")
    parser.add_argument("--conversation", metavar="ID", help="replay this conversation only")
    parser.add_argument(
        "--turns", action="store_true", help="print every turn (the default if there is one conversation)"
    )
    parser.add_argument(
        "--export", metavar="otlp|FILE", help="export the spans over OTLP (see OTEL_EXPORTER_OTLP_*) or to a file"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write an HTML page with the tokens and the dropped items of every turn"
    )
    parser.add_argument("--with-text", action="store_true", help="with --html: include the texts of the items")
    parser.add_argument("--json", action="store_true", help="print the totals as JSON")
    parser.set_defaults(run=run, chosen=None)


def _positive(text: str) -> int:
    # Check the length first: int() raises an error for thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_number or not 1 <= int(text) <= LARGEST_INTEGER:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of tokens, at least 1 and at most {LARGEST_INTEGER} (2**63 - 1), "
            f"got {text[:_MOST_DIGITS]!r}"
        )
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Replay; return 0, or 1 if a conversation was unreadable or spans were lost, or 2 if all were unreadable."""
    _require(arguments)
    variants = _variants(arguments)
    bad, silent = Problems(), Problems()
    with ExitStack() as stack:
        page = _page(arguments, stack)
        export = _export(arguments, page, stack)
        recorder = NullRecorder() if export is None else OpenTelemetryRecorder(tracer_provider=export.provider)
        for variant in variants:
            variant.assembler = variant.make_assembler(recorder=recorder)
        report = stack.enter_context(make_report(arguments, variants))
        for transcript in _transcripts(arguments, bad):
            if page is not None:
                page.begin(transcript)
            turns = [asyncio.run(_replay(transcript, variant, recorder)) for variant in variants]
            for variant, played in zip(variants, turns, strict=True):
                tally = Tally(conversations=1)
                for turn in played:
                    tally.add_turn(turn)
                variant.total.add(tally)
                with reader_may_leave() if export is not None else nullcontext():
                    report.conversation(transcript, variant, tally, played)
            if not turns[0]:
                silent.add(f"{transcript.id}: no assistant turn, so nothing was assembled")
            if export is not None:
                export.flush()
        found = variants[0].total.conversations
        if arguments.conversation is not None and not found:
            raise AssemblyError(f"no conversation has the id {arguments.conversation!r}")
        if found:
            with reader_may_leave():
                report.totals(variants)
        if found and page is not None:
            page.write(_title(arguments))
    return _status(bad, silent, found, export, arguments)


def _require(arguments: argparse.Namespace) -> None:
    needed = [] if arguments.json else [*TABLES]
    needed += [] if arguments.html is None else [*SPAN_FILES]
    if arguments.export is not None:
        needed += over_otlp() if arguments.export == "otlp" else SPAN_FILES
    require("this replay", needed, otherwise="" if arguments.json else "; --json prints the totals without tables")


def _status(bad: Problems, silent: Problems, found: int, export: Export | None, arguments: argparse.Namespace) -> int:
    bad.print()
    if bad.count and found:
        noun = "conversation was" if bad.count == 1 else "conversations were"
        print(f"otel-assembly: {bad.count} {noun} unreadable, {found} replayed", file=sys.stderr)
    silent.print()
    if export is not None and export.spans:
        _print_exported(export, arguments)
    if not found:
        return 2
    return 1 if bad.count or (export is not None and any(export.lost)) else 0


def _print_exported(export: Export, arguments: argparse.Namespace) -> None:
    """Print how many spans were exported; the first exporter is that of the page, the last that of ``--export``."""
    if arguments.html is not None and export.lost[0]:
        missing = f"the page lacks {export.lost[0]:,} of {export.spans:,} spans, which could not be buffered"
        print(f"otel-assembly: {missing}", file=sys.stderr)
    if arguments.export is not None:
        lost = export.lost[-1]
        where = "" if arguments.export == "otlp" else f" to {safe_text(arguments.export)}"
        text = f"exported {export.spans - lost:,} of {export.spans:,} spans{where}" + (f", lost {lost:,}" * bool(lost))
        print(f"otel-assembly: {text}", file=sys.stderr)


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    chosen: list[tuple[str, Any]] = arguments.chosen or [("--policies", "conversation")]
    variants: list[Variant] = []
    for option, value in chosen:
        policies: Sequence[AssemblyPolicy]
        framing: MessageFraming | None = None
        window = context_window(arguments.model) if arguments.model is not None else None
        if option == "--budget":
            name = f"budget-{value}"
            policies = chain_from_spec(f"conversation,budget:window={value}:output_reserve=0", _tolerant)
        elif option == "--policies":
            policies = chain_from_spec(value, _tolerant)
            name = "+".join(policy.name for policy in policies)
        else:
            chain = chain_from_config(value, _tolerant)
            policies, framing = chain.policies, chain.settings["framing"]
            window = chain.settings["model_window"] or window
            name = chain.settings["name"] or Path(value).stem
        limits = [limit for policy in policies if (limit := token_limit(policy)) is not None]
        taken = sum(variant.name == name or variant.name.startswith(f"{name}#") for variant in variants)
        name = f"{name}#{taken + 1}" if taken else name
        budget = min(limits) if limits else None
        counter = counter_for(arguments.model)
        # A replay continues after a halt: the recorded conversation continued, too.
        make = partial(
            Assembler,
            policies,
            name=name,
            model=arguments.model,
            model_window=window,
            on_halt="return",
            counter=counter,
            framing=framing,
        )
        variants.append(Variant(name, make, budget, counter))
    return variants


def _tolerant(policy: type) -> Mapping[str, Any]:
    """Return the settings with which a policy reports an overflow and does not raise it."""
    defaults: Mapping[str, Any] = getattr(policy, "replay_defaults", {})
    return defaults


def _page(arguments: argparse.Namespace, stack: ExitStack) -> ReplayPage | None:
    if arguments.html is None:
        if arguments.with_text:
            raise ConfigurationError("--with-text needs --html")
        return None
    return stack.enter_context(ReplayPage(arguments.html, with_text=arguments.with_text))


def _export(arguments: argparse.Namespace, page: ReplayPage | None, stack: ExitStack) -> Export | None:
    exporters = [] if page is None else [page.exporter]
    if arguments.export is not None:
        exporters.append(otlp_exporter() if arguments.export == "otlp" else file_exporter(arguments.export))
    return stack.enter_context(Export(exporters, "otel-assembly-replay")) if exporters else None


def _title(arguments: argparse.Namespace) -> str:
    names = [safe_text(Path(path).name) for path in arguments.paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _transcripts(arguments: argparse.Namespace, bad: Problems) -> Iterator[Transcript]:
    from otel_assembly.cli.transcripts import read_transcripts

    for transcript in read_transcripts(arguments.paths):
        if isinstance(transcript, TranscriptError):
            bad.add(transcript)
        elif arguments.conversation is None or transcript.id == arguments.conversation:
            yield transcript


async def _replay(transcript: Transcript, variant: Variant, recorder: Recorder) -> list[ReplayedTurn]:
    """Assemble the context of every response; each user request is one trace."""
    prompts, messages = split_prompts(transcript.messages)
    history = History()
    context = Context(
        conversation_id=transcript.id if transcript.named else None, agent_name="replay", tools=transcript.tools
    )
    turns: list[ReplayedTurn] = []
    for request in _requests(messages):
        span = (
            recorder.invoke_agent("replay", conversation_id=context.conversation_id)
            if isinstance(recorder, OpenTelemetryRecorder)
            else nullcontext()
        )
        with span:
            answering = False
            for message in request:
                before, answering = answering, _is_from_model(message)
                # A chat message is a whole response; of items, which have a type, a response may have several.
                if answering and not (before and "type" in message):
                    turns.append(await _turn(variant.assembler, prompts, history, context, len(turns)))
                history.append(message)
    return turns


def _requests(messages: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split messages into user requests, each with its responses."""
    requests: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if describe(message).kind == EventKind.REQUEST and any(map(_is_from_model, requests[-1])):
            requests.append([])
        requests[-1].append(message)
    return requests


def _is_from_model(message: dict[str, Any]) -> bool:
    """Return whether a message is a response, or an item that is a tool call."""
    return describe(message).kind in (EventKind.RESPONSE, EventKind.TOOL_CALL)


async def _turn(
    assembler: Assembler, prompts: list[str], history: History, context: Context, number: int
) -> ReplayedTurn:
    overflow: ContextOverflowError | None = None
    try:
        assembly = await assembler.assemble(prompts, history, context)
    except ContextOverflowError as error:
        overflow, assembly = error, error.assembly
    exits: dict[tuple[str, DecisionOutcome, str, str], list[int]] = {}
    for decision in assembly.exits:
        key = decision.policy or "", decision.outcome, decision.reason.value, decision.kind
        count = exits.setdefault(key, [0, 0])
        count[0] += 1
        count[1] += decision.tokens
    turn = ReplayedTurn(
        number=number,
        assembly=assembly,
        sent=overflow is None,
        exits=[ReplayedExit(*key, items, tokens) for key, (items, tokens) in exits.items()],
        orphans=len(broken_pairs([describe(event) for event in assembly.events])),
    )
    price = input_price(assembler.model) if turn.sent and assembler.model is not None else None
    if price is not None:
        prompt = assembly.totals.tokens_out
        turn.cost = price.of_prompt(prompt, assembly.prefix.tokens).total
        turn.cost_avoided = price.of_left_out(sum(exit_.tokens for exit_ in turn.exits), prompt)
    return turn
