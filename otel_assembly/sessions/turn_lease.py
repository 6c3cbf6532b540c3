"""`TurnLease`: a server's exclusive claim on a participant's turn, for a limited time, and the turn's stored steps."""

from __future__ import annotations

import asyncio
import logging
import secrets
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from otel_assembly.errors import LogUnavailableError, LogUnsureError, NetworkError
from otel_assembly.events import event_to_json
from otel_assembly.sessions.log import TurnClaim
from otel_assembly.sessions.log_rows import lost_claim_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from otel_assembly.events import Event
    from otel_assembly.sessions.log import SessionLog, StoredTurn, WorkEntry

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a lease is renewed within its length, so that a lease survives one or two failed renewals.
_RENEWALS: Final = 3
#: The most seconds that a server which stops waits until its claim is released.
_RELEASE_SECONDS: Final = 2.0
#: The first and the longest pause in seconds before another attempt to store a step.
_STORE_PAUSES: Final = (0.05, 5.0)


class TurnState(Enum):
    """The result of an attempt to acquire a turn: held by this server, busy (held by another one), or finished."""

    HELD = "held"
    BUSY = "busy"
    FINISHED = "finished"


class TurnLease:
    """A server's lease on the turns of one participant in one session.

    Only one server at a time works on a turn. A lease ends when its server gives the lease up or does not renew it in
    time. Another server then continues the turn, with the steps (tool calls and results) that the log has stored. A
    server that has lost its lease, for example because its process was paused, can neither store a step nor post an
    answer, because the log refuses both.

    Args:
        log: The log of the session.
        session_id: The session.
        participant_id: The participant.
        clock: The hub's clock, for logs without a clock of their own.
        seconds: The length of the lease.

    Attributes:
        claim: This server's claim on a turn; None if this server has no turn.
        work: The steps of unfinished turns that the log had stored when the turn was acquired.
        retry_seconds: The pause in seconds before a busy turn is checked again.
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
        #: The token of this server's latest claim, which the log may still contain if the release failed.
        self._latest_token = ""
        #: The version of another server's turn, and the time of the event loop since which the version has not changed.
        self._unchanged_turn = (0, 0.0)
        self._storing = asyncio.Lock()

    async def acquire(self, seq: int, *, continues: bool) -> TurnState:
        """Claim the turn that answers a row, if no other server has a turn of the participant.

        Args:
            seq: The number of the row.
            continues: True if the participant itself sent the row, so that the participant speaks twice in a row.

        Raises:
            NetworkError: The log failed.
        """
        turn = await self._log.turn(self._session_id, self._participant_id, self._clock())
        if turn is not None and turn.is_finished(seq, continues=continues):
            return TurnState.FINISHED
        if turn is not None and not self._is_free(turn):
            return TurnState.BUSY
        claim = TurnClaim(self._session_id, self._participant_id, seq, continues, secrets.token_hex(16))
        self._latest_token = claim.token
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
        """Return True if no other server has the turn, or if the lease of that server is over."""
        if not turn.claim.token or turn.remaining <= 0 or turn.claim.token == self._latest_token:
            return True
        # If a clock is set back, a lease seems to last longer. A running server renews its lease, which changes the
        # version of the turn. A turn whose version is unchanged for the length of a lease has therefore no server.
        now = asyncio.get_running_loop().time()
        if self._unchanged_turn[0] != turn.version:
            self._unchanged_turn = turn.version, now
        seconds = max(turn.seconds, self._seconds)
        self.retry_seconds = min(turn.remaining, seconds / (_RENEWALS + 1))
        return now - self._unchanged_turn[1] >= seconds

    async def run_renewing(self, work: Coroutine[None, None, T]) -> T:
        """Await `work` and return its result; renew the lease meanwhile.

        Raises:
            TurnClaimLostError: Another server has taken the turn over; the work was canceled.
        """
        claim = self.claim
        work_task = asyncio.ensure_future(work)
        if claim is None:
            work_task.cancel()
            raise RuntimeError("no turn is claimed; acquire a turn first")
        renewal_task = asyncio.create_task(self._renew(claim))
        try:
            await asyncio.wait((work_task, renewal_task), return_when=asyncio.FIRST_COMPLETED)
            if work_task.done():
                return work_task.result()
            raise lost_claim_error(claim)
        finally:
            for task in (work_task, renewal_task):
                task.cancel()
            await asyncio.gather(work_task, renewal_task, return_exceptions=True)

    async def _renew(self, claim: TurnClaim) -> None:
        """Renew the lease in intervals; return when the lease is lost."""
        while True:
            await asyncio.sleep(self._seconds / _RENEWALS)
            try:
                if not await self._log.renew_turn(claim, self._clock(), self._seconds):
                    return
            except NetworkError as error:
                _log.warning("session %r: the lease on a turn was not renewed: %s", self._session_id, error)

    async def record(self, event: Event) -> None:
        """Store a step of the turn in the log.

        While the log does not answer, try again, because the step (such as a tool call) has already been executed.

        Raises:
            TurnClaimLostError: Another server has taken the turn over; nothing was stored.
        """
        body, pause = event_to_json(event), _STORE_PAUSES[0]
        async with self._storing:
            while True:
                claim = self.claim
                if claim is None:
                    raise lost_claim_error(TurnClaim(self._session_id, self._participant_id, 0, False, ""))
                try:
                    if not await self._log.add_work(claim, self._number + 1, body):
                        raise lost_claim_error(claim)
                except (LogUnavailableError, LogUnsureError) as error:
                    _log.warning("session %r: %s; storing the step again", self._session_id, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _STORE_PAUSES[1])
                else:
                    self._number += 1
                    return

    def answered(self) -> None:
        """Forget the claim, because the log ended it when it accepted the turn's answer."""
        self.claim = None

    async def end(self, *, finished: bool) -> None:
        """Release the claim, if this server has one.

        Args:
            finished: True if the turn is over. False if another server may continue the turn; errors of the log are
                then ignored, because the lease expires.

        Raises:
            NetworkError: The turn is over, but the log failed to store this.
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
