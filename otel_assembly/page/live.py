"""Update a page while spans arrive: in any order, several times, and long after each other.

The spans of a turn are read again when one more of them arrives, by the reader that also reads span files. Spans are
kept for a short time only; what the page shows is kept as rows.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import OverflowCause
from otel_assembly.errors import AssemblyError
from otel_assembly.page.fields import MAX_TEXT, Texts, nonempty
from otel_assembly.page.items import changes, item_rows
from otel_assembly.page.row_store import RowStore, compact
from otel_assembly.page.turns import signal_of, turn_row
from otel_assembly.telemetry import conventions as names
from otel_assembly.telemetry.ledger_reader import read_ledgers
from otel_assembly.telemetry.span_values import ItemRanges, children_of, integer, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_assembly.telemetry.ledger_history import LedgerHistory
    from otel_assembly.telemetry.otlp_json import StoredEvent, StoredLogEvent, StoredSpan

    _Key = tuple[str, str]

#: The spans that wait for their parents or children: at most so many, and with at most so many characters.
_MAX_SPANS: Final = 10_000
_MAX_CHARACTERS: Final = 16 << 20
#: The traces whose newest turn is known, for halts that are recorded outside assemblies.
_MAX_TRACES: Final = 10_000
#: The most items that a turn may list. Each update reads the lists of two turns.
_MAX_ITEMS: Final = 1_000_000
#: The levels of spans below an assembly.
_DEEPEST: Final = 8
#: The turns in one part of a snapshot.
_PART: Final = 500

_OWN_SPANS: Final = (
    names.SPAN_ASSEMBLE_CONTEXT,
    names.SPAN_APPLY_POLICY,
    names.SPAN_ALLOCATE_BUDGET,
    names.SPAN_ALLOCATE_BLOCK,
    names.SPAN_COMPACT_BLOCK,
    names.SPAN_LIST_ITEMS,
)


def is_page_span(name: str, events: Iterable[str]) -> bool:
    """Return whether a page shows a span with this name and these events; other spans need not be read."""
    return name.startswith(_OWN_SPANS) or any(event in (names.EVENT_HALT, names.EVENT_OVERFLOW) for event in events)


@dataclass(slots=True)
class LiveUpdate:
    """The result of new spans.

    Attributes:
        patch: The changed rows, as the JSON that the page's script applies; None if the page does not change.
        assemblies: The spans of each turn that is new or has changed: the assembly, then the spans below it.
        problems: A description for each turn that is skipped: it has another format, or lists too many items.
    """

    patch: str | None = None
    assemblies: list[list[StoredSpan]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class LivePage:
    """Makes the rows of a page from spans as they arrive.

    Example::

        page = LivePage(RowStore())
        update = page.add(spans)
        send(update.patch)

    Args:
        rows: The store of the rows, whose earlier conversations are shown too.
    """

    def __init__(self, rows: RowStore) -> None:
        self._rows = rows
        self._spans: OrderedDict[_Key, StoredSpan] = OrderedDict()
        self._children: dict[_Key, dict[str, StoredSpan]] = {}
        self._characters = 0
        self._newest_turns: OrderedDict[str, tuple[str, int, int]] = OrderedDict()
        self._early_signals: OrderedDict[str, tuple[_Key | None, dict[str, Any]]] = OrderedDict()
        self._halted_traces: OrderedDict[str, bool] = OrderedDict()
        self._early_halts: OrderedDict[_Key, tuple[str, int]] = OrderedDict()

    def add(self, spans: Iterable[StoredSpan], log_events: Iterable[StoredLogEvent] = ()) -> LiveUpdate:
        """Add spans, and log records with event names; return the changes of the page.

        A span that was added before is ignored.
        """
        changed: dict[_Key, StoredSpan] = {}
        outside: list[tuple[tuple[str, ...], _Key | None, StoredEvent]] = []
        patch = _Patch(self._rows)
        update = LiveUpdate()
        for span in spans:
            if not span.name.startswith(_OWN_SPANS):
                traces = (span.trace_id, *(link.trace_id for link in span.links))
                outside += ((traces, None, event) for event in span.events)
            elif self._keep(span):
                self._remove_early_halt((span.trace_id, span.span_id), patch)
                if (assembly := self._assembly_of(span)) is not None:
                    changed[assembly.trace_id, assembly.span_id] = assembly
        for record in log_events:
            outside.append(((record.trace_id,), (record.trace_id, record.span_id), record.event))
        waiting = sorted(changed.values(), key=lambda span: span.end_ns)
        for assembly in waiting:
            tree = [assembly, *self._below(assembly)]
            try:
                later = self._add_turn(tree, patch)
            except AssemblyError as error:
                update.problems.append(str(error))
                continue
            if later is not None:
                update.assemblies.append(tree)
            if later and later not in changed and later in self._spans:
                changed[later] = self._spans[later]
                waiting.append(self._spans[later])
        for traces, source, event in outside:
            self._add_signal(traces, source, event, patch)
        removed, trimmed = self._rows.shrink(patch.conversations)
        self._rows.commit()
        update.patch = patch.json(removed, trimmed)
        return update

    def remove(self, conversation_id: str) -> str:
        """Remove a conversation; return the patch that removes it from a page."""
        key = f"id {conversation_id}"
        self._rows.remove(key)
        self._rows.commit()
        return compact({"removed": [key]})

    def snapshot(self) -> Iterator[str]:
        """Yield patches that build the whole page from nothing."""
        for key, conversation_id in self._rows.conversations():
            texts = {number: json.loads(entry) for number, entry in self._rows.texts(key)}
            yield compact({"texts": texts})
            for ledger, head in self._rows.ledgers(key):
                items, first = self._rows.items(ledger), 0
                while True:
                    turns = self._rows.turns(ledger, first, _PART)
                    whole = compact(nonempty({"key": key, "id": conversation_id}))
                    rows = f'"turns":[{",".join(row for _, row in turns)}],"items":[{",".join(items)}]'
                    yield f'{{"conversations":[{whole[:-1]},"ledgers":[{head[:-1]},{rows}}}]}}]}}'
                    if len(turns) < _PART:
                        break
                    items, first = iter(()), turns[-1][0] + 1

    def _keep(self, span: StoredSpan) -> bool:
        """Keep a span for a while; return False if it was kept before, or if it is a turn that is stored already."""
        key = span.trace_id, span.span_id
        if key in self._spans or (_is_turn(span) and self._is_stored(span)):
            return False
        self._spans[key] = span
        self._children.setdefault((span.trace_id, span.parent_id or ""), {})[span.span_id] = span
        self._characters += _size(span)
        while len(self._spans) > _MAX_SPANS or (self._characters > _MAX_CHARACTERS and len(self._spans) > 1):
            (trace, span_id), oldest = self._spans.popitem(last=False)
            siblings = self._children[trace, oldest.parent_id or ""]
            del siblings[span_id]
            if not siblings:
                del self._children[trace, oldest.parent_id or ""]
            self._characters -= _size(oldest)
        return True

    def _is_stored(self, span: StoredSpan) -> bool:
        """Return whether the row of a turn is stored. Its spans are forgotten, so the turn cannot be read again."""
        number = integer(span.attributes.get(names.TURN)) or 0
        stored = self._rows.turn(str(span.attributes[names.LEDGER_ID]), number)
        return stored is not None and stored.span == span.span_id

    def _assembly_of(self, span: StoredSpan) -> StoredSpan | None:
        """Return the assembly that a span belongs to; None if that has not arrived."""
        ancestor: StoredSpan | None = span
        for _ in range(_DEEPEST):
            if ancestor is None or _is_turn(ancestor):
                return ancestor
            ancestor = self._spans.get((ancestor.trace_id, ancestor.parent_id or ""))
        return None

    def _below(self, span: StoredSpan, depth: int = _DEEPEST) -> Iterator[StoredSpan]:
        """Yield the spans below an assembly, without other assemblies."""
        for child in [*self._children.get((span.trace_id, span.span_id), {}).values()] if depth else ():
            if not _is_turn(child):
                yield child
                yield from self._below(child, depth - 1)

    def _add_turn(self, tree: Sequence[StoredSpan], patch: _Patch) -> _Key | tuple[()] | None:
        """Add the turn of an assembly's spans to the rows and to a patch.

        Returns:
            None if the turn did not change. Else the key of the span of the next turn, if that turn arrived earlier and
            now has another turn before it; or an empty tuple.

        Raises:
            AssemblyError: The turn has another format, or lists too many items.
        """
        assembly = tree[0]
        history = next(iter(read_ledgers(tree, allocations=True, all_turns=False).values()), None)
        if history is None or not history.turns:
            return None
        (turn,) = history.turns
        if max(len(turn.kept), 0 if turn.offered is None else len(turn.offered)) > _MAX_ITEMS:
            raise AssemblyError(f"turn {turn.number} lists more than {_MAX_ITEMS:,} items and is skipped")
        stored = self._rows.turn(history.id, turn.number)
        if stored is not None and stored.span != turn.span_id:
            return None  # a second assembly with the same number; the first one is shown
        texts = patch.texts_of(history, turn.attributes)
        for item in turn.arrived:
            row = self._rows.item(history.id, item)
            if row is not None and row.get("t", turn.number) < turn.number:
                history.items[item] = replace(history.items[item], turn=row["t"])
        before = self._rows.sent_before(history.id, turn.number)
        row = turn_row(turn, assembly, children_of(tree), texts)
        row |= changes(history, turn, None if before is None else _Earlier(before["n"], ItemRanges(before.get("kept"))))
        row |= nonempty({"problems": history.problems[:3]})
        source, early_signal = self._early_signals.pop(assembly.trace_id, (None, None))
        later_signals = [early_signal] if early_signal is not None and source not in self._spans else []
        if stored is not None:
            later_signals += [signal for signal in json.loads(stored.row).get("signals", ()) if signal.get("after")]
        if later_signals:
            row["signals"] = [*row.get("signals", ()), *later_signals]
        if any(signal["what"] == "halt" for signal in row.get("signals", ())):
            _remember(self._halted_traces, assembly.trace_id, True)
        for fresh in item_rows(history, texts):
            patch.add_item(history.id, _merged(self._rows.item(history.id, fresh["o"]), fresh))
        patch.add_turn(history.id, turn.span_id, row)
        newest = self._newest_turns.get(assembly.trace_id)
        if newest is None or newest[2] <= assembly.start_ns:
            _remember(self._newest_turns, assembly.trace_id, (history.id, turn.number, assembly.start_ns))
        after = self._rows.sent_after(history.id, turn.number) if turn.sent and stored is None else None
        return () if after is None else (after["trace"], after["span"])

    def _add_signal(self, traces: tuple[str, ...], source: _Key | None, event: StoredEvent, patch: _Patch) -> None:
        """Add a halt, or a prompt that the provider refused, to the newest turn of its trace.

        Args:
            traces: The trace of the event, and the traces that its span links to.
            source: The span of a log record. If that span is part of an assembly, it has the event itself.
            event: The event.
            patch: Gets the changed row.
        """
        signal = signal_of(event)
        cause = event.attributes.get(names.OVERFLOW_CAUSE)
        if event.name == names.EVENT_OVERFLOW and cause == OverflowCause.PROVIDER.value:
            tokens = integer(event.attributes.get(names.OVERFLOW_TOKENS))
            signal = nonempty({"what": "overflow", "cause": cause, "tokens": tokens})
        if signal is None or signal["what"] == "alert" or source in self._spans:
            return
        is_halt = signal["what"] == "halt"
        if is_halt and any(trace in self._halted_traces for trace in traces):
            return
        signal["after"] = True
        trace = next((trace for trace in traces if trace in self._newest_turns), None)
        if trace is None:
            for trace in traces:
                _remember(self._early_signals, trace, (source, signal))
            return
        ledger, number, _ = self._newest_turns[trace]
        stored = self._rows.turn(ledger, number)
        if stored is None:
            return
        row = json.loads(stored.row)
        if any(known["what"] == signal["what"] for known in row.get("signals", ())):
            return
        row["signals"] = [*row.get("signals", ()), signal]
        patch.add_turn(ledger, stored.span, row)
        if is_halt:
            _remember(self._halted_traces, trace, True)
            if source is not None:
                _remember(self._early_halts, source, (ledger, number))

    def _remove_early_halt(self, span: _Key, patch: _Patch) -> None:
        """Remove a halt from a turn: its log record belongs to this span, which is part of a later assembly."""
        ledger, number = self._early_halts.pop(span, (None, 0))
        if ledger is None or (stored := self._rows.turn(ledger, number)) is None:
            return
        row = json.loads(stored.row)
        signals = [signal for signal in row.pop("signals", ()) if signal["what"] != "halt" or not signal.get("after")]
        patch.add_turn(ledger, stored.span, row | nonempty({"signals": signals}))
        self._halted_traces.pop(span[0], None)


@dataclass(frozen=True, slots=True)
class _Earlier:
    """An earlier turn, from its row."""

    number: int
    kept: ItemRanges


class _Patch:
    """The changed rows of one update, which it also stores."""

    def __init__(self, rows: RowStore) -> None:
        self._rows = rows
        self._ledgers: dict[str, tuple[str, dict[str, Any]]] = {}
        self._turns: dict[str, dict[int, dict[str, Any]]] = {}
        self._items: dict[str, dict[str, dict[str, Any]]] = {}
        self._texts: dict[int, list[Any]] = {}
        self._ids: dict[str, str | None] = {}

    @property
    def conversations(self) -> Iterable[str]:
        """The keys of the changed conversations."""
        return self._ids

    def texts_of(self, history: LedgerHistory, attributes: Any) -> Texts:
        """Add a ledger, with the names that a turn's attributes contain, and return the texts of its conversation."""
        conversation_id = text(attributes.get(names.GEN_AI_CONVERSATION_ID))
        fresh = {
            "id": history.id,
            "name": text(attributes.get(names.NAME)),
            "agent": text(attributes.get(names.GEN_AI_AGENT_NAME)),
            "framework": text(attributes.get(names.FRAMEWORK)),
        }
        stored = self._rows.ledger(history.id)
        key = f"ledger {history.id}" if conversation_id is None else f"id {conversation_id}"
        head = nonempty(fresh)
        if stored is not None:
            key, head = stored[0], head | stored[1]
        self._ids[key] = conversation_id
        self._ledgers[history.id] = key, head
        self._rows.add_ledger(history.id, key, conversation_id, compact(head))
        return _LiveTexts(self._rows, key, self._texts)

    def add_turn(self, ledger: str, span: str, row: dict[str, Any]) -> None:
        """Store a turn."""
        if ledger not in self._ledgers and (stored := self._rows.ledger(ledger)) is not None:
            self._ledgers[ledger] = stored
            self._ids.setdefault(stored[0], None)
        self._turns.setdefault(ledger, {})[row["n"]] = row
        self._rows.put_turn(ledger, row["n"], span, compact(row))

    def add_item(self, ledger: str, row: dict[str, Any]) -> None:
        """Store an item."""
        self._items.setdefault(ledger, {})[row["o"]] = row
        self._rows.put_item(ledger, row)

    def json(self, removed: Sequence[str], trimmed: dict[str, int]) -> str | None:
        """Return the patch as JSON; None if it is empty."""
        conversations: dict[str, list[dict[str, Any]]] = {}
        for ledger, (key, head) in self._ledgers.items():
            rows = {
                "turns": [*self._turns.get(ledger, {}).values()],
                "items": [*self._items.get(ledger, {}).values()],
            }
            conversations.setdefault(key, []).append(head | rows)
        patch = {
            "conversations": [
                nonempty({"key": key, "id": self._ids[key]}) | {"ledgers": ledgers}
                for key, ledgers in conversations.items()
            ],
            "texts": self._texts,
            "removed": list(removed),
            "trimmed": trimmed,
        }
        filled = {name: value for name, value in patch.items() if value}
        return compact(filled) if filled else None


class _LiveTexts(Texts):
    """The texts of one conversation, whose numbers are those of the store."""

    def __init__(self, rows: RowStore, conversation: str, added: dict[int, list[Any]]) -> None:
        super().__init__()
        self._rows = rows
        self._conversation = conversation
        self._added = added

    def number(self, text: str) -> int:
        """Return the number of a text; store the text if the conversation does not have it."""
        entry: list[Any] = [text[:MAX_TEXT], len(text)] if len(text) > MAX_TEXT else [text]
        number, is_new = self._rows.put_text(self._conversation, text, entry)
        if is_new:
            self._added[number] = entry
        return number


def _is_turn(span: StoredSpan) -> bool:
    return span.name in (names.SPAN_ASSEMBLE_CONTEXT, names.SPAN_ALLOCATE_BUDGET) and names.LEDGER_ID in span.attributes


def _merged(stored: dict[str, Any] | None, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an item that a turn describes again: the first turn's values, and the newest text."""
    if stored is None:
        return fresh
    first, last = (fresh, stored) if fresh.get("t", 0) < stored.get("t", 0) else (stored, fresh)
    described = {number: tokens for row in (first, last) for number, tokens in row["n"]}
    merged = last | first
    if "x" in last:
        merged["x"] = last["x"]
    return merged | {"n": [[number, described[number]] for number in sorted(described)]}


def _size(span: StoredSpan) -> int:
    """Return about how many characters the attributes of a span have."""
    return 500 + sum(
        len(value) if isinstance(value, str) else sum(map(len, map(str, value))) if isinstance(value, list) else 8
        for value in span.attributes.values()
    )


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _MAX_TRACES:
        known.popitem(last=False)
