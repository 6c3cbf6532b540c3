"""``explain``: print from exported spans why an item, a message of a conversation, was kept or dropped on a turn."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from otel_assembly.cli.conversation_summary import AmbiguousError, summary_of
from otel_assembly.cli.jaeger_source import check_jaeger_options, spans_of_jaeger
from otel_assembly.cli.problems import Problems
from otel_assembly.cli.selection import add_selection_options, select_ledgers, select_turn
from otel_assembly.cli.terminal import safe_text
from otel_assembly.cli.tree_facts import overflow_text
from otel_assembly.errors import AssemblyError, ConfigurationError
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.span_values import item_key, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.explain import DroppedGroup, Explainer, Explanation, Unsent
    from otel_assembly.telemetry.ledger_history import LedgerHistory
    from otel_assembly.telemetry.store_reader import StoredSpan

#: The characters of an excerpt, and the most problems or choices that are printed.
_EXCERPT = 48
_SHOWN = 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``explain`` and its options to the command line."""
    parser = commands.add_parser(
        "explain",
        help="explain why an item was kept or dropped on a turn, and what would have kept it",
        description="Explain what happened to one item of a conversation on one turn, from exported spans: the policy "
        "and the rule that decided, the rest of the budget, the items that were kept instead, and the smallest "
        "increase of the budget that would have kept the item. The increase is computed by running the chain again on "
        "the recorded numbers.",
        epilog="Without --item and --find, all items that are not in the turn's prompt are listed. --overflowed "
        "selects the newest overflowed turn. If other options match several turns or conversations, they are listed.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--traces", metavar="FILE", help="a span file (OTLP JSON lines)")
    source.add_argument("--jaeger", metavar="URL", help="a Jaeger, such as http://localhost:16686")
    parser.add_argument("--turn", type=_number, metavar="N", help="the turn: the assembly's index, from 0")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--item", type=_item, metavar="K", help="the item's id: 3, or m0 for one that a policy made")
    which.add_argument(
        "--find", metavar="TEXT", help="the item that contains this text; needs captured content or --transcript"
    )
    add_selection_options(parser)
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        metavar="MODULE:CLASS",
        help="import a custom policy of the chain, to run it again; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def _item(text: str) -> str:
    try:
        made, number = item_key(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an item id, such as 3 or m0, got {text!r}") from None
    return f"{'m' * made}{number}"


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; return 0, or 1 if the spans do not record the outcome, or 2 if the options are ambiguous.

    Raises:
        AssemblyError: The turn or the item does not exist.
    """
    from otel_assembly.chain.config import policy_class
    from otel_assembly.explain import Explainer

    check_jaeger_options(arguments)
    try:
        ledger, turn, choice = _turn(arguments)
        if choice is not None:
            print(f"otel-assembly: {safe_text(choice)}", file=sys.stderr)
        for problem in ledger.problems[:_SHOWN]:
            print(f"otel-assembly: {safe_text(problem)}", file=sys.stderr)
        policies = [policy_class(path, "--policy") for path in arguments.policies or ()]
        explainer = Explainer(ledger, turn, policies)
        item = arguments.item if arguments.find is None else _find(arguments, ledger)
    except AmbiguousError as error:
        print(f"otel-assembly: {safe_text(error)}", file=sys.stderr)
        for choice in error.choices[:_SHOWN]:
            print(f"  {safe_text(choice)}", file=sys.stderr)
        if len(error.choices) > _SHOWN:
            print(f"  and {len(error.choices) - _SHOWN} more", file=sys.stderr)
        return 2
    if item is None:
        groups = explainer.absent()
        if arguments.json:
            print(json.dumps([group.as_json() for group in groups]))
        else:
            _print_dropped(explainer, groups)
        return 0
    answer = explainer.explain(item)
    if arguments.json:
        print(json.dumps(answer.as_json()))
    else:
        _print_explanation(answer)
    return 1 if answer.outcome == "unknown" else 0


# Selecting the turn


def _turn(arguments: argparse.Namespace) -> tuple[LedgerHistory, int, str | None]:
    from otel_assembly.telemetry.ledger_reader import read_ledgers

    source = arguments.traces or arguments.jaeger
    problems = Problems()
    spans, only = _spans(arguments, problems)
    ledgers = read_ledgers(spans, allocations=True, on_problem=problems.add)
    problems.print()
    return select_turn(select_ledgers(ledgers.values(), arguments, source, only), arguments, source)


def _spans(arguments: argparse.Namespace, problems: Problems) -> tuple[Iterable[StoredSpan], set[str] | None]:
    if arguments.traces is None:
        return spans_of_jaeger(arguments, problems.add, only_one=True)
    from otel_assembly.telemetry.store_reader import read_spans

    path = arguments.traces
    return read_spans(path, on_problem=lambda line, problem: problems.add(f"{path}:{line}: {problem}")), None


# Selecting the item


def _find(arguments: argparse.Namespace, ledger: LedgerHistory) -> str:
    texts = _texts(arguments, ledger)
    search_text = arguments.find.casefold()
    if not search_text:
        raise ConfigurationError("--find needs a text to look for")
    matching = [item for item, text in texts.items() if search_text in text.casefold()]
    if not matching:
        raise AssemblyError(f"no item contains {_excerpt(arguments.find, arguments.find)!r}")
    if len(matching) > 1:
        choices = [
            f"--item {item}, {ledger.items[item].kind} of turn {ledger.items[item].turn}:"
            f" {_excerpt(texts[item], arguments.find)}"
            for item in matching
            if item in ledger.items
        ]
        raise AmbiguousError(f"{len(matching)} items contain the text; select one with --item", choices)
    return matching[0]


def _texts(arguments: argparse.Namespace, ledger: LedgerHistory) -> dict[str, str]:
    """Return the text of each item, by item id: from ``--transcript``, or from content captured in the spans."""
    if arguments.transcript is not None:
        return _texts_of_transcript(arguments.transcript, ledger)
    texts: dict[str, str] = {}
    for turn in ledger.turns:
        texts.update(zip(turn.arrived, map(str, turn.attributes.get(names.ARRIVED_CONTENTS, ())), strict=False))
    if not texts:
        raise ConfigurationError(
            "the spans contain no content because its capture was off; name the item with --item, or the conversation "
            "with --transcript"
        )
    return {item: texts[item] for item in sorted(texts, key=item_key)}


def _texts_of_transcript(path: str, ledger: LedgerHistory) -> dict[str, str]:
    from otel_assembly.cli.page_files import prompts_and_events
    from otel_assembly.errors import TranscriptError
    from otel_assembly.messages.event_facts import describe
    from otel_assembly.transcripts import read_transcripts

    conversation = summary_of(ledger).conversation
    transcripts = []
    for transcript in read_transcripts([path]):
        if isinstance(transcript, TranscriptError):
            raise transcript
        transcripts.append(transcript)
    matching = [transcript for transcript in transcripts if conversation is not None and transcript.id == conversation]
    if not matching and len(transcripts) > 1:
        raise ConfigurationError(f"{path}: none of its {len(transcripts)} conversations has the id {conversation!r}")
    transcript = (matching or transcripts)[0]
    events = prompts_and_events(transcript, transcript.messages)[1]
    first = len(transcript.messages) - len(events)
    items = sorted((item for item in ledger.items if not item_key(item)[0]), key=item_key)
    texts: dict[str, str] = {}
    for item, message in zip(items, map(describe, events), strict=False):
        if ledger.items[item].bytes != sum(len(text.encode("utf-8", "surrogatepass")) for text in message.texts):
            raise ConfigurationError(
                f"{path}: message {first + len(texts)} does not match item {item} of the spans; they record another"
                " conversation, or a part of this one"
            )
        texts[item] = "\n".join(message.texts)
    return texts


def _excerpt(text: str, term: str) -> str:
    """Return the part of a text around a search term."""
    start = max(0, text.casefold().find(term.casefold()) - _EXCERPT // 4)
    cut = safe_text(text[start : start + _EXCERPT])
    return f"{'…' * (start > 0)}{cut}{'…' * (start + _EXCERPT < len(text))}"


# Printing


def _print_explanation(answer: Explanation) -> None:
    from otel_assembly.explain.wording import detail_lines, headline

    lines = list(detail_lines(answer))
    label = max((len(name) for name, _ in lines), default=0)
    print(_wrapped("", headline(answer), 0))
    for name, sentence in lines:
        print(_wrapped(name, sentence, label))


def _wrapped(name: str, sentence: str, label: int) -> str:
    first = f"  {name:<{label}}  " if label else ""
    text = textwrap.fill(
        safe_text(sentence),
        _width(),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return _encodable(text)


def _width() -> int:
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, 100))


def _encodable(text: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _print_dropped(explainer: Explainer, groups: Sequence[DroppedGroup]) -> None:
    """Print a table of the items that the turn's prompt lacks, grouped by the policy and the rule that dropped them."""
    count = sum(len(group.items) for group in groups)
    unsent = explainer.unsent
    if unsent is not None:
        _print_unsent(explainer.number, unsent, groups)
        return
    for turn in explainer.ledger.turns:
        if turn.number == explainer.number and turn.attributes.get(names.OVERFLOWED) is True:
            print(_wrapped("", f"Turn {turn.number} overflowed: {overflow_text(turn.attributes)}.", 0))
    if not count:
        print(f"No item is missing from the prompt of turn {explainer.number}.")
        return
    print(_wrapped("", f"Not in the prompt of turn {explainer.number}: {count:,} item{'s' * (count != 1)}.", 0))
    rows = [
        (
            group.policy or "unknown",
            group.reason or "unknown",
            f"{len(group.items):,}",
            f"{group.tokens:,}" if group.tokens is not None else "unknown",
            ", ".join(ranges_of(group.items)),
        )
        for group in groups
    ]
    _print_table(("policy", "rule", "items", "tokens", "item ids"), rows)


def _print_unsent(number: int, unsent: Unsent, groups: Sequence[DroppedGroup]) -> None:
    """Print why a turn sent no prompt to the model, and a table of what happened to its input items."""
    from otel_assembly.explain.wording import unsent_lines

    print(_wrapped("", f"Nothing was sent on turn {number}.", 0))
    lines = list(unsent_lines(unsent))
    label = max((len(name) for name, _ in lines), default=0)
    for name, sentence in lines:
        print(_wrapped(name, sentence, label))
    if not groups:
        return
    rows = [
        (
            f"dropped by {group.policy}" if group.part == "taken" else (group.part or "unknown").replace("_", " "),
            group.reason if group.part == "taken" and group.reason else "",
            f"{len(group.items):,}",
            f"{group.tokens:,}" if group.tokens is not None else "unknown",
            ", ".join(ranges_of(group.items)),
        )
        for group in groups
    ]
    _print_table(("input", "rule", "items", "tokens", "item ids"), rows)


def _print_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(4)]
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3].rjust(widths[3])]
        first = f"  {'  '.join(cells)}  "
        print(_encodable(safe_text(first) + textwrap.shorten(row[4], max(12, _width() - len(first)), placeholder=" …")))
