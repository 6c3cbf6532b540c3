"""`ParticipantView`: the part of a session that one participant has read, as a `History`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, overload

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.decision import Outcome
from otel_assembly.errors import AccessDeniedError, AdapterError
from otel_assembly.events import ModelRequest
from otel_assembly.history.history import CONVERSATION_KINDS, History
from otel_assembly.policies.base import DecidingPolicy, as_view
from otel_assembly.recorder import Projection
from otel_assembly.sessions.envelope import Envelope
from otel_assembly.sessions.transcript import Transcript, token_measure
from otel_assembly.sessions.views import FullTranscript, NamedTranscript, TranscriptView, default_name_resolver

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.context import Context
    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.hub import Hub
    from otel_assembly.sessions.metadata import SessionMetadata
    from otel_assembly.sessions.views import ViewPolicy

#: The number of rows that one query reads from a log.
_PAGE: Final = 500
#: The prompt for a participant that has to speak again after its own envelope.
_GO_ON: Final = "It is your turn again: go on."


class ParticipantView:
    """The part of a session that one participant has read, as one growing `History`.

    An envelope is one message of the session's log. Each envelope that the participant may see becomes one event of the
    history when it is read; other envelopes are not in the history, in counts or on spans. The cost of a turn depends
    only on the new envelopes, not on the session's length. The history also contains the participant's own tool calls,
    which are not in the log: if the view is opened again, it has only the envelopes.

    Args:
        hub: The hub that reads the session.
        session: The session.
        adapter: The code of the session's protocol.
        participant_id: The participant.
        view: Selects the events for a prompt; None for the protocol's default.
        name_for: Returns a participant's name for the model.

    Attributes:
        session: The session.
        participant_id: The participant.
        view: Selects the events for a prompt.
        history: The events. Before the first read, it can be replaced by another empty history.
        transcript: The events that represent envelopes.
        policies: The policies that select the events for a prompt; run them before the reductions of a chain.
        seq: The number of the last row of the log that was read.
    """

    def __init__(
        self,
        hub: Hub,
        session: SessionMetadata,
        adapter: SessionAdapter,
        participant_id: str,
        *,
        view: ViewPolicy | None = None,
        name_for: Callable[[str], str] = default_name_resolver,
    ) -> None:
        self.session = session
        self.participant_id = participant_id
        chosen: ViewPolicy | None = view if view is not None else adapter.default_view_policy(session, participant_id)
        self.view: ViewPolicy = chosen if chosen is not None else FullTranscript()
        self.history = History()
        self.transcript = Transcript()
        self.seq = 0
        self._hub = hub
        self._adapter = adapter
        self._name_for = name_for
        #: The ids of the participant's own envelopes after row `seq` that the history already contains.
        self._known_ids: set[str] = set()
        #: For a custom view: the envelopes read, how many of them were read before the current round began, and the
        #: index of the round's first event in the history.
        self._envelopes: list[Envelope] = []
        self._before_round = 0
        self._round_start = 0
        self._renderer = self.view if isinstance(self.view, TranscriptView) else NamedTranscript()
        self.policies: tuple[DecidingPolicy, ...] = (
            self.view.policies(self.transcript) if isinstance(self.view, TranscriptView) else (_CustomViewPolicy(self),)
        )

    @classmethod
    async def open(
        cls,
        hub: Hub,
        session_id: str,
        participant_id: str,
        *,
        view: ViewPolicy | None = None,
        name_for: Callable[[str], str] = default_name_resolver,
    ) -> Self:
        """Return a participant's view of a session; it has no envelopes until `read` is called.

        Args:
            hub: The hub that reads the session.
            session_id: The session.
            participant_id: The participant.
            view: Selects the events for a prompt; None for the protocol's default.
            name_for: Returns a participant's name for the model.

        Raises:
            NotFoundError: The session does not exist, or this hub has no adapter for its protocol.
            AccessDeniedError: The id is not a participant of the session.
        """
        session, adapter = await hub.metadata(session_id), await hub.adapter(session_id)
        if participant_id not in session.participants:
            raise AccessDeniedError(f"session {session_id!r}: {participant_id!r} is not a participant")
        return cls(hub, session, adapter, participant_id, view=view, name_for=name_for)

    async def read(self, before: int | None = None) -> int:
        """Append the envelopes that were accepted since the last call to the history.

        Args:
            before: The number of the first row that is not read; None to read all rows.

        Returns:
            The number of envelopes read that the participant may see.

        Raises:
            NetworkError: The log cannot be read, or the adapter cannot render an envelope.
        """
        name, read = self.session.session_id, 0
        end = before if before is not None else (await self._hub.folded(name)).seq + 1
        while self.seq + 1 < end:
            limit = min(_PAGE, end - 1 - self.seq)
            envelopes = await self._hub.envelopes(
                name, participant_id=self.participant_id, after_seq=self.seq, limit=limit
            )
            for envelope in envelopes:
                self._append(envelope)
            self.seq += limit
            read += len(envelopes)
        return read

    def begin_round(self, envelope: Envelope, asked: Any) -> list[Any]:
        """Begin a round with the envelope that the participant answers; all earlier envelopes must have been read.

        Args:
            envelope: The envelope to answer.
            asked: The result of the adapter's ``extract_turn_input``: a text, an event, or a list of them.

        Returns:
            The events with the input for the participant's model; the caller appends them to the history.
        """
        speaker, events = self._name_for(envelope.sender_id), list[Any]()
        for part in asked if isinstance(asked, list) else [asked]:
            event = self._render(envelope, part) if isinstance(part, str) else part
            if events and isinstance(part, str):
                event = ModelRequest(content=event.content)
            events.append(event)
        if events:
            self.transcript.add(getattr(events[0], "id", envelope.envelope_id), speaker)
        self._before_round = len(self._envelopes)
        self._round_start = len(self.history)
        self._count_envelope(envelope)
        self.seq = envelope.seq
        return events

    def go_on(self) -> list[Any]:
        """Begin a round in which the participant speaks again after its own envelope.

        Returns:
            The events with the input for the participant's model; the caller appends them to the history.
        """
        self._before_round = len(self._envelopes)
        self._round_start = len(self.history)
        return [ModelRequest(content=_GO_ON)]

    def end_round(self, event_id: str | None, accepted: Envelope) -> None:
        """Note that the hub accepted the participant's answer, so that the answer is not added to the history twice.

        Args:
            event_id: The id of the history's event that is the answer; None if the history has no such event, so that
                an event is made from the envelope.
            accepted: The accepted envelope.
        """
        if event_id is not None:
            self.transcript.add(event_id, self._name_for(self.participant_id))
            self._known_ids.add(accepted.envelope_id)
        if accepted.seq == self.seq + 1:  # no unread rows are in between
            self._append(accepted)
            self.seq = accepted.seq

    def _append(self, envelope: Envelope) -> None:
        """Append the event for an envelope to the history, unless the history contains it or it has no text.

        Raises:
            AdapterError: The protocol's adapter raised.
        """
        self._count_envelope(envelope)
        if envelope.envelope_id in self._known_ids:
            self._known_ids.discard(envelope.envelope_id)
            return
        try:
            text = self._adapter.render_envelope(envelope)
        except Exception as error:
            manifest, where = self.session.manifest, f"session {envelope.session_id!r}, row {envelope.seq}"
            raise AdapterError(manifest.type, manifest.version, "render_envelope", error, where) from error
        if text:
            self.history.append(self._render(envelope, text))
            self.transcript.add(envelope.envelope_id, self._name_for(envelope.sender_id))

    def _count_envelope(self, envelope: Envelope) -> None:
        """Count an envelope as read; keep the envelope itself only for a custom view, which reads all of them."""
        self.transcript.envelopes += 1
        if not isinstance(self.view, TranscriptView):
            self._envelopes.append(envelope)

    def _render(self, envelope: Envelope, text: str) -> Any:
        return self._renderer.render(envelope, text, self.participant_id, self._name_for)

    async def projected(self) -> tuple[list[Any], int, int]:
        """Apply a custom view to the envelopes that were read before the current round.

        Returns:
            The view's events, the number of envelopes, and the index of the current round's first event in the history.
        """
        wal = _FirstEnvelopes(self._envelopes, self._before_round)
        events = await self.view.project(
            wal,
            participant_id=self.participant_id,
            session=self.session,
            render_envelope=self._adapter.render_envelope,
            name_for=self._name_for,
        )
        return list(events), len(wal), self._round_start

    def __repr__(self) -> str:
        return f"ParticipantView({self.participant_id!r} in {self.session.session_id!r}, {self.view.name}, {self.seq})"


class _FirstEnvelopes(Sequence[Envelope]):
    """The first `end` envelopes of a list, without a copy of the list."""

    def __init__(self, envelopes: Sequence[Envelope], end: int) -> None:
        self._envelopes = envelopes
        self._end = end

    def __len__(self) -> int:
        return self._end

    @overload
    def __getitem__(self, index: int) -> Envelope: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Envelope]: ...
    def __getitem__(self, index: int | slice) -> Envelope | Sequence[Envelope]:
        if isinstance(index, slice):
            return [self._envelopes[at] for at in range(*index.indices(self._end))]
        return self._envelopes[range(self._end)[index]]


class _CustomViewPolicy(DecidingPolicy):
    """A policy that replaces the events of earlier rounds by the events of a custom view."""

    filters: ClassVar[frozenset[str] | None] = CONVERSATION_KINDS

    def __init__(self, view: ParticipantView) -> None:
        self.name = view.view.name
        self._view = view

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the view's events, followed by the events of the current round."""
        start_ns = time.time_ns()
        view_events, envelopes, start = await self._view.projected()
        view = as_view(events)
        round_events = [view.history.events[position] for position in view.positions() if position >= start]
        outcome = Outcome(prompts, [*view_events, *round_events])
        if context.is_enabled:
            measure = token_measure(outcome, view, context)
            identity = context.identity
            DEFAULT.recorder.projected(
                Projection(self.name, context.model, identity, start_ns, envelopes, None, None, measure)
            )
        return outcome
