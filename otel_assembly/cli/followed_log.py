"""Follow the log of a coding agent, or another transcript, while it grows; assemble only its new turns."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import islice
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_assembly.cli.replay_turns import ReplayAssembler, turn_inputs
from otel_assembly.cli.tally import Variant
from otel_assembly.cli.transcript_replay import assemble_turn
from otel_assembly.context import Context
from otel_assembly.errors import TranscriptError
from otel_assembly.policies import ConversationPolicy
from otel_assembly.telemetry import ContentCapture, OpenTelemetryRecorder, TelemetrySettings
from otel_assembly.telemetry.otlp_json import StoredEvent, StoredLink, StoredSpan
from otel_assembly.tokens import counter_for
from otel_assembly.transcripts import GrowingFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_assembly.assembler import Assembler
    from otel_assembly.cli.replay_turns import TurnInput
    from otel_assembly.transcripts import Transcript

__all__ = ["FollowedLog", "FoundLogs", "LogUpdate"]

#: The names of the files in a directory that can be logs.
_SUFFIXES: Final = frozenset({".json", ".jsonl", ".ndjson"})
#: The most files and directories below a directory that are looked at, and the most directories that are watched.
_MAX_ENTRIES: Final = 20_000
_MAX_FOLDERS: Final = 1_000
#: The files whose lines are kept in memory, so that only appended lines are parsed.
_MAX_FILES: Final = 16
#: The turns in one update, so that the page of a long log shows its first turns early.
_BATCH: Final = 20
#: The problems that are described.
_MAX_PROBLEMS: Final = 100


class LogUpdate(NamedTuple):
    """A change of the page.

    Attributes:
        spans: The spans of new turns.
        removed: The id of a conversation that is removed; it starts again, or the file does not contain it anymore.
    """

    spans: list[StoredSpan]
    removed: str | None = None


class FoundLogs(NamedTuple):
    """The files that can be logs, and the directories that contain them.

    Attributes:
        files: The files.
        folders: The directories in which files change. A program that replaces a file renames another one to its name,
            which only the directory notices. A symbolic link and its target can be in different directories.
    """

    files: list[Path]
    folders: frozenset[Path]


@dataclass(slots=True)
class _Conversation:
    """A conversation, as far as it was assembled.

    Attributes:
        context: The context of its turns, to which the assembler keeps a ledger.
        transcript: The conversation as it was read last.
        count: The number of turns that were assembled.
    """

    context: Context
    transcript: Transcript
    count: int = 0


class FollowedLog:
    """A log file that grows, or a directory, in which the newest file with a conversation is followed.

    Each turn is assembled once. Turns are known if the calls of the last reading are the same objects, or if the inputs
    have the same digests, as in a file that was written again. If an earlier input differs, as after a rewind, the
    conversation starts again.

    Example::

        log = FollowedLog(Path("session.jsonl"), content=True, say=print)
        for update in log.updates(log.find().files):
            page.add(update.spans)

    Args:
        path: The file or the directory.
        content: Whether the spans contain the texts of messages.
        say: Called with a line about each file that is followed, and once with each problem.
    """

    def __init__(self, path: Path, *, content: bool, say: Callable[[str], None]) -> None:
        self._path = path.absolute()
        self._is_folder = path.is_dir()
        self._say = say
        self._said: set[str] = set()
        self._files: OrderedDict[Path, GrowingFile] = OrderedDict()
        self._states: dict[Path, tuple[int, int, int]] = {}
        self._ids: dict[Path, set[str]] = {}
        self._refusals: dict[Path, list[str]] = {}
        self._conversations: dict[str, _Conversation] = {}
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        capture = ContentCapture.SPAN_ONLY if content else ContentCapture.NO_CONTENT
        self._recorder = OpenTelemetryRecorder(tracer_provider=provider, settings=TelemetrySettings(content=capture))
        assembler = ReplayAssembler([ConversationPolicy()], recorder=self._recorder, on_halt="return")
        self._variant = Variant("conversation", lambda: assembler, None, counter_for(), keeps_logged_prompts=True)
        self._variant.assembler = assembler

    @property
    def refusals(self) -> list[str]:
        """The conversations that cannot be read now: file, line, and the problem."""
        return [refusal for refusals in self._refusals.values() for refusal in refusals][:_MAX_PROBLEMS]

    def find(self) -> FoundLogs:
        """Return the files to follow; in a directory, those in all directories below it.

        Hidden directories and symbolic links to directories are skipped. The most recently changed directories are
        searched first, because the number of files is limited.
        """
        if not self._is_folder:
            folders = {self._path.parent.resolve(), self._path.resolve().parent}
            return FoundLogs([self._path], frozenset(folders))
        files: list[Path] = []
        folders = set()
        count = 0
        waiting = [(0, self._path.resolve())]
        while waiting and count < _MAX_ENTRIES and len(folders) < _MAX_FOLDERS:
            folder = heappop(waiting)[1]
            try:
                with os.scandir(folder) as entries:
                    for entry in islice(entries, _MAX_ENTRIES - count):
                        count += 1
                        path = Path(entry.path)
                        if entry.is_dir(follow_symlinks=False):
                            if not entry.name.startswith("."):
                                heappush(waiting, (-entry.stat(follow_symlinks=False).st_mtime_ns, path))
                        elif path.suffix.lower() in _SUFFIXES:
                            files.append(path)
                folders.add(folder)
            except OSError:  # it was removed, or is private
                continue
        if waiting or count >= _MAX_ENTRIES:
            self._report(
                f"{self._path}: looks at {_MAX_ENTRIES:,} files and {_MAX_FOLDERS:,} directories at most; name a "
                "directory below it to follow a log that is not found"
            )
        return FoundLogs(files, frozenset(folders))

    def updates(self, paths: Iterable[Path]) -> Iterator[LogUpdate]:
        """Read the files that have changed, and yield the changes of the page.

        Args:
            paths: The files of `find`, or the paths that have changed. Of the files that were not followed before, only
                the newest one with a conversation is read.
        """
        logs = (path for path in paths if path.suffix.lower() in _SUFFIXES) if self._is_folder else [self._path]
        states = {path: state for path in logs if (state := _state(path)) is not None}
        newest = sorted(states, key=lambda path: states[path], reverse=True)
        known = [path for path in newest if path in self._ids]
        for path in known:
            yield from self._updates_of(path, states[path])
        for path in newest:
            if path in known:
                break
            yield from self._updates_of(path, states[path])
            if path in self._ids:
                break
        if not self._ids and self._is_folder:
            self._report(f"{self._path}: no file with a conversation yet (.json, .jsonl, .ndjson)")

    def _updates_of(self, path: Path, state: tuple[int, int, int]) -> Iterator[LogUpdate]:
        """Read a file if it has changed, and yield its changes; follow it if it contains a conversation."""
        if self._states.get(path) == state:
            return
        file = self._files.setdefault(path, GrowingFile(path))
        found: set[str] = set()
        refusals: list[str] = []
        for transcript in file.read():
            if isinstance(transcript, TranscriptError):
                # A directory can contain other files, too.
                if not self._is_folder or path in self._ids or transcript.recognized_as is not None:
                    refusals.append(str(transcript))
                    self._report(refusals[-1])
                continue
            if path not in self._ids:
                self._ids[path] = set()
                missing = f"; the log does not contain: {', '.join(transcript.unknown)}" if transcript.unknown else ""
                self._say(f"follows {path} ({transcript.format}){missing}")
            found.add(transcript.id)
            yield from self._updates_of_conversation(transcript)
            for text in transcript.skipped:
                self._report(f"{path}: not understood: {text}")
        self._states[path] = state
        if file.is_partial:
            self._ids[path] |= found
            refusals = [*self._refusals.get(path, ()), *refusals][:_MAX_PROBLEMS]
        elif found and not refusals:
            for conversation in self._ids[path] - found:
                if self._conversations.pop(conversation, None) is not None:
                    yield LogUpdate([], conversation)
            self._ids[path] = found
        self._refusals[path] = refusals
        self._files.move_to_end(path)
        if path not in self._ids or len(self._files) > _MAX_FILES:
            self._files.pop(path if path not in self._ids else next(iter(self._files)))

    def _updates_of_conversation(self, transcript: Transcript) -> Iterator[LogUpdate]:
        known = self._conversations.get(transcript.id)
        if known is None or not _continues(known, transcript):
            if known is not None:
                yield LogUpdate([], transcript.id)
            # Only a log has the model calls of an agent; other transcripts are conversations of any program.
            agent = "replay" if transcript.calls is None else transcript.format
            context = Context(conversation_id=transcript.id, agent_name=agent, tools=transcript.tools)
            known = self._conversations[transcript.id] = _Conversation(context, transcript)
        known.transcript = transcript
        # A ledger of lists recognizes messages that were read again, by their content.
        turns = (replace(turn, events=list(turn.events)) for turn in turn_inputs(transcript, known.count))
        while batch := list(islice(turns, _BATCH)):
            asyncio.run(self._assemble(batch, self._variant.assembler_for(transcript), known.context))
            known.count += len(batch)
            spans = [_stored(span) for span in self._exporter.get_finished_spans()]
            self._exporter.clear()
            yield LogUpdate(spans)

    async def _assemble(self, turns: list[TurnInput], assembler: Assembler, context: Context) -> None:
        with ExitStack() as run:
            for number, turn in enumerate(turns):
                if turn.starts_run or not number:
                    run.close()
                    agent = context.agent_name or ""
                    run.enter_context(self._recorder.invoke_agent(agent, conversation_id=context.conversation_id))
                await assemble_turn(assembler, turn, context)

    def _report(self, problem: str) -> None:
        if problem not in self._said and len(self._said) < _MAX_PROBLEMS:
            self._said.add(problem)
            self._say(problem)


def _continues(known: _Conversation, transcript: Transcript) -> bool:
    """Return whether the turns that were assembled are also the first turns of a newer reading."""
    before = known.transcript
    if before.calls is not None and transcript.calls is not None and len(before.calls) <= len(transcript.calls):
        is_same = all(map(is_, before.calls, transcript.calls))
        if is_same and (before.tools, before.prompts) == (transcript.tools, transcript.prompts):
            return True
    digests = _digests(before, known.count)
    return digests == _digests(transcript, known.count)


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a regular file is written or replaced; None for other paths."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if path.is_file() else None


def _digests(transcript: Transcript, count: int) -> list[bytes]:
    """Return the digest of the input of each of the first turns."""
    digests: list[bytes] = []
    of_message: dict[int, bytes] = {}
    tools = json.dumps(transcript.tools, sort_keys=True).encode()
    for turn in islice(turn_inputs(transcript), count):
        digest = blake2b(tools, digest_size=16)
        digest.update(json.dumps([list(turn.prompts), turn.reduction is not None]).encode())
        for event in turn.events:
            if id(event) not in of_message:
                text = json.dumps(event, sort_keys=True, default=str)
                of_message[id(event)] = blake2b(text.encode(), digest_size=16).digest()
            digest.update(of_message[id(event)])
        digests.append(digest.digest())
    return digests


def _stored(span: ReadableSpan) -> StoredSpan:
    """Return a span in the form of spans that are read from a file."""
    own, parent = span.get_span_context(), span.parent
    assert own is not None  # noqa: S101  # the SDK gives each span a context
    return StoredSpan(
        trace_id=f"{own.trace_id:032x}",
        span_id=f"{own.span_id:016x}",
        parent_id=None if parent is None else f"{parent.span_id:016x}",
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=_values(span.attributes),
        events=[StoredEvent(event.name, event.timestamp, _values(event.attributes)) for event in span.events],
        links=[
            StoredLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _values(link.attributes))
            for link in span.links
        ],
    )


def _values(attributes: Any) -> dict[str, Any]:
    """Return attributes with arrays as lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in (attributes or {}).items()}
