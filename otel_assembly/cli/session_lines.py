"""The text output of ``session``: sessions and envelopes, in lines that fit the terminal."""

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
    from otel_assembly.sessions.session_check import SessionCheck
    from otel_assembly.sessions.session_summary import SessionSummary

_INDENT: Final = "    "
#: The most characters of an envelope's text that are printed.
_LONGEST: Final = 400


def terminal_width() -> int:
    """Return the columns of the terminal, from 40 to 120."""
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, 120))


def time_of(seconds: Any, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a Unix time in UTC; return a question mark if `seconds` is not a valid time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (TypeError, ValueError, OverflowError, OSError):
        return "?"


class Lines:
    """Prints the sessions of a log, their envelopes (messages between participants), and problems.

    Args:
        width: The columns of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._glyphs = UNICODE if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else ASCII
        self._day = ""

    def fitted(self, text: str, indent: str = "", suffix: str = "") -> str:
        """Return a safe text on one line, with `indent` and `suffix`, truncated to the width of the terminal."""
        room = self._width - len(indent) - len(suffix)
        safe, ellipsis = self._glyphs.printable(text, _LONGEST), self._glyphs.ellipsis
        if _columns(safe) > room:
            while _columns(safe) > room - len(ellipsis) and safe:
                safe = safe[:-1]
            safe = safe.rstrip() + ellipsis
        return indent + safe + suffix

    def wrapped(self, text: str, indent: str = "") -> str:
        """Make a text safe to print, and return it wrapped to the width of the terminal.

        Args:
            text: The text, which may contain control characters; a very long text is truncated.
            indent: The indentation of each line.
        """
        safe = self._glyphs.printable(text, 10 * _LONGEST)
        return textwrap.fill(safe, self._width, initial_indent=indent, subsequent_indent=indent)

    def summary(self, summary: SessionSummary) -> None:
        """Print a session's entry in the list of sessions."""
        metadata = summary.metadata
        if metadata is None or summary.state is None:
            print(self.fitted(f"{summary.session_id}  damaged"))
            self.problem(summary.damage or "")
            return
        print(self.fitted(f"{summary.session_id}  {_protocol(metadata)}  {summary.state.value}"))
        envelopes = _plural(summary.envelopes, "envelope")
        line = f"{envelopes}, last {time_of(summary.last_at)}: {', '.join(metadata.participants)}"
        print(self.fitted(line, _INDENT))
        missing = [participant for participant in metadata.participants if participant not in summary.joined]
        if summary.state is SessionState.PENDING and missing:
            print(self.fitted(f"waiting for {', '.join(missing)} to join", _INDENT))
        if summary.damage is not None:
            self.problem(summary.damage)

    def head(self, reading: Reading) -> None:
        """Print a session's metadata: id, protocol, creator, other participants and expiry."""
        metadata = reading.metadata
        print(self.fitted(f"{metadata.session_id}  {_protocol(metadata)}"))
        others = [participant for participant in metadata.participants if participant != metadata.creator_id]
        print(self.fitted(f"created {time_of(metadata.created_at)} by {metadata.creator_id}", _INDENT))
        print(self.wrapped(f"with {', '.join(others)}", _INDENT))
        if metadata.ttl_seconds is not None:
            print(self.fitted(f"expires after {metadata.ttl_seconds:g} s", _INDENT))

    def envelope(self, envelope: Envelope, reading: Reading) -> None:
        """Print an envelope: number, time, sender, audience and type on one line, its text on the next."""
        day = time_of(envelope.created_at, "%Y-%m-%d")
        if day != self._day:
            self._day = day
            print(f"\n{_INDENT}{day}")
        audience = envelope.audience
        to = "" if audience is None else f" {self._glyphs.arrow} {', '.join(audience) or '(no recipient)'}"
        head = f"{envelope.seq:>6}  {time_of(envelope.created_at, '%H:%M:%S')}  {envelope.sender_id}{to}"
        kind = self._glyphs.printable(envelope.event_type, max(self._width - 40, 20))
        print(self.fitted(head, suffix=f"  {kind}"))
        if envelope.event_type == EV_EXPECTATION_VIOLATED:
            print(self.fitted(f"{self._glyphs.warning} {_violation(envelope.event_data)}", " " * 8))
        elif text := reading.text_of(envelope) or _plain_text(envelope.event_data):
            print(self.fitted(text, " " * 8))

    def foot(self, reading: Reading) -> None:
        """Print the state after a session's last envelope, its violations, and the participant expected next."""
        print()
        folded, turn = reading.folded, reading.expected()
        print(f"{_plural(folded.seq, 'envelope')}; the session is {folded.state.value}")
        if reading.damage is not None:
            print(self.wrapped(f"{self._glyphs.stop} {reading.damage}"))
        if reading.violations:
            rows = ", ".join(map(str, reading.violated_rows)) + (
                ", ..." if reading.violations > len(reading.violated_rows) else ""
            )
            print(self.wrapped(f"violated: {_plural(reading.violations, 'expectation')}, recorded in row {rows}"))
        if reading.fold_problem is not None:
            print(self.wrapped(f"expected next: unknown: {reading.fold_problem}"))
        elif turn is not None:
            again = ", again" if turn.again else ""
            print(self.fitted(f"expected next: {turn.participant_id}{again}"))
        elif folded.state is SessionState.PENDING:
            participants = reading.metadata.participants
            missing = [participant for participant in participants if participant not in folded.joined]
            print(self.fitted(f"waiting for {', '.join(missing)} to join"))
        elif folded.state is SessionState.ACTIVE:
            print("expected next: any participant")

    def problem(self, what: str) -> None:
        """Print the description of a problem, wrapped and indented."""
        print(self.wrapped(what, _INDENT))

    def session_ok(self, check: SessionCheck, session_id: str) -> None:
        """Print that a verified session has no problems, and whether its protocol has an adapter."""
        metadata = check.metadata
        kind = _protocol(metadata) if metadata is not None else ""
        print(self.fitted(f"ok       {session_id}  {_plural(check.envelopes, 'envelope')}  {kind}"))
        if check.adapter is None:
            print(self.wrapped("not folded: no adapter for its protocol; name one with --adapter", _INDENT))

    def verdict(self, counts: Mapping[str, int], log_problems: int) -> None:
        """Print how many sessions and envelopes were verified, and how many sessions are damaged."""
        totals = f"{_plural(counts['sessions'], 'session')}, {_plural(counts['envelopes'], 'envelope')}"
        damaged = counts["damaged"]
        result = "all ok" if not damaged else f"{_plural(damaged, 'session')} damaged"
        print(f"{totals}: {result}{', and the log itself' if log_problems else ''}")


def summary_json(summary: SessionSummary) -> dict[str, Any]:
    """Return a session's entry in the list of sessions, as a JSON object."""
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


def metadata_json(reading: Reading) -> dict[str, Any]:
    """Return a session's metadata as a JSON object."""
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
    """Return how many columns a text takes: two for a wide East Asian character, none for a combining character."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _protocol(metadata: SessionMetadata) -> str:
    manifest = metadata.manifest
    return manifest.type if manifest.version == 1 else f"{manifest.type} {manifest.version}"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _violation(data: Mapping[str, Any]) -> str:
    who = data.get("waited_for")
    expected = ", ".join(map(str, who)) if isinstance(who, list | tuple) and who else "any participant"
    seconds = data.get("seconds")
    within = f" {seconds:g} s" if isinstance(seconds, int | float) else ""
    return f"{data.get('kind')}{within} not met by {expected} since row {data.get('since_seq')} ({data.get('action')})"


def _plain_text(data: Mapping[str, Any]) -> str:
    text = data.get("text")
    return text if isinstance(text, str) else json.dumps(data, ensure_ascii=False) if data else ""
