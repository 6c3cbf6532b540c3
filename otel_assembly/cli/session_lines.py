"""`Lines`: sessions, and envelopes, as lines that fit a terminal."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.cli.terminal import ASCII, UNICODE
from otel_assembly.sessions import EV_EXPECTATION_VIOLATED, SessionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.cli.session_reading import Reading
    from otel_assembly.sessions import Envelope, SessionMetadata
    from otel_assembly.sessions.summing_up import SessionSummary
    from otel_assembly.sessions.verifying import SessionCheck

_INDENT: Final = "    "
#: The longest text of an envelope that is looked at.
_LONGEST: Final = 400


def terminal_width() -> int:
    """How many columns there are, within reason."""
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, 120))


def time_of(seconds: Any, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time in seconds since the epoch, in UTC; a question mark where it is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (TypeError, ValueError, OverflowError, OSError):
        return "?"


class Lines:
    """Prints what was read of a log.

    Args:
        width: The columns of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._glyphs = UNICODE if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else ASCII
        self._day = ""

    def fitted(self, text: str, indent: str = "", behind: str = "") -> str:
        """A text from outside on one line, as much of it as fits in front of what is printed `behind` it."""
        room = self._width - len(indent) - len(behind)
        safe, ellipsis = self._glyphs.printable(text, _LONGEST), self._glyphs.ellipsis
        if _columns(safe) > room:
            while _columns(safe) > room - len(ellipsis) and safe:
                safe = safe[:-1]
            safe = safe.rstrip() + ellipsis
        return indent + safe + behind

    def wrapped(self, text: str, indent: str = "") -> str:
        """A text from outside on as many lines as it takes."""
        safe = self._glyphs.printable(text, 10 * _LONGEST)
        return textwrap.fill(safe, self._width, initial_indent=indent, subsequent_indent=indent)

    def summary(self, summary: SessionSummary) -> None:
        """Print a session of the list."""
        metadata = summary.metadata
        if metadata is None or summary.state is None:
            print(self.fitted(f"{summary.session_id}  damaged"))
            self.problem(summary.damage or "")
            return
        print(self.fitted(f"{summary.session_id}  {_protocol(metadata)}  {summary.state.value}"))
        envelopes = _counted(summary.envelopes, "envelope")
        said = f"{envelopes}, last {time_of(summary.last_at)}: {', '.join(metadata.participants)}"
        print(self.fitted(said, _INDENT))
        missing = [one for one in metadata.participants if one not in summary.joined]
        if summary.state is SessionState.PENDING and missing:
            print(self.fitted(f"waits for {', '.join(missing)} to join", _INDENT))
        if summary.damage is not None:
            self.problem(summary.damage)

    def head(self, reading: Reading) -> None:
        """Print what was settled when a session was created."""
        metadata = reading.metadata
        print(self.fitted(f"{metadata.session_id}  {_protocol(metadata)}"))
        others = [one for one in metadata.participants if one != metadata.creator_id]
        print(self.fitted(f"created {time_of(metadata.created_at)} by {metadata.creator_id}", _INDENT))
        print(self.wrapped(f"with {', '.join(others)}", _INDENT))
        if metadata.ttl_seconds is not None:
            print(self.fitted(f"lives for {metadata.ttl_seconds:g} s", _INDENT))

    def envelope(self, envelope: Envelope, reading: Reading) -> None:
        """Print an envelope: what it is on one line, what it says on a second one."""
        day = time_of(envelope.created_at, "%Y-%m-%d")
        if day != self._day:
            self._day = day
            print(f"\n{_INDENT}{day}")
        to = "" if envelope.audience is None else f" {self._glyphs.arrow} {', '.join(envelope.audience) or 'nobody'}"
        head = f"{envelope.seq:>6}  {time_of(envelope.created_at, '%H:%M:%S')}  {envelope.sender_id}{to}"
        kind = self._glyphs.printable(envelope.event_type, max(self._width - 40, 20))
        print(self.fitted(head, behind=f"  {kind}"))
        if envelope.event_type == EV_EXPECTATION_VIOLATED:
            print(self.fitted(f"{self._glyphs.warning} {_violation(envelope.event_data)}", " " * 8))
        elif said := reading.text_of(envelope) or _plain(envelope.event_data):
            print(self.fitted(said, " " * 8))

    def foot(self, reading: Reading) -> None:
        """Print where a session stands once all of it was shown."""
        print()
        folded, turn = reading.folded, reading.expected()
        print(f"{_counted(folded.seq, 'envelope')}; the session is {folded.state.value}")
        if reading.damage is not None:
            print(self.wrapped(f"{self._glyphs.stop} {reading.damage}"))
        if reading.violations:
            rows = ", ".join(map(str, reading.violated)) + (
                ", ..." if reading.violations > len(reading.violated) else ""
            )
            print(self.wrapped(f"violated: {_counted(reading.violations, 'expectation')}, told in row {rows}"))
        if reading.unfolded is not None:
            print(self.wrapped(f"who is expected next is not known: {reading.unfolded}"))
        elif turn is not None:
            again = ", once more" if turn.again else ""
            print(self.fitted(f"expected next: {turn.participant_id}{again}"))
        elif folded.state is SessionState.PENDING:
            missing = [one for one in reading.metadata.participants if one not in folded.joined]
            print(self.fitted(f"waits for {', '.join(missing)} to join"))
        elif folded.state is SessionState.ACTIVE:
            print("expected next: nobody in particular")

    def problem(self, what: str) -> None:
        """Print what is wrong."""
        print(self.wrapped(what, _INDENT))

    def whole(self, check: SessionCheck, session_id: str) -> None:
        """Print that a session is what hubs left."""
        metadata = check.metadata
        kind = _protocol(metadata) if metadata is not None else ""
        print(self.fitted(f"whole    {session_id}  {_counted(check.envelopes, 'envelope')}  {kind}"))
        if check.adapter is None:
            print(self.wrapped("not folded: no adapter for its protocol is known here; give --adapter", _INDENT))

    def verdict(self, counts: Mapping[str, int], of_log: int) -> None:
        """Print what was found in all."""
        read = f"{_counted(counts['sessions'], 'session')}, {_counted(counts['envelopes'], 'envelope')}"
        damaged = counts["damaged"]
        found = "all whole" if not damaged else f"{_counted(damaged, 'session')} damaged"
        print(f"{read}: {found}{', and the log itself' if of_log else ''}")


def summary_json(summary: SessionSummary) -> dict[str, Any]:
    """A session of the list, for JSON."""
    metadata = summary.metadata
    return {
        "id": summary.session_id,
        "type": None if metadata is None else metadata.manifest.type,
        "version": None if metadata is None else metadata.manifest.version,
        "state": None if summary.state is None else summary.state.value,
        "participants": [] if metadata is None else list(metadata.participants),
        "joined": list(summary.joined),
        "envelopes": summary.envelopes,
        "last_at": summary.last_at,
        "damage": summary.damage,
    }


def shown_json(reading: Reading) -> dict[str, Any]:
    """What was settled when a session was created, for JSON."""
    metadata = reading.metadata
    return {
        "type": metadata.manifest.type,
        "version": metadata.manifest.version,
        "creator": metadata.creator_id,
        "participants": list(metadata.participants),
        "knobs": dict(metadata.knobs),
        "created_at": metadata.created_at,
        "ttl_seconds": metadata.ttl_seconds,
    }


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: a letter of East Asia takes two, what is set over another none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _protocol(metadata: SessionMetadata) -> str:
    manifest = metadata.manifest
    return manifest.type if manifest.version == 1 else f"{manifest.type} {manifest.version}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _violation(data: Mapping[str, Any]) -> str:
    who = data.get("waited_for")
    waited = ", ".join(map(str, who)) if isinstance(who, list | tuple) and who else "anybody"
    seconds = data.get("seconds")
    within = f" {seconds:g} s" if isinstance(seconds, int | float) else ""
    return f"{data.get('kind')}{within} not met by {waited} since row {data.get('since_seq')} ({data.get('action')})"


def _plain(data: Mapping[str, Any]) -> str:
    text = data.get("text")
    return text if isinstance(text, str) else json.dumps(data, ensure_ascii=False) if data else ""
