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
from otel_assembly.sessions.transcript import Transcript, measured
from otel_assembly.sessions.views import FullTranscript, NamedTranscript, TranscriptView, default_name_resolver

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.context import Context
    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.hub import Hub
    from otel_assembly.sessions.metadata import SessionMetadata
    from otel_assembly.sessions.views import ViewPolicy

#: Rows read from a log per query.
_PAGE: Final = 500
#: The question to a participant whose turn continues after its own envelope.
_GO_ON: Final = "It is your turn again: go on."


class ParticipantView:
    """The part of a session that one participant has read, as one growing `History`.

    Each envelope that the participant may see becomes one event when it is read. Other envelopes are never in the
    history, in a count or on a span. The cost of a turn depends only on the new envelopes, not on the session's length.
    The history also contains the participant's own tool calls, which are not in the log: reopening the view restores
    only the envelopes.

    Args:
        hub: The hub that reads the session.
        session: The session.
        adapter: The code of its protocol.
        participant_id: The participant.
        view: The participant's view policy; None for the adapter's default.
        name_for: The name of a participant for the model.

    Attributes:
        session: The session.
        participant_id: The participant.
        view: The participant's view policy.
        history: The events. Before the first read, it can be replaced by another empty history.
        transcript: The events that represent envelopes.
        policies: The policies that select events for a prompt; they belong before the reductions of a chain.
        seq: The last row of the log that was read.
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
        #: The participant's own envelopes after row `seq` that are already in its history.
        self._stored: set[str] = set()
        #: For a custom view: the envelopes, the number known to the current round, and the round's start.
        self._envelopes: list[Envelope] = []
        self._before_round = 0
        self._round_start = 0
        self._renders = self.view if isinstance(self.view, TranscriptView) else NamedTranscript()
        self.policies: tuple[DecidingPolicy, ...] = (
            self.view.policies(self.transcript) if isinstance(self.view, TranscriptView) else (_Projected(self),)
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
        """Open a participant's view on a session, without reading envelopes.

        Raises:
            NotFoundError: There is no such session, or no adapter for it in this hub.
            AccessDeniedError: The id is not a participant of the session.
        """
        session, adapter = await hub.metadata(session_id), await hub.adapter(session_id)
        if participant_id not in session.participants:
            raise AccessDeniedError(f"session {session_id!r}: {participant_id!r} is not a participant")
        return cls(hub, session, adapter, participant_id, view=view, name_for=name_for)

    async def read(self, before: int | None = None) -> int:
        """Append the envelopes that were accepted since the last call.

        Args:
            before: The first row that is not read; None to read all rows.

        Returns:
            The number of envelopes read that the participant may see.

        Raises:
            NetworkError: The log cannot be read, or the adapter cannot render an envelope.
        """
        name, read = self.session.session_id, 0
        end = before if before is not None else (await self._hub.folded(name)).seq + 1
        while self.seq + 1 < end:
            limit = min(_PAGE, end - 1 - self.seq)
            found = await self._hub.envelopes(name, participant_id=self.participant_id, after_seq=self.seq, limit=limit)
            for envelope in found:
                self._take(envelope)
            self.seq += limit
            read += len(found)
        return read

    def begin_round(self, envelope: Envelope, asked: Any) -> list[Any]:
        """Read the envelope that triggers a round, after all envelopes before it.

        Args:
            envelope: The envelope.
            asked: The result of the adapter's ``extract_turn_input``: a text, an event, or a list of them.

        Returns:
            The events that ask the participant's model; the caller appends them to the history.
        """
        speaker, events = self._name_for(envelope.sender_id), list[Any]()
        for one in asked if isinstance(asked, list) else [asked]:
            event = self._rendered(envelope, one) if isinstance(one, str) else one
            if events and isinstance(one, str):
                event = ModelRequest(content=event.content)
            events.append(event)
        if events:
            self.transcript.add(getattr(events[0], "id", envelope.envelope_id), speaker)
        self._before_round = len(self._envelopes)
        self._round_start = len(self.history)
        self._remember(envelope)
        self.seq = envelope.seq
        return events

    def go_on(self) -> list[Any]:
        """Begin a round in which the participant speaks again after its own envelope.

        Returns:
            The events that ask the participant's model; the caller appends them to the history.
        """
        self._before_round = len(self._envelopes)
        self._round_start = len(self.history)
        return [ModelRequest(content=_GO_ON)]

    def end_round(self, event_id: str | None, accepted: Envelope) -> None:
        """Record that the round's envelope was accepted and which event represents it.

        Args:
            event_id: The id of the event; None if there is no event, so that the envelope gets one of its own.
            accepted: The envelope.
        """
        if event_id is not None:
            self.transcript.add(event_id, self._name_for(self.participant_id))
            self._stored.add(accepted.envelope_id)
        if accepted.seq == self.seq + 1:  # the log has nothing in between that would have to be read
            self._take(accepted)
            self.seq = accepted.seq

    def _take(self, envelope: Envelope) -> None:
        self._remember(envelope)
        if envelope.envelope_id in self._stored:
            self._stored.discard(envelope.envelope_id)
            return
        try:
            text = self._adapter.render_envelope(envelope)
        except Exception as error:
            manifest, where = self.session.manifest, f"session {envelope.session_id!r}, row {envelope.seq}"
            raise AdapterError(manifest.type, manifest.version, "render_envelope", error, where) from error
        if text:
            self.history.append(self._rendered(envelope, text))
            self.transcript.add(envelope.envelope_id, self._name_for(envelope.sender_id))

    def _remember(self, envelope: Envelope) -> None:
        self.transcript.envelopes += 1
        if not isinstance(self.view, TranscriptView):
            self._envelopes.append(envelope)

    def _rendered(self, envelope: Envelope, text: str) -> Any:
        return self._renders.render(envelope, text, self.participant_id, self._name_for)

    async def projected(self) -> tuple[list[Any], int, int]:
        """Return a custom view's events, the number of envelopes, and the end position in the history.

        Events from the end position on belong to the current round.
        """
        wal = _Before(self._envelopes, self._before_round)
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


class _Before(Sequence[Envelope]):
    """A prefix of a list of envelopes, without a copy."""

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


class _Projected(DecidingPolicy):
    """Replaces the envelopes that were read by a custom view's events; keeps the current round."""

    filters: ClassVar[frozenset[str] | None] = CONVERSATION_KINDS

    def __init__(self, view: ParticipantView) -> None:
        self.name = view.view.name
        self._view = view

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the view's events, followed by the events of the current round."""
        began = time.time_ns()
        shown, envelopes, start = await self._view.projected()
        view = as_view(events)
        own = [view.history.event(position) for position in view.positions() if position >= start]
        outcome = Outcome(prompts, [*shown, *own])
        if context.is_enabled:
            measure = measured(outcome, view, context)
            identity = context.identity
            DEFAULT.recorder.projected(
                Projection(self.name, context.model, identity, began, envelopes, None, None, measure)
            )
        return outcome
