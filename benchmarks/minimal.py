"""The floor of the tables of turns: a minimal engine that takes the decisions of a filter and a token budget.

The decisions are those of ``[ConversationPolicy(), TokenBudgetPolicy(budget)]`` on chat messages with texts. The engine
keeps no record of them: no reason, no id, no previous turn. So a ratio to it is the price of the record, and of
everything else that this engine does not support: other message types, other policies, media, approvals and changed
lists.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Message = dict[str, Any]

_LEADING = ("system", "developer")
#: Bytes of text in a token, for messages that no turn of a benchmark can reach.
_BYTES_PER_TOKEN = 4


class MinimalEngine:
    """Reads and counts each message once, and cuts a conversation by sums of tokens.

    Args:
        budget: The tokens of the prompt.
        fixed: The tokens of the prompts in front of the messages, and of the beginning of the reply.
        count: Returns the tokens of a message.
        messages: The first messages.
        counted: How many of the newest of them are counted; older ones are estimated. None: all.
    """

    def __init__(
        self,
        budget: int,
        fixed: int,
        count: Callable[[Message], int],
        messages: Sequence[Message] = (),
        counted: int | None = None,
    ) -> None:
        self._room = budget - fixed
        self._messages: list[Message] = []
        self._tokens = array("I")
        #: For each message, the first message of its atom: the call, for a call with its results.
        self._atoms = array("I")
        #: The tokens of the atoms that begin before each message, and of all.
        self._sums = array("Q", [0])
        #: The positions of the messages of each atom with a call, and how many of its calls have no result.
        self._members: dict[int, list[int]] = {}
        self._missing: dict[int, int] = {}
        #: The atoms whose call with this id has no result, the newest last.
        self._open: dict[str, list[int]] = {}
        #: The positions of results without a call, and of atoms with a call that was never answered.
        self._broken: set[int] = set()
        self._leading, self._request, self._longest = 0, -1, 1
        estimated = 0 if counted is None else max(0, len(messages) - counted)
        self.extend(messages[:estimated], lambda message: 4 + len(message.get("content") or "") // _BYTES_PER_TOKEN)
        self.extend(messages[estimated:], count)
        self._count = count

    def turn(self, new: Sequence[Message]) -> int:
        """Append messages, and return how many are sent."""
        self.extend(new, self._count)
        return len(self.assemble())

    def extend(self, messages: Iterable[Message], count: Callable[[Message], int]) -> None:
        """Append messages."""
        for message in messages:
            self._append(message, count(message))

    def _append(self, message: Message, tokens: int) -> None:
        position, role, atom = len(self._messages), message["role"], len(self._messages)
        if role == "assistant":
            for unanswered in [first for first in self._missing if first not in self._broken]:
                self._weigh(unanswered, -sum(map(self._tokens.__getitem__, self._members[unanswered])))
                self._broken.update(self._members[unanswered])
            if calls := message.get("tool_calls"):
                self._members[position], self._missing[position] = [position], len(calls)
                for call in calls:
                    self._open.setdefault(call["id"], []).append(position)
        elif role == "tool":
            if waiting := self._open.get(message["tool_call_id"]):
                atom = waiting.pop()
                self._members[atom].append(position)
                self._missing[atom] -= 1
                self._longest = max(self._longest, position - atom + 1)
            else:
                self._broken.add(position)
        elif role == "user":
            self._request = position
        elif role in _LEADING and self._leading == position:
            self._leading = position + 1
        self._messages.append(message)
        self._tokens.append(tokens)
        self._atoms.append(atom)
        self._sums.append(self._sums[-1])
        if atom in self._broken:
            self._broken.add(position)
        else:
            self._weigh(atom, tokens)
        if self._missing.get(atom) == 0:
            del self._missing[atom]
            if atom in self._broken:  # its last result is late
                self._broken.difference_update(self._members[atom])
                self._weigh(atom, sum(map(self._tokens.__getitem__, self._members[atom])))

    def _weigh(self, atom: int, tokens: int) -> None:
        for later in range(atom + 1, len(self._sums)):
            self._sums[later] += tokens

    def assemble(self) -> list[Message]:
        """Return the messages that are sent.

        Raises:
            OverflowError: The messages that must not be dropped do not fit.
        """
        tokens, sums, atoms, end, leading = self._tokens, self._sums, self._atoms, len(self._messages), self._leading
        newest = end - 1
        while newest in self._broken:
            newest -= 1
        pinned = {self._request} if self._request >= leading else set()
        if newest >= leading:
            pinned.update(self._members.get(atoms[newest], (newest,)))
        room = self._room - sum(tokens[:leading]) - sum(tokens[position] for position in pinned)
        if room < 0:
            raise OverflowError(self._room)

        def spare(cut: int) -> int:
            """The room that is left if all atoms from a position on are sent."""
            return room - sums[end] + sums[cut] + sum(tokens[position] for position in pinned if atoms[position] >= cut)

        cut = bisect_left(range(end), 0, leading, key=spare)
        edge = atoms[cut : cut + self._longest]
        if not self._broken and min(pinned, default=cut) >= cut and min(edge, default=cut) >= cut:
            return self._messages[:leading] + self._messages[cut:]
        sent = pinned.union(at for at in range(cut, end) if atoms[at] >= cut and at not in self._broken)
        return self._messages[:leading] + [self._messages[position] for position in sorted(sent)]
