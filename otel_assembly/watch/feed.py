"""Pass spans to the live page, and its patches to the open pages.

One thread reads requests and changes the page, one after the other. The server's event loop only waits for it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.page import LivePage, RowStore, is_page_span
from otel_assembly.telemetry.otlp_json import read_line, read_log_events
from otel_assembly.telemetry.otlp_protobuf import read_log_request, read_trace_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from otel_assembly.telemetry.otlp_json import StoredLogEvent, StoredSpan

#: The values in one request of OTLP/JSON, estimated by its commas and brackets: each takes about 100 bytes of memory.
_MAX_VALUES: Final = 4_000_000
#: The spans of one request, and the patches that wait for one page. A page that is slower is loaded again.
_MAX_SPANS: Final = 200_000
_MAX_WAITING: Final = 2_000
#: The problems that are described.
_MAX_PROBLEMS: Final = 20


class PageEvent(NamedTuple):
    """A server-sent event for a page: its name, ``message`` for a patch, and its data."""

    name: str
    data: str = ""


class Feed:
    """The data of a running `watch`: the spans go in, patches for each open page come out.

    Example::

        feed = Feed(RowStore())
        await feed.receive("traces", body, is_json=False)
        async for event in feed.events():
            send(event.name, event.data)

    Args:
        rows: The store of the page's rows.
        on_assemblies: Called, in the feed's thread, with the spans of each turn that is new or has changed; None: not.
        on_problem: Called with a description if spans cannot be shown or stored, once per description.
    """

    def __init__(
        self,
        rows: RowStore,
        on_assemblies: Callable[[Sequence[StoredSpan]], None] | None = None,
        on_problem: Callable[[str], None] = lambda problem: None,
    ) -> None:
        self._rows = rows
        self._page = LivePage(rows)
        self._on_assemblies = on_assemblies
        self._on_problem = on_problem
        self._problems: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otel-assembly-watch")
        self._pages: dict[asyncio.Queue[PageEvent | None], asyncio.AbstractEventLoop] = {}
        self._state: PageEvent | None = None
        self._refusals = PageEvent("refusals", "[]")
        self.assemblies = 0
        """The number of assemblies that have arrived."""

    async def receive(self, signal: str, body: bytes, *, is_json: bool) -> str | None:
        """Add the spans or log records of a request to the page.

        Args:
            signal: ``traces`` or ``logs``.
            body: The request's body, without compression.
            is_json: Whether the body is OTLP/JSON; otherwise it is protobuf.

        Returns:
            A description of the unreadable parts; None if everything was readable.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._receive, signal, body, is_json)

    async def add(self, spans: Sequence[StoredSpan]) -> None:
        """Add spans that this process recorded."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._add, spans, ())

    async def remove(self, conversation_id: str) -> None:
        """Remove a conversation from the page."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._remove, conversation_id)

    async def events(self) -> AsyncIterator[PageEvent]:
        """Yield the events for one page: ``reset``, patches that build the page, ``ready``, then one per change.

        The iteration ends when the feed is closed, or when the page does not take its patches.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[PageEvent | None] = asyncio.Queue()

        def subscribe() -> None:
            self._pages[queue] = loop

        # A change after this call is in the queue, and may be in the snapshot too; patches may be applied twice.
        await loop.run_in_executor(self._thread, subscribe)
        try:
            yield PageEvent("reset")
            snapshot = self._page.snapshot()
            while (patch := await loop.run_in_executor(self._thread, next, snapshot, None)) is not None:
                yield PageEvent("message", patch)
            yield PageEvent("ready")
            yield self._refusals
            if self._state is not None:
                yield self._state
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._pages.pop(queue, None)

    def show_end(self, text: str) -> None:
        """Show on all pages that the command has ended."""
        self._state = PageEvent("ended", text)
        self._thread.submit(self._publish, self._state).result()

    def show_refusals(self, refusals: Sequence[str]) -> None:
        """Show on all pages which conversations of a log cannot be read."""
        event = PageEvent("refusals", json.dumps(refusals))
        if event != self._refusals:
            self._refusals = event
            self._thread.submit(self._publish, event).result()

    def close(self) -> None:
        """End the events of all pages, and close the store."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _close(self) -> None:
        self._publish(None)
        self._rows.close()

    def _receive(self, signal: str, body: bytes, is_json: bool) -> str | None:
        spans: list[StoredSpan] = []
        events: list[StoredLogEvent] = []
        if is_json and sum(body.count(mark) for mark in (b"[", b"{", b",")) > _MAX_VALUES:
            return f"more than {_MAX_VALUES:,} values"
        if signal == "traces":
            line = read_line(body) if is_json else read_trace_request(body, wanted=_is_wanted)
            spans = [span for span in line.spans if is_page_span(span.name, (event.name for event in span.events))]
            problem = line.problem
        elif is_json:
            problem, request = _parsed(body)
            events = read_log_events(request) if problem is None else []
        else:
            events, problem = read_log_request(body)
        if len(spans) > _MAX_SPANS:
            return f"more than {_MAX_SPANS:,} spans in one request"
        if spans or events:
            self._add(spans, events)
        return problem

    def _add(self, spans: Sequence[StoredSpan], events: Sequence[StoredLogEvent]) -> None:
        try:
            update = self._page.add(spans, events)
        except Exception as error:  # noqa: BLE001  # a damaged span, or a full disk, must not fail the sender
            reason = f": {error}" if isinstance(error, sqlite3.Error) else ""
            self._report(f"a turn cannot be shown ({type(error).__name__}{reason})")
            return
        for description in update.problems:
            self._report(description)
        if update.patch is not None:
            self._publish(PageEvent("message", update.patch))
        for tree in update.assemblies:
            self.assemblies += 1
            if self._on_assemblies is not None:
                self._on_assemblies(tree)

    def _remove(self, conversation_id: str) -> None:
        self._publish(PageEvent("message", self._page.remove(conversation_id)))

    def _report(self, problem: str) -> None:
        if problem not in self._problems and len(self._problems) < _MAX_PROBLEMS:
            self._problems.add(problem)
            self._on_problem(problem)

    def _publish(self, event: PageEvent | None) -> None:
        for queue, loop in [*self._pages.items()]:
            is_slow = queue.qsize() > _MAX_WAITING
            if is_slow:
                del self._pages[queue]
            loop.call_soon_threadsafe(queue.put_nowait, None if is_slow else event)


def _is_wanted(span: Any) -> bool:
    return is_page_span(span.name, (event.name for event in span.events))


def _parsed(body: bytes) -> tuple[str | None, Any]:
    try:
        return None, json.loads(body)
    except (ValueError, RecursionError):
        return "not JSON", None
