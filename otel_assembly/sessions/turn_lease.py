"""`TurnLease`: one server's lease on the turns of a participant, and the journal of the turn that it holds."""

from __future__ import annotations

import asyncio
import logging
import secrets
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from otel_assembly.errors import LogUnavailableError, LogUnsureError, NetworkError
from otel_assembly.events import event_to_json
from otel_assembly.sessions.log import TurnClaim
from otel_assembly.sessions.log_rows import claim_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from otel_assembly.events import Event
    from otel_assembly.sessions.log import SessionLog, StoredTurn, WorkEntry

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")

#: Renewals per lease, so that a lease survives one or two lost renewals.
_RENEWALS: Final = 3
#: The longest time in seconds that a stopping server waits for the release of its claim.
_RELEASE_SECONDS: Final = 2.0
#: The shortest and the longest pause in seconds before a step is stored again.
_STORE_AGAIN: Final = (0.05, 5.0)


class TurnState(Enum):
    """The result of an attempt to acquire a turn."""

    HELD = "held"
    BUSY = "busy"
    FINISHED = "finished"


class TurnLease:
    """One server's lease on the turns of a participant in one session.

    Only one server works on a turn at a time. A lease ends when its server gives it up, or when the server does not
    renew it in time: then another server continues the turn with the steps that the log has. A server that lost its
    lease, such as a process that was paused, can neither store a step nor post an answer: the log refuses both.

    Args:
        log: The log of the session.
        session_id: The session.
        participant_id: The participant.
        clock: The hub's clock, for logs without a clock of their own.
        seconds: The length of the lease.

    Attributes:
        claim: The claim on the turn that this server holds; None if it holds none.
        work: The steps of unfinished turns that were stored before the turn was acquired.
        retry_seconds: The pause before a busy turn is checked again.
    """

    def __init__(
        self, log: SessionLog, session_id: str, participant_id: str, clock: Callable[[], float], seconds: float
    ) -> None:
        self.claim: TurnClaim | None = None
        self.work: Sequence[WorkEntry] = ()
        self.retry_seconds = seconds
        self._log = log
        self._session_id = session_id
        self._participant_id = participant_id
        self._clock = clock
        self._seconds = seconds
        self._number = 0
        #: The token of an own claim that the log may still contain.
        self._orphan = ""
        #: The version of another server's turn, and the event loop's time since which it has not changed.
        self._unchanged = (0, 0.0)
        self._storing = asyncio.Lock()

    async def acquire(self, seq: int, *, continues: bool) -> TurnState:
        """Claim the turn that answers a row, if no other server holds a turn of the participant.

        Args:
            seq: The row.
            continues: True if the participant sent the row itself.

        Raises:
            NetworkError: The log failed.
        """
        turn = await self._log.turn(self._session_id, self._participant_id, self._clock())
        if turn is not None and turn.is_finished(seq, continues=continues):
            return TurnState.FINISHED
        if turn is not None and not self._is_free(turn):
            return TurnState.BUSY
        claim = TurnClaim(self._session_id, self._participant_id, seq, continues, secrets.token_hex(16))
        self._orphan = claim.token
        if not await self._log.claim_turn(claim, turn, self._clock(), self._seconds):
            self.retry_seconds = 0.0
            return TurnState.BUSY
        self.claim = claim
        self._number = turn.entries if turn is not None else 0
        try:
            self.work = await self._log.work(self._session_id, self._participant_id) if self._number else ()
        except BaseException:
            await self.end(finished=False)
            raise
        return TurnState.HELD

    def _is_free(self, turn: StoredTurn) -> bool:
        """Return True if no server holds the turn, or its lease is over."""
        if not turn.claim.token or turn.remaining <= 0 or turn.claim.token == self._orphan:
            return True
        # After a clock was set back, a lease would seem to last until the clock has caught up. A server that lives
        # renews its lease, so that a turn that does not change for as long as a lease lasts has no server either.
        now = asyncio.get_running_loop().time()
        if self._unchanged[0] != turn.version:
            self._unchanged = turn.version, now
        seconds = max(turn.seconds, self._seconds)
        self.retry_seconds = min(turn.remaining, seconds / (_RENEWALS + 1))
        return now - self._unchanged[1] >= seconds

    async def run_renewing(self, work: Coroutine[None, None, T]) -> T:
        """Await `work` while renewing the lease.

        Raises:
            TurnClaimLostError: Another server has taken the turn over; the work was canceled.
        """
        claim = self.claim
        working = asyncio.ensure_future(work)
        if claim is None:
            working.cancel()
            raise RuntimeError("acquire the turn first")
        renewing = asyncio.create_task(self._renew(claim))
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise claim_lost(claim)
        finally:
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)

    async def _renew(self, claim: TurnClaim) -> None:
        """Renew the lease until it is lost."""
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            try:
                if not await self._log.renew_turn(claim, self._clock(), self._seconds):
                    return
            except NetworkError as error:
                _log.warning("session %r: the lease on a turn was not renewed: %s", self._session_id, error)

    async def record(self, event: Event) -> None:
        """Store a step of the turn. While the log does not answer, try again: the step has happened already.

        Raises:
            TurnClaimLostError: Another server has taken the turn over; nothing was stored.
        """
        body, pause = event_to_json(event), _STORE_AGAIN[0]
        async with self._storing:
            while True:
                claim = self.claim
                if claim is None:
                    raise claim_lost(TurnClaim(self._session_id, self._participant_id, 0, False, ""))
                try:
                    if not await self._log.add_work(claim, self._number + 1, body):
                        raise claim_lost(claim)
                except (LogUnavailableError, LogUnsureError) as error:
                    _log.warning("session %r: %s; storing the step again", self._session_id, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _STORE_AGAIN[1])
                else:
                    self._number += 1
                    return

    def answered(self) -> None:
        """Note that the answer of the turn was accepted, which ended the claim."""
        self.claim = None

    async def end(self, *, finished: bool) -> None:
        """Give the turn up, if this server holds one.

        Args:
            finished: True if the turn is over. False if another server is to continue it; then errors of the log are
                ignored, because the lease expires.

        Raises:
            NetworkError: The turn is over, but the log did not record its end.
        """
        claim, self.claim = self.claim, None
        if claim is None:
            return
        if finished:
            await self._log.end_turn(claim, finished=True)
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._log.end_turn(claim, finished=False)
        except (NetworkError, TimeoutError) as error:
            _log.warning("session %r: the claim on a turn was not released: %s", self._session_id, error)
