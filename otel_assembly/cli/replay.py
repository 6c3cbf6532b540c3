"""``replay``: assemble every turn of recorded conversations with a policy chain, and print what the chain drops."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import LARGEST_INTEGER
from otel_assembly.chain.config import chain_from_config, chain_from_spec
from otel_assembly.cli.export import Export, file_exporter, otlp_exporter
from otel_assembly.cli.extras import SPAN_FILES, TABLES, otlp_modules, require
from otel_assembly.cli.problems import Problems
from otel_assembly.cli.replay_page import ReplayPage
from otel_assembly.cli.replay_turns import ReplayAssembler
from otel_assembly.cli.report import make_report
from otel_assembly.cli.tally import Gaps, Tally, Variant
from otel_assembly.cli.terminal import ignore_closed_pipe, safe_text
from otel_assembly.cli.transcript_replay import replay_transcript
from otel_assembly.errors import AssemblyError, ConfigurationError, TranscriptError
from otel_assembly.policies.registry import token_limit
from otel_assembly.recorder import NullRecorder
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.tokens import context_window, counter_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.policies import AssemblyPolicy
    from otel_assembly.tokens import MessageFraming
    from otel_assembly.transcripts import Transcript

#: The most digits of a number on the command line.
_MOST_DIGITS: Final = 40


class _ChainOption(argparse.Action):
    """An action that collects the chains of ``--budget``, ``--policies`` and ``--config``, in command-line order."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        chosen = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, [*chosen, (str(option_string), values)])


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``replay`` and its options to the command line."""
    parser = commands.add_parser(
        "replay",
        help="assemble every turn of recorded conversations again, and print what is dropped and why",
        description="Read recorded conversations (.json, .jsonl, .gz: messages and requests of OpenAI, Anthropic, "
        "Bedrock and Gemini, logs of coding agents such as Claude Code and Codex, sessions of frameworks, exports of "
        "observability tools), assemble the context of every model call, export the telemetry, and print what was "
        "dropped, by which policy and why.",
        epilog="--budget, --policies and --config may be repeated: each adds a variant, and the variants are compared "
        "side by side. Without any of them, whole conversations are kept, and logs are shown as recorded.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a .json or .jsonl file, optionally gzipped; - is standard input"
    )
    parser.add_argument(
        "--budget",
        dest="chosen",
        action=_ChainOption,
        type=_positive,
        metavar="N",
        help="a budget of N tokens; short for --policies conversation,budget:window=N:output_reserve=0",
    )
    parser.add_argument(
        "--policies",
        dest="chosen",
        action=_ChainOption,
        metavar="SPEC",
        help="a chain, such as conversation,sliding_window:max_events=50,budget:window=8000:output_reserve=500",
    )
    parser.add_argument("--config", dest="chosen", action=_ChainOption, metavar="FILE", help="a chain in YAML or JSON")
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
    """Replay the conversations and print the results.

    Returns:
        0; 1 if a conversation was unreadable, a span was not exported, or no conversation has a model call; 2 if all
        conversations were unreadable.

    Raises:
        AssemblyError: No conversation has the id of ``--conversation``.
        ConfigurationError: The options do not fit together, or a chain is invalid.
    """
    _require(arguments)
    variants = _variants(arguments)
    unreadable, without_turns, gaps = Problems(), Problems(), Gaps()
    with ExitStack() as stack:
        page = _page(arguments, stack)
        export = _export(arguments, page, stack)
        recorder = NullRecorder() if export is None else OpenTelemetryRecorder(tracer_provider=export.provider)
        for variant in variants:
            variant.assembler = variant.make_assembler(recorder=recorder)
        report = stack.enter_context(make_report(arguments, variants))
        for transcript in _transcripts(arguments, unreadable):
            if page is not None:
                page.begin(transcript)
            turns = [replay_transcript(transcript, variant, recorder) for variant in variants]
            for variant, chain_turns in zip(variants, turns, strict=True):
                tally = Tally(conversations=1)
                for turn in chain_turns:
                    tally.add_turn(turn)
                variant.total.add(tally)
                with ignore_closed_pipe() if export is not None else nullcontext():
                    report.conversation(transcript, variant, tally, chain_turns)
            gaps.add(transcript)
            if not turns[0]:
                without_turns.add(f"{transcript.id}: no assistant turn, so nothing was assembled")
            if export is not None:
                export.flush()
        count = variants[0].total.conversations
        if arguments.conversation is not None and not count:
            raise AssemblyError(f"no conversation has the id {arguments.conversation!r}")
        if count:
            with ignore_closed_pipe():
                report.totals(variants, gaps)
        if count and page is not None:
            page.write(_title(arguments))
    _print_skipped(gaps)
    has_turns = any(variant.total.turns for variant in variants)
    return _status(unreadable, without_turns, count, export, arguments) or int(not has_turns)


def _require(arguments: argparse.Namespace) -> None:
    needed = [] if arguments.json else [*TABLES]
    needed += [] if arguments.html is None else [*SPAN_FILES]
    if arguments.export is not None:
        needed += otlp_modules() if arguments.export == "otlp" else SPAN_FILES
    require("this replay", needed, otherwise="" if arguments.json else "; --json prints the totals without tables")


def _status(
    unreadable: Problems, without_turns: Problems, count: int, export: Export | None, arguments: argparse.Namespace
) -> int:
    unreadable.print()
    if unreadable.count and count:
        noun = "conversation was" if unreadable.count == 1 else "conversations were"
        print(f"otel-assembly: {unreadable.count} {noun} unreadable, {count} replayed", file=sys.stderr)
    without_turns.print()
    if export is not None and export.spans:
        _print_exported(export, arguments)
    if not count:
        return 2
    return 1 if unreadable.count or (export is not None and any(export.lost)) else 0


def _print_skipped(gaps: Gaps) -> None:
    """Print the records and messages that were not understood; they count as ``other``, or are left out."""
    skipped = Problems()
    for problem in gaps.problems:
        skipped.add(f"not understood: {problem}")
    skipped.print()


def _print_exported(export: Export, arguments: argparse.Namespace) -> None:
    """Print how many spans each exporter exported: the first is the page's, the last is that of ``--export``."""
    if arguments.html is not None and export.lost[0]:
        problem = f"the page lacks {export.lost[0]:,} of {export.spans:,} spans, which could not be buffered"
        print(f"otel-assembly: {problem}", file=sys.stderr)
    if arguments.export is not None:
        lost = export.lost[-1]
        target = "" if arguments.export == "otlp" else f" to {safe_text(arguments.export)}"
        text = f"exported {export.spans - lost:,} of {export.spans:,} spans{target}" + (f", lost {lost:,}" * bool(lost))
        print(f"otel-assembly: {text}", file=sys.stderr)


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    options: list[tuple[str, Any]] = arguments.chosen or [("--policies", "conversation")]
    variants: list[Variant] = []
    for option, value in options:
        policies: Sequence[AssemblyPolicy]
        framing: MessageFraming | None = None
        window = context_window(arguments.model) if arguments.model is not None else None
        if option == "--budget":
            name = f"budget-{value}"
            policies = chain_from_spec(f"conversation,budget:window={value}:output_reserve=0", _replay_defaults)
        elif option == "--policies":
            policies = chain_from_spec(value, _replay_defaults)
            name = "+".join(policy.name for policy in policies)
        else:
            chain = chain_from_config(value, _replay_defaults)
            policies, framing = chain.policies, chain.settings["framing"]
            window = chain.settings["model_window"] or window
            name = chain.settings["name"] or Path(value).stem
        limits = [limit for policy in policies if (limit := token_limit(policy)) is not None]
        same_name = sum(variant.name == name or variant.name.startswith(f"{name}#") for variant in variants)
        name = f"{name}#{same_name + 1}" if same_name else name
        budget = min(limits) if limits else None
        counter = counter_for(arguments.model)
        # A replay continues after a halt, because the recorded conversation continued.
        make_assembler = partial(
            ReplayAssembler,
            policies,
            name=name,
            model=arguments.model,
            model_window=window,
            on_halt="return",
            counter=counter,
            framing=framing,
        )
        variants.append(Variant(name, make_assembler, budget, counter, keeps_logged_prompts=not arguments.chosen))
    return variants


def _replay_defaults(policy: type) -> Mapping[str, Any]:
    """Return a policy's default settings in a replay, with which the policy reports an overflow and raises no error."""
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


def _transcripts(arguments: argparse.Namespace, unreadable: Problems) -> Iterator[Transcript]:
    from otel_assembly.transcripts import read_transcripts

    for transcript in read_transcripts(arguments.paths):
        if isinstance(transcript, TranscriptError):
            unreadable.add(transcript)
        elif arguments.conversation is None or transcript.id == arguments.conversation:
            yield transcript
