"""`serve`: lets an agent answer for a participant of sessions.

A session consists of envelopes (messages) in a log. Each envelope that gives the participant the turn starts one round:
the agent is asked once, and its answer is posted.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import whole_number
from otel_assembly.errors import (
    AccessDeniedError,
    AdapterError,
    ConfigurationError,
    HaltedError,
    InboxFull,
    LogUnavailableError,
    LogUnsureError,
    NetworkError,
    NotFoundError,
    ProtocolError,
    TurnClaimLostError,
)
from otel_assembly.events import ModelResponse, event_from_json
from otel_assembly.runtime.agent import Agent
from otel_assembly.sessions.envelope import EV_SESSION_INVITE
from otel_assembly.sessions.folded_session import FoldedSession, expected_turn
from otel_assembly.sessions.metadata import SessionState
from otel_assembly.sessions.participant_view import ParticipantView
from otel_assembly.sessions.responders import NoAnswerError, responder_of
from otel_assembly.sessions.session_recorder import caused, detached, recorded_turn
from otel_assembly.sessions.turn_lease import TurnState
from otel_assembly.sessions.views import default_name_resolver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from otel_assembly.events import ToolCallEvent
    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.hub import Hub
    from otel_assembly.sessions.metadata import SessionMetadata
    from otel_assembly.sessions.responders import Responder, Round
    from otel_assembly.sessions.session_recorder import TurnRecording
    from otel_assembly.sessions.turn_lease import TurnLease
    from otel_assembly.sessions.views import ViewPolicy

_log: Final = logging.getLogger(__name__)
#: Has one line for each envelope that stays unanswered, and for each tool call with an unknown outcome.
_audit: Final = logging.getLogger("otel_assembly.sessions.audit")

#: The longest pause between two attempts, in seconds.
_LONGEST_PAUSE: Final = 60.0


async def serve(
    hub: Hub,
    agent: Agent | Callable[[Sequence[Any]], Any],
    participant_id: str,
    *,
    session_id: str | None = None,
    view: ViewPolicy | None = None,
    name_for: Callable[[str], str] = default_name_resolver,
    attempts: int = 5,
    pause: float = 0.5,
    sweep_seconds: float = 10.0,
    lease_seconds: float = 10.0,
) -> None:
    """Let an agent answer for a participant in all its sessions, until the call is canceled.

    The participant joins each session to which it is invited. Each envelope (message) that gives it the turn is
    answered with one round: the server reads the new envelopes, asks the agent, and posts the answer with the
    envelope's id as idempotency key. Other envelopes are confirmed, and are then in the prompt of the next round.

    Any number of servers may serve one participant. A server claims a turn in the log before it asks the agent, and
    renews the claim while it works; the other servers wait. The results of an `Agent`'s tools are stored in the log
    immediately. If the server dies, another server takes the turn over once the claim is `lease_seconds` old, and
    continues from the stored results: a completed tool call does not run again. A call that was running runs again only
    if its tool is `Tool.idempotent`; otherwise the model gets the error ``outcome unknown``, and the logger
    ``otel_assembly.sessions.audit`` has a line. If `agent` is a function, it is called again from the start. An agent
    that blocks the event loop for longer than a lease loses its turn, and its answer is refused.

    If the agent raises, it is asked again after a pause that doubles each time. After `attempts` attempts, the server
    confirms the envelope without an answer and writes a line to the logger ``otel_assembly.sessions.audit``. A halted
    conversation is no longer served, and its unanswered envelopes stay unconfirmed.

    Args:
        hub: The hub of the sessions.
        agent: An `Agent`, which gets one conversation per session; the policies of the view run before those of the
            agent's own chain. Or a function, sync or async, that takes the assembled events and returns a text, an
            object with a ``content``, or None for no answer.
        participant_id: The participant.
        session_id: The only session to serve; the call returns when the session ends. None for all sessions.
        view: Selects the envelopes for a prompt; None for the protocol's default.
        name_for: Returns a participant's name for the model.
        attempts: How often the agent is asked if it raises; at least 1.
        pause: The seconds before the second attempt.
        sweep_seconds: The interval in seconds at which an idle session is checked for violated expectations.
        lease_seconds: How many seconds a turn stays claimed after its server died; a running server renews its claim
            three times in that time. A log in PostgreSQL uses the server's clock, the other logs use the hub's.

    Raises:
        ConfigurationError: A setting is invalid, or `agent` is neither an agent nor a callable.
        NetworkError: With a `session_id`: there is no such session, or its log cannot be read. Without a `session_id`,
            such an error is logged and the other sessions are still served.
        HaltedError: With a `session_id`, the conversation was halted.
    """
    whole_number("attempts", attempts)
    if not pause >= 0 or not sweep_seconds > 0 or not lease_seconds > 0:
        raise ConfigurationError(
            f"pause is {pause!r}, sweep_seconds {sweep_seconds!r}, lease_seconds {lease_seconds!r}; pause must be 0 or "
            "more, the others must be above 0"
        )
    if not isinstance(agent, Agent) and not callable(agent):
        raise ConfigurationError(f"a {type(agent).__name__} cannot be served; give an Agent, or a callable of events")

    def server_of(name: str) -> _SessionServer:
        lease = hub.turn_lease(name, participant_id, lease_seconds)
        return _SessionServer(hub, agent, name, participant_id, view, name_for, attempts, pause, sweep_seconds, lease)

    if session_id is not None:
        await _serve_one(hub, session_id, server_of(session_id))
        return
    running: dict[str, tuple[_SessionServer, asyncio.Task[None]]] = {}
    ended: set[str] = set()

    def start(name: str) -> None:
        server = server_of(name)
        with detached():
            task = asyncio.create_task(_run_and_log(server))
        running[name] = server, task
        task.add_done_callback(lambda _: end(name))

    def end(name: str) -> None:
        del running[name]
        ended.add(name)

    try:
        async with aclosing(hub.changes()) as changes:
            async for changed in changes:
                for name in [changed] if changed is not None else await _all_sessions(hub, pause):
                    if name in running:
                        running[name][0].changed.set()
                    elif name not in ended:
                        start(name)
    finally:
        tasks = [task for _, task in running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all_sessions(hub: Hub, pause: float) -> Sequence[str]:
    """Return the ids of all sessions; retry until the log answers."""
    while True:
        try:
            return await hub.session_ids()
        except LogUnavailableError as error:
            _log.warning("the log of sessions does not answer: %s; trying again", error)
            await asyncio.sleep(pause)


async def _serve_one(hub: Hub, session_id: str, server: _SessionServer) -> None:
    """Run the server of one session, and wake it when the session changes."""
    with detached():
        server_task = asyncio.create_task(server.run())

    async def wake() -> None:
        async with aclosing(hub.changes()) as changes:
            async for changed in changes:
                if changed in (None, session_id):
                    server.changed.set()

    wake_task = asyncio.create_task(wake())
    try:
        # `wake` ends if the hub is closed; the server would then wait forever.
        await asyncio.wait((server_task, wake_task), return_when=asyncio.FIRST_COMPLETED)
        if server_task.done():
            server_task.result()
    finally:
        for task in (server_task, wake_task):
            task.cancel()
        await asyncio.gather(server_task, wake_task, return_exceptions=True)


async def _run_and_log(server: _SessionServer) -> None:
    """Run the server of one session of several; log the error that ends it."""
    try:
        await server.run()
    except AccessDeniedError:
        # The id is not a participant of this session.
        return
    except NotFoundError as error:
        _log.debug("session %r is not served here: %s", server.session_id, error)
    except (NetworkError, HaltedError) as error:
        _log.error("session %r is no longer served for %r: %s", server.session_id, server.participant_id, error)
    except Exception as error:  # noqa: BLE001 - the other sessions continue
        _log.error(
            "session %r is no longer served for %r: %s", server.session_id, server.participant_id, type(error).__name__
        )


@dataclass(eq=False, slots=True)
class _SessionServer:
    """Answers for a participant in one session.

    `serve` describes the attributes that are its arguments.

    Attributes:
        lease: Claims the participant's turns.
        changed: Set this event when the session may have new envelopes.
    """

    hub: Hub
    agent: Agent | Callable[[Sequence[Any]], Any]
    session_id: str
    participant_id: str
    view: ViewPolicy | None
    name_for: Callable[[str], str]
    attempts: int
    pause: float
    sweep_seconds: float
    lease: TurnLease
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _responder: Responder | None = None
    #: The id of the participant's newest envelope after which its agent was asked to speak again.
    _spoke_again_after: str | None = None
    _turn: TurnRecording | None = None
    #: True if another server has claimed the participant's turn.
    _busy: bool = False
    #: The numbers of rows; for the turns that these rows started, the stored steps are in the responder's history.
    _restored_rows: set[int] = field(default_factory=set)
    #: How many envelopes to the participant are known to be confirmed; None before the inbox was read.
    _confirmed: int | None = None

    async def run(self) -> None:
        """Answer envelopes until the session has ended and all envelopes are confirmed."""
        tries = 0
        clock = asyncio.get_running_loop().time
        next_sweep = clock() + self.sweep_seconds
        try:
            while True:
                self.changed.clear()
                self._busy = False
                try:
                    folded = await self._process_inbox()
                    if folded.over and not self._busy:
                        return
                    tries = 0
                    if not self._busy and await self._speak_again(folded):
                        # An agent and a log that never wait would block the event loop.
                        await asyncio.sleep(0)
                        continue
                    try:
                        # Not wait_for: before Python 3.12 it loses a cancellation that arrives with the change.
                        until_sweep = max(next_sweep - clock(), 0)
                        wait = min(until_sweep, self.lease.retry_seconds) if self._busy else until_sweep
                        async with asyncio.timeout(wait):
                            await self.changed.wait()
                    except TimeoutError:
                        if clock() < next_sweep:
                            continue  # the claim of another server may have expired
                        await self.hub.sweep(self.session_id)
                    next_sweep = clock() + self.sweep_seconds
                except (LogUnavailableError, LogUnsureError) as error:
                    # The round's answer was not posted, so start again from the log.
                    await self._close_responder()
                    tries += 1
                    _log.warning("session %r: %s; trying again", self.session_id, error)
                    await asyncio.sleep(self._pause_after(tries))
        finally:
            await self._close_responder()

    async def _process_inbox(self) -> FoldedSession:
        """Answer and confirm the envelopes in the inbox, until it is empty or another server has claimed the turn.

        The inbox is read only if the participant has unconfirmed envelopes. Other changes of the session cost only one
        read of the log.

        Returns:
            The state of the session.
        """
        hub, name, participant_id = self.hub, self.session_id, self.participant_id
        while True:
            folded = await hub.folded(name)
            if self._confirmed is not None:
                addressed = folded.addressed_to(participant_id, await hub.metadata(name))
                if addressed <= self._confirmed:
                    return folded
            deliveries = await hub.inbox(name, participant_id)
            if not deliveries:
                self._confirmed = folded.addressed_to(participant_id, await hub.metadata(name))
                return folded
            for delivery in deliveries:
                envelope = delivery.envelope
                if envelope.event_type == EV_SESSION_INVITE:
                    with caused(envelope):
                        await self._join()
                elif not delivery.expired and not await self._answer(envelope):
                    return folded
                await hub.confirm(delivery)
                self._confirmed = delivery.count

    async def _join(self) -> None:
        try:
            await self.hub.join(self.session_id, self.participant_id)
        except ProtocolError as error:
            _log.info("%r does not join: %s", self.participant_id, error)

    async def _answer(self, envelope: Envelope) -> bool:
        """Answer an envelope if it is this participant's turn and no other server has answered the envelope.

        Returns:
            False if another server has claimed the turn, so that this server must not confirm the envelope.
        """
        hub, name = self.hub, self.session_id
        session, adapter = await hub.metadata(name), await hub.adapter(name)
        question = _turn_input(session, adapter, envelope)
        if not question or await hub.posted_under(name, self.participant_id, envelope.envelope_id):
            return True
        folded = await hub.folded(name)
        if folded.state is not SessionState.ACTIVE or not await self._is_own_turn(folded, session, adapter, envelope):
            return True
        if not await self._acquire_turn(envelope, continues=False):
            return not self._busy

        async def work() -> None:
            with recorded_turn(session, self.participant_id, envelope) as self._turn:
                responder = await self._open_responder()
                await self._restore_earlier(responder, envelope)
                await responder.view.read(envelope.seq)
                await self._run_round(responder, responder.view.begin_round(envelope, question), envelope)

        return await self._run_turn(work())

    async def _acquire_turn(self, envelope: Envelope, *, continues: bool) -> bool:
        """Claim the turn that answers an envelope; set `_busy` if another server has claimed it.

        Returns:
            True if this server now has the turn.
        """
        state = await self.lease.acquire(envelope.seq, continues=continues)
        self._busy = state is TurnState.BUSY
        return state is TurnState.HELD

    async def _run_turn(self, work: Coroutine[None, None, None]) -> bool:
        """Run a claimed turn, then release the claim; return False if another server took the turn over."""
        try:
            await self.lease.run_renewing(work)
            if (claim := self.lease.claim) is not None:
                # A turn after the participant's own envelope without an answer is not finished, so that a server that
                # starts later asks the participant again.
                await self.lease.end(finished=not claim.continues)
            if claim is None or not claim.continues:
                self._restored_rows.clear()  # the log has deleted the steps
        except TurnClaimLostError as error:
            _log.warning("%s; the work of this server on it is discarded", error)
            self._busy = True
            await self._close_responder()
            return False
        finally:
            await self.lease.end(finished=False)
        return True

    async def _restore_earlier(self, responder: Responder, envelope: Envelope) -> None:
        """Add the stored steps of unfinished turns to the history, if a later envelope has replaced these turns."""
        for seq in dict.fromkeys(entry.seq for entry in self.lease.work):
            if seq != envelope.seq and seq not in self._restored_rows:
                await responder.view.read(seq + 1)
                self._audit_unknown(seq, responder.restore(self._stored_events(seq)))
                self._restored_rows.add(seq)

    def _stored_events(self, seq: int) -> list[Any]:
        """Return the events that the log has stored for the turn that answers a row."""
        return [event_from_json(entry.body) for entry in self.lease.work if entry.seq == seq]

    def _audit_unknown(self, seq: int, calls: Sequence[ToolCallEvent]) -> None:
        """Write to the audit log which tool calls were begun by a server that stopped, and may have taken effect."""
        for call in calls:
            _audit.error(
                "outcome unknown: session=%r participant=%r row=%d tool=%r call=%r",
                self.session_id,
                self.participant_id,
                seq,
                call.name,
                call.id,
            )

    async def _run_round(self, responder: Responder, question: Sequence[Any], envelope: Envelope) -> None:
        """Ask the agent, continuing a round that another server began, and post the answer."""
        if stored_events := self._stored_events(envelope.seq):
            _log.info("session %r: %r continues row %d", self.session_id, self.participant_id, envelope.seq)
            self._audit_unknown(envelope.seq, responder.restore(stored_events, question))
        self._restored_rows.add(envelope.seq)
        result = await self._ask_until_answered(responder, question, envelope)
        if result is not None:
            await self._post_answer(responder, result, envelope)

    async def _speak_again(self, folded: FoldedSession) -> bool:
        """Ask the agent to speak again after the participant's own envelope, if the protocol allows this.

        The agent is asked once after each envelope.

        Returns:
            True if the agent was asked.
        """
        hub, name = self.hub, self.session_id
        session, adapter = await hub.metadata(name), await hub.adapter(name)
        turn = expected_turn(adapter, session, folded.adapter_state)
        if folded.state is not SessionState.ACTIVE or turn is None or not turn.again:
            return False
        last = turn.triggering_envelope_id
        if turn.participant_id != self.participant_id or last is None or last == self._spoke_again_after:
            return False
        envelope = await hub.envelope(name, last)
        if envelope is None:
            return False
        if await self._acquire_turn(envelope, continues=True):

            async def work() -> None:
                with recorded_turn(session, self.participant_id, envelope) as self._turn:
                    responder = await self._open_responder()
                    await self._restore_earlier(responder, envelope)
                    await responder.view.read(envelope.seq + 1)
                    await self._run_round(responder, responder.view.go_on(), envelope)

            await self._run_turn(work())
        if self._busy:
            return False
        self._spoke_again_after = last
        return True

    async def _is_own_turn(
        self, folded: FoldedSession, session: SessionMetadata, adapter: SessionAdapter, envelope: Envelope
    ) -> bool:
        """Return True if the participant has the turn because of this envelope, and not of a later one."""
        turn = expected_turn(adapter, session, folded.adapter_state)
        if turn is None:
            return True
        if turn.participant_id != self.participant_id:
            return False
        trigger = turn.triggering_envelope_id
        if trigger is None or trigger <= envelope.envelope_id:
            return True
        # The newest envelope that the participant gets is the input of its turn; earlier ones are only in its view.
        later = await self.hub.envelope(self.session_id, trigger)
        return later is None or later.sender_id == self.participant_id or not later.visible_to(self.participant_id)

    async def _ask_until_answered(
        self, responder: Responder, events: Sequence[Any], envelope: Envelope
    ) -> Round | None:
        """Ask the agent until it answers; after the last attempt, write to the audit log and return None."""
        for attempt in range(1, self.attempts + 1):
            try:
                return await responder.ask(events)
            except (HaltedError, TurnClaimLostError):
                raise
            except NoAnswerError as error:
                self._give_up(envelope, error)
                return None
            except Exception as error:  # noqa: BLE001 - an agent's error does not end the session
                if attempt == self.attempts:
                    self._give_up(envelope, error)
                    return None
                _log.warning(
                    "session %r: %r raised %s on row %d, try %d of %d",
                    self.session_id,
                    self.participant_id,
                    type(error).__name__,
                    envelope.seq,
                    attempt,
                    self.attempts,
                )
                await asyncio.sleep(self._pause_after(attempt))
        return None

    async def _post_answer(self, responder: Responder, result: Round, envelope: Envelope) -> None:
        """Post the answer, with the id of the answered envelope as idempotency key."""
        hub, name = self.hub, self.session_id
        session, adapter = await hub.metadata(name), await hub.adapter(name)
        folded = await hub.folded(name)
        try:
            draft = adapter.build_round_envelope(
                session, self.participant_id, result.reply, result.events, folded.adapter_state, hub
            )
        except Exception as error:  # noqa: BLE001 - the adapter's own defect
            manifest = session.manifest
            self._give_up(envelope, AdapterError(manifest.type, manifest.version, "build_round_envelope", error))
            await self._close_responder()
            return
        reply, data = result.reply, draft.event_data if draft is not None else {}
        if isinstance(reply, ModelResponse) and reply.is_truncated:
            if draft is None:
                self._give_up(envelope, NoAnswerError(f"the model's answer was cut off ({reply.finish_reason})"))
                return
            data = {**data, "finish_reason": reply.finish_reason}
        if draft is None:
            _log.debug("session %r: %r says nothing to row %d", name, self.participant_id, envelope.seq)
            return
        draft = replace(draft, event_data=data, causation_id=envelope.envelope_id, idempotency_key=envelope.envelope_id)
        for attempt in range(1, self.attempts + 1):
            try:
                accepted = await hub.post(draft, timeout=self._pause_after(attempt), claim=self.lease.claim)
            except InboxFull as error:
                if attempt == self.attempts:
                    self._give_up(envelope, error)
                    await self._close_responder()
            except (ProtocolError, AccessDeniedError, AdapterError):
                # The hub's audit log records the refusal. The history has an answer that was not posted, so the view is
                # read again.
                if await hub.posted_under(name, self.participant_id, envelope.envelope_id):
                    _log.info("session %r: row %d was answered by another server", name, envelope.seq)
                await self._close_responder()
                return
            else:
                self.lease.answered()
                responder.view.end_round(result.event_id, accepted)
                return

    def _give_up(self, envelope: Envelope, error: Exception) -> None:
        """Write to the audit log that an envelope stays unanswered.

        Of other errors than those of this library, only the type is logged, because messages may quote content.
        """
        if self._turn is not None:
            self._turn.unanswered(error)
        why = str(error) if isinstance(error, NetworkError | NoAnswerError) else ""
        _audit.error(
            "unanswered: session=%r participant=%r envelope=%r row=%d error=%s%s",
            self.session_id,
            self.participant_id,
            envelope.envelope_id,
            envelope.seq,
            type(error).__name__,
            f": {why}" if why else "",
        )

    def _pause_after(self, attempt: int) -> float:
        return min(self.pause * 2.0 ** (attempt - 1), _LONGEST_PAUSE)

    async def _open_responder(self) -> Responder:
        if self._responder is None:
            view = await ParticipantView.open(
                self.hub, self.session_id, self.participant_id, view=self.view, name_for=self.name_for
            )
            self._responder = responder_of(self.agent, view, self.lease)
        return self._responder

    async def _close_responder(self) -> None:
        """Close the responder, so that the next round opens a new one and reads the log from the start."""
        responder, self._responder = self._responder, None
        self._restored_rows.clear()
        if responder is not None:
            try:
                await responder.aclose()
            except Exception as error:  # noqa: BLE001 - an aggregate's error does not end the session
                _log.warning("session %r: closing the agent raised %s", self.session_id, type(error).__name__)


def _turn_input(session: SessionMetadata, adapter: SessionAdapter, envelope: Envelope) -> Any:
    """Return the input that an envelope gives to the next speaker's model; empty if the envelope needs no answer.

    Raises:
        AdapterError: The protocol's adapter raised.
    """
    try:
        return adapter.extract_turn_input(envelope)
    except Exception as error:
        where = f"session {envelope.session_id!r}, row {envelope.seq}"
        raise AdapterError(
            session.manifest.type, session.manifest.version, "extract_turn_input", error, where
        ) from error
