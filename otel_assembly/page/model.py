"""The data of a page: conversations, their ledgers (one for each agent), and the turns and items of each ledger."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.page.fields import Texts, nonempty
from otel_assembly.page.items import changes, item_rows
from otel_assembly.page.turns import halts_of, turn_row
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.jaeger import base_url
from otel_assembly.telemetry.ledger_reader import read_ledgers
from otel_assembly.telemetry.span_values import children_of, item_key, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory, ReportedTurn
    from otel_assembly.telemetry.span_values import SpanLike

    _Children = Mapping[tuple[str, str | None], Sequence[SpanLike]]

_MAX_PROBLEMS: Final = 100


def page_model(
    spans: Iterable[SpanLike],
    *,
    title: str,
    trace_link: str | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the data of a page as a JSON object; values that the spans do not record are absent.

    Ledgers with the same ``gen_ai.conversation.id`` are shown as one conversation. So are ledgers without an id whose
    assemblers have different names and whose input items have the same kinds and bytes.

    Args:
        spans: Exported spans; spans of other programs and duplicates are ignored.
        title: The page's heading.
        trace_link: The link to a trace: the address of a Jaeger, or an http(s) URL that contains ``{trace}`` and
            optionally ``{span}``. None: no links.
        files: A file name for each trace id, which is shown as the name of a conversation without an id. This mapping
            is read after all spans.

    Raises:
        ConfigurationError: `trace_link` is not such a URL.
    """
    link = None if trace_link is None else _link(trace_link)
    span_list = list(spans)
    children = children_of(span_list)
    by_id = {(span.trace_id, span.span_id): span for below in children.values() for span in below}
    texts = Texts()
    ledgers = [_Row(ledger, by_id, children, texts) for ledger in read_ledgers(span_list, allocations=True).values()]
    _add_halts(by_id.values(), ledgers)
    unreadable = [problem for row in ledgers if not row.turns for problem in row.shown.get("problems", ())]
    return nonempty({"traceLink": link}) | {
        "title": title,
        "spans": len(by_id),
        "conversations": _conversations([row for row in ledgers if row.turns], files),
        "problems": unreadable[:_MAX_PROBLEMS],
        "texts": texts.all(),
    }


class _Row:
    """The data of a ledger, and the values by which ledgers are grouped into conversations."""

    def __init__(
        self, ledger: LedgerHistory, spans: Mapping[tuple[str, str], SpanLike], children: _Children, texts: Texts
    ) -> None:
        problems = ledger.problems
        self.turns: list[dict[str, Any]] = []
        before: ReportedTurn | None = None
        for turn in ledger.turns:
            row = turn_row(turn, spans[turn.trace_id, turn.span_id], children, texts)
            self.turns.append(row | changes(ledger, turn, before))
            before = turn if turn.sent else before
        attributes = [turn.attributes for turn in ledger.turns]
        first: Mapping[str, Any] = attributes[0] if attributes else {}
        self.conversation = text(first.get(names.GEN_AI_CONVERSATION_ID))
        self.name = text(first.get(names.NAME))
        self.items = item_rows(ledger, texts)
        self.inputs = tuple((row["k"], row["b"]) for row in self.items if not item_key(row["o"])[0])
        self.shown = nonempty(
            {
                "id": ledger.id,
                "name": self.name,
                "agent": text(first.get(names.GEN_AI_AGENT_NAME)),
                "framework": text(first.get(names.FRAMEWORK)),
                "problems": problems[:_MAX_PROBLEMS],
                "problemCount": len(problems) or None,
            }
        ) | {"turns": self.turns, "items": self.items}


def _link(url: str) -> str:
    """Return the URL of a trace, with placeholders for the trace id and the span id."""
    base = base_url(url, "a page of traces", "http://localhost:16686")
    return url if "{trace}" in url else f"{base}/trace/{{trace}}?uiFind={{span}}"


def _conversations(rows: Sequence[_Row], files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Group ledgers into conversations: by conversation id, or if they have none, by equal input items."""
    groups: dict[Any, list[_Row]] = {}
    for row in rows:
        key: Any = ("id", row.conversation) if row.conversation is not None else ("inputs", row.inputs)
        group = groups.get(key)
        if row.conversation is None and (not row.inputs or (group and row.name in {member.name for member in group})):
            key = ("single", id(row))
        groups.setdefault(key, []).append(row)
    return [
        nonempty({"id": group[0].conversation, "file": files.get(group[0].turns[0]["trace"])})
        | nonempty({"alike": group[0].conversation is None and len(group) > 1})
        | {"ledgers": [row.shown for row in group]}
        for group in groups.values()
    ]


def _add_halts(spans: Iterable[SpanLike], rows: Sequence[_Row]) -> None:
    """Add each halt that was recorded outside an assembly to the signals of a turn.

    The halt belongs to the last turn in the trace of its span. If no span was open at the halt, it has a span of its
    own; then it belongs to the last turn in the trace that this span links to.
    """
    turns: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for turn in row.turns:
            turns.setdefault(turn["trace"], []).append(turn)
    assembly_spans = (names.SPAN_ASSEMBLE_CONTEXT, names.SPAN_APPLY_POLICY)
    for span in spans:
        for halt in halts_of(span) if not span.name.startswith(assembly_spans) else ():
            traces = (span.trace_id, *(link.trace_id for link in getattr(span, "links", ())))
            candidates = next((turns[trace] for trace in traces if trace in turns), [])
            has_halt = any(signal["what"] == "halt" for turn in candidates for signal in turn.get("signals", ()))
            if candidates and not has_halt:
                max(candidates, key=lambda turn: turn["start"]).setdefault("signals", []).append(halt | {"after": True})
