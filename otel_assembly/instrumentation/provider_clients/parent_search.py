"""The search for the parent of a request: each kind of evidence is one function, and `_EVIDENCE` is their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.provider_clients.call_inputs import SIZE_OF_MESSAGE, common_length, positions_in
from otel_assembly.instrumentation.provider_clients.fingerprints import (
    DISTINCTIVE_LENGTH,
    MessageKeys,
    answer_text,
    facts_of,
    message_keys,
    normalized,
    size_of,
    text_key,
)
from otel_assembly.instrumentation.provider_clients.recorded_calls import PROPERTIES, Evidence, ParentMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.provider_clients.recorded_calls import CallIndex, CallPosition, RecordedCall
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The search looks at this many answers in a request, from the newest one.
_ANSWERS: Final = 16
#: An answer consists of at most this many consecutive messages.
_PIECES: Final = 256
#: The parts of one call's answer, with tool results between them, are searched in this many messages. The number is
#: smaller than `_PIECES`, because this search runs for each candidate, and the other one only once per answer.
_SCANNED: Final = 64
#: Messages in front of an answer are compared one by one up to this many.
_COMPARED: Final = 64
#: Different messages with together this many characters are assumed to occur in one conversation only.
_LONG_OVERLAP: Final = 60
#: A program takes back at most this many of the messages that it has sent last.
_REMOVED: Final = 8
#: The same if the request has only a part of what is in front of them: a reminder, or a bad answer and its correction.
_REMOVED_OF_WINDOW: Final = 2
#: In front of the equal messages, this many messages are searched for a contradiction.
_CONTRADICTING: Final = 16
#: The shortest text that is recognized in a message that was rewritten.
_REWRITTEN_LENGTH: Final = 8
#: An edited answer is searched in this many messages, from the newest one.
_EDITED: Final = 12
#: The shortest edited answer that is recognized by its text.
_EDITED_LENGTH: Final = 12
#: Without a similar text, an edited answer needs this many equal messages in front of it.
_EDITED_OVERLAP: Final = 3


def find_parent(index: CallIndex, request: ProviderRequest, position: CallPosition) -> ParentMatch:
    """Return the earlier call that a request continues: its parent.

    The first kind of evidence that applies decides, even if its result is that the parent is unknown. If the position
    has a conversation, only calls with this conversation are searched, except by the ids of the provider.
    """
    search = _Search(index, request, position)
    return next((match for find_by in _EVIDENCE if (match := find_by(search)) is not None), ParentMatch())


class _Candidate(NamedTuple):
    """An earlier call that a request may continue.

    Attributes:
        answer_index: The index of its answer in the request's messages.
        kept: The number of its messages, from the first one, of which the last is in front of the answer. It is less
            than all if the program removed the last messages again; 0 if none of them is in front of the answer.
        overlap: The number of messages in front of the answer that equal the last of these `kept` messages.
        is_unique: True if a distinctive tool call or text identifies the call.
        is_near: True if the call is in the same trace or in the same named conversation.
        overlap_size: The characters in the equal messages, each counted once, and in the answer.
    """

    call: RecordedCall
    answer_index: int
    kept: int
    overlap: int
    is_unique: bool
    is_near: bool
    overlap_size: int

    @property
    def explains_all(self) -> bool:
        """True if all messages in front of the answer are the call's."""
        return 0 < self.overlap >= min(self.answer_index, _COMPARED)

    @property
    def remainder(self) -> tuple[Any, ...]:
        """The fingerprints of the call's messages that are not in front of the answer."""
        fingerprints = self.call.fingerprints
        return tuple(fingerprints[: self.kept - self.overlap]), tuple(fingerprints[self.kept :])


class _Search:
    """The search for the parent of one request. Keys of messages are computed when they are needed, and once.

    Attributes:
        has_examples: True if the request contains the answers to independent calls as examples.
    """

    def __init__(self, index: CallIndex, request: ProviderRequest, position: CallPosition) -> None:
        self.index = index
        self.request = request
        self.messages = request.messages
        self.position = position
        self.has_examples = False
        self._keys: dict[int, MessageKeys] = {}
        self._are_prompts_alike: dict[tuple[str, ...], bool] = {}

    def keys(self, index: int) -> MessageKeys:
        found = self._keys.get(index)
        if found is None:
            found = self._keys[index] = message_keys(self.messages[index])
        return found

    def calls_under(self, *key: Any) -> Iterator[RecordedCall]:
        """Yield the calls with a key whose system prompts are similar, in the named conversation if there is one."""
        for call in self.index.calls_under(key, self.position.conversation):
            prompts = tuple(call.prompts)
            is_alike = self._are_prompts_alike.get(prompts)
            if is_alike is None:
                is_alike = self._are_prompts_alike[prompts] = _are_alike(call.prompts, self.request.prompts)
            if is_alike:
                yield call

    def is_near(self, call: RecordedCall) -> bool:
        if self.position.conversation is not None:
            return True
        return self.position.trace_id is not None and self.position.trace_id == call.trace_id

    def candidate(self, call: RecordedCall, answer_index: int, answer_size: int, *, is_unique: bool) -> _Candidate:
        """Compare the messages in front of an answer with those of a call."""
        kept = overlap = size = 0
        if answer_index > 0 and call.fingerprints:
            front = self.messages[answer_index - 1]
            if call.messages[-1] == front or call.fingerprints[-1] == self.keys(answer_index - 1).fingerprint:
                kept = len(call.messages)
            elif (fingerprint := self.keys(answer_index - 1).fingerprint) in call.fingerprints:
                kept = len(call.fingerprints) - call.fingerprints[::-1].index(fingerprint)  # the last equal message
            if kept:
                overlap = self._overlap(call, kept, answer_index)
            elif self._is_rewritten(call, answer_index):  # the rewritten message counts as equal
                kept = len(call.messages)
                overlap = 1 + self._overlap(call, kept - 1, answer_index - 1)
            equal = slice(kept - overlap, kept)
            size_of_each = dict(zip(call.fingerprints[equal], call.sizes[equal], strict=True))  # equal ones count once
            size = sum(size_of_each.values()) - len(size_of_each) * SIZE_OF_MESSAGE
        return _Candidate(call, answer_index, kept, overlap, is_unique, self.is_near(call), size + answer_size)

    def _is_rewritten(self, call: RecordedCall, answer_index: int) -> bool:
        """Return True if a program edited the call's last message, in front of which all messages are equal.

        It keeps only a part of the message, such as a question without context, or a shorter result of a tool call.
        """
        front, last = facts_of(self.messages[answer_index - 1]), facts_of(call.messages[-1])
        if front is None or last is None or str(front.kind) != str(last.kind):
            return False
        is_same_result = bool(front.closes) and tuple(front.closes) == tuple(last.closes)
        if not is_same_result:
            text, last_text = normalized(" ".join(front.texts)), normalized(" ".join(last.texts))
            is_part = f" {text} " in f" {last_text} " or f" {last_text} " in f" {text} "  # with whole words
            if min(len(text), len(last_text)) < _REWRITTEN_LENGTH or not is_part:
                return False
        count_before = min(len(call.messages), answer_index) - 1
        return self._overlap(call, len(call.messages) - 1, answer_index - 1) >= min(count_before, _COMPARED)

    def _overlap(self, call: RecordedCall, kept: int, end: int) -> int:
        """Return how many messages in front of an index equal the last of the first `kept` messages of a call."""
        shorter = min(kept, end)
        if call.messages[kept - shorter : kept] == self.messages[end - shorter : end]:
            return shorter
        overlap = 0
        while overlap < min(shorter, _COMPARED):
            index = end - overlap - 1
            message, fingerprint = call.messages[kept - overlap - 1], call.fingerprints[kept - overlap - 1]
            if message != self.messages[index] and fingerprint != self.keys(index).fingerprint:
                break
            overlap += 1
        return overlap

    def best_of(self, candidates: Sequence[_Candidate], evidence: Evidence, *, is_cut: bool) -> ParentMatch:
        """Return the best candidate as the parent; or an unknown parent, if candidates with other messages are as good.

        Candidates are tied if they share the best rank. Properties that never change within a conversation, such as the
        client object, break a tie; among calls of one line, the newest call does. Candidates that are still tied are
        interchangeable if the request lacks the same messages of each of them. With `is_cut`, the index has forgotten
        some candidates, which can be better.
        """
        best = max(map(self._rank, candidates))
        tied = [candidate for candidate in candidates if self._rank(candidate) == best]
        for name, has_property in PROPERTIES.items():
            if len(tied) > 1 and name in self.index.constant_properties:
                tied = [c for c in tied if has_property(c.call, self.request, self.position)] or tied
        # If the request lacks none of its messages, the parent cannot cause a wrong report of dropped messages.
        lacks_nothing = not any(tied[0].remainder)
        is_certain = tied[0].is_unique or lacks_nothing or self.position.conversation is not None
        if len(tied) > 1 and len({id(candidate.call.thread) for candidate in tied}) == 1:
            tied = [candidate for candidate in tied if _is_latest(candidate.call)] or tied
        is_interchangeable = all(candidate.remainder == tied[0].remainder for candidate in tied)
        if not is_interchangeable or (is_cut and not is_certain):
            return ParentMatch(None, evidence, tied[0].answer_index, is_unknown=True)
        chosen = max(tied, key=self._preference)
        return ParentMatch(chosen.call, evidence, chosen.answer_index)

    def _rank(self, candidate: _Candidate) -> tuple[bool | int, ...]:
        """Return the strength of a candidate's evidence, as a tuple to compare; the first item counts most."""
        is_latest = self.position.conversation is not None and _is_latest(candidate.call)
        keeps_last = candidate.kept == len(candidate.call.messages)  # the program removed no messages at the end
        all_explained = candidate.explains_all
        return candidate.is_unique, all_explained, is_latest, keeps_last, candidate.is_near, candidate.overlap

    def _preference(self, candidate: _Candidate) -> tuple[bool | int, ...]:
        """Rank candidates with equal messages: each of them is right, but probably the same client goes on."""
        call = candidate.call
        same = [has_property(call, self.request, self.position) for has_property in PROPERTIES.values()]
        return (*same, call.thread_id == self.position.thread_id, not call.children, call.number)


def _is_latest(call: RecordedCall) -> bool:
    return call.thread.latest is not None and call.thread.latest() is call


def _find_by_stored_id(search: _Search) -> ParentMatch | None:
    """Find the call whose stored answer the request names, or the latest call in the stored conversation."""
    for evidence, stored_id in (
        (Evidence.RESPONSE_ID, search.request.previous_response_id),
        (Evidence.STORED_CONVERSATION, search.request.conversation_id),
    ):
        if stored_id:
            found = search.index.calls_under((evidence, stored_id), None)
            return ParentMatch(found[-1] if found else None, evidence, is_unknown=not found)
    return None


def _find_by_answer(search: _Search) -> ParentMatch | None:
    """Find the call whose answer is the newest assistant's message that can be attributed to a call."""
    answers = 0
    for index in range(len(search.messages) - 1, -1, -1):
        keys = search.keys(index)
        if not keys.answer_keys:
            continue
        answers += 1
        candidates, is_cut = _answer_candidates(search, index, keys)
        if candidates:
            return search.best_of(candidates, Evidence.ANSWER, is_cut=is_cut)
        # If no call of this process gave the newest answer, another process did, or the program wrote it.
        if answers == 1 and not any(search.index.calls_under(("answer", key.hash), None) for key in keys.answer_keys):
            search.index.has_foreign_answers = True
        if answers == _ANSWERS or search.has_examples:
            break
    return None


def _answer_candidates(search: _Search, index: int, keys: MessageKeys) -> tuple[list[_Candidate], bool]:
    """Return the calls that may have given an answer, and True if the index has forgotten some of them.

    A program may have stored one answer as several messages (`start` to `index`), or several answers may follow each
    other. So the first search is made twice: with the answer from `start` on, and with the message at `index` only. It
    finds calls whose last message is directly in front of the answer. If there is none, `_loose_candidates` finds calls
    with that answer after any messages.
    """
    start = index  # of the consecutive assistant's messages, which need not be the answer to one call
    while start > 0 and index - start < _PIECES and search.keys(start - 1).is_from_assistant:
        start -= 1
    answer_keys = [*keys.answer_keys]
    if start < index and all(search.keys(piece).text for piece in range(start, index + 1)):
        # The program has stored a streamed answer in pieces, split anywhere ("") or between words (" ").
        answer_keys.append(text_key(normalized("".join(map(answer_text, search.messages[start : index + 1])))))
        answer_keys.append(text_key(normalized(" ".join(map(answer_text, search.messages[start : index + 1])))))
    size = size_of(search.messages[index])
    for first in dict.fromkeys((start, index)):
        if first == 0:
            continue
        front_fingerprint = search.keys(first - 1).fingerprint
        index_keys = [("answer", key.hash, front_fingerprint) for key in answer_keys]
        found = {}
        for key, index_key in zip(answer_keys, index_keys, strict=True):
            same_key = [*search.calls_under(*index_key)]
            for call in same_key:
                is_unique = key.is_generated and len(same_key) == 1
                candidate = search.candidate(call, first, size, is_unique=is_unique)
                if _is_supported(search, candidate):
                    found[id(call)] = candidate
        if found:
            is_cut = any(search.index.is_full(index_key, search.position.conversation) for index_key in index_keys)
            return [*found.values()], is_cut
    return _loose_candidates(search, range(start, index + 1), answer_keys, size)


def _loose_candidates(
    search: _Search, answer: range, answer_keys: Sequence[Any], size: int
) -> tuple[list[_Candidate], bool]:
    """Return the calls that gave an answer, whatever is in front of it, and True if the index has forgotten some.

    `answer` contains the indexes of the consecutive messages that may be the answer.
    """
    found = []
    is_cut = False
    for key in answer_keys:
        same_key = [*search.calls_under("answer", key.hash)]
        is_full = search.index.is_full(("answer", key.hash), search.position.conversation)
        is_cut = is_cut or is_full
        is_one_conversation = len({id(call.thread) for call in same_key}) == 1 and not is_full
        for call in same_key:
            first = answer.stop - 1
            while first > answer.start and not _is_in_front(search, call, first):
                first -= 1
            if not _is_in_front(search, call, first):
                first = _start_of_answer(search, call, answer.stop - 1)
            # Nothing in front of a request's first message can contradict. But other processes give the same answers.
            is_own_text = key.is_distinctive and first == 0 and not search.index.has_foreign_answers
            is_unique = is_one_conversation and (key.is_generated or is_own_text)
            found.append(search.candidate(call, first, size, is_unique=is_unique))
    supported = [candidate for candidate in found if _is_supported(search, candidate)]
    if len({id(candidate.call.thread) for candidate in found}) > 1:  # then the answer alone is no evidence
        supported = [c for c in supported if c.overlap or c.is_unique or c.is_near]
    return supported, is_cut


def _is_in_front(search: _Search, call: RecordedCall, index: int) -> bool:
    """Return True if one of the call's messages is directly in front of the message at an index."""
    return index > 0 and search.keys(index - 1).fingerprint in call.fingerprints


def _start_of_answer(search: _Search, call: RecordedCall, last: int) -> int:
    """Return the index of the first message with a part of the call's answer; the message at `last` has one.

    The messages in front of it are then compared with the call's. Between the parts, there can be tool results and
    answers to other calls: a program may store each result directly after its tool call.
    """
    start = last
    for index in range(last - 1, max(-1, last - _SCANNED), -1):
        keys = search.keys(index)
        if not (keys.is_from_assistant or keys.is_result):
            break
        if any(key.hash in call.answer_hashes for key in keys.answer_keys):
            start = index
    return start


def _is_supported(search: _Search, candidate: _Candidate) -> bool:
    """Return True if the messages in front of an answer agree with those of the call that gave it.

    Short answers such as "Yes." are given in many conversations, and common phrases too. So the equal messages must
    explain all that is in front of the answer, or nearly all, unless the call is near or its answer is unique.
    """
    call, answer_index = candidate.call, candidate.answer_index
    if candidate.is_unique:
        return True
    if candidate.overlap == 0:
        # An answer that the call had sent itself is an example or a greeting, not the call's answer.
        if search.position.conversation is None:
            is_example = search.keys(answer_index).fingerprint in call.fingerprints
        else:  # short answers recur in a conversation, but not at the same place
            length = answer_index + 1
            is_example = answer_index > 0 and call.messages[:length] == search.messages[:length]
        return candidate.is_near and not is_example
    if call.fingerprints[candidate.kept : candidate.kept + 1] == [search.keys(answer_index).fingerprint]:
        return False  # the call had sent this answer itself, as an example
    if candidate.is_near:
        return True
    removed_count = len(call.messages) - candidate.kept
    if removed_count > _REMOVED:
        return False
    is_long = candidate.overlap_size >= _LONG_OVERLAP
    if candidate.explains_all:
        has_all_kept = candidate.overlap == candidate.kept
        if removed_count == 0 or has_all_kept:
            return True
        return is_long and removed_count <= _REMOVED_OF_WINDOW and not search.index.has_foreign_answers
    has_all = candidate.overlap == len(call.messages)
    return (is_long or has_all) and not (_follows_other_call(search, candidate) or _contradicts(search, candidate))


def _contradicts(search: _Search, candidate: _Candidate) -> bool:
    """Return True if most messages in front of the equal ones are not the call's, and answers are among them.

    A program that edits or summarizes messages keeps others; a summary is not an answer or a result.
    """
    stop = candidate.answer_index - candidate.overlap
    all_keys = [search.keys(index) for index in range(max(0, stop - _CONTRADICTING), stop)]
    known = set(candidate.call.fingerprints)
    unknown = [keys for keys in all_keys if keys.fingerprint not in known]
    return 2 * len(unknown) > len(all_keys) and any(keys.is_from_assistant or keys.is_result for keys in unknown)


def _follows_other_call(search: _Search, candidate: _Candidate) -> bool:
    """Return True if the last answer in front of the equal messages was given by calls of other conversations only.

    The messages are examples then, which the program made of the answers to independent calls.
    """
    for index in range(candidate.answer_index - candidate.overlap - 1, 0, -1):
        keys = search.keys(index)
        if not keys.answer_keys:
            continue
        front = search.keys(index - 1).fingerprint
        calls = [call for key in keys.answer_keys for call in search.calls_under("answer", key.hash, front)]
        if calls and all(call.thread is not candidate.call.thread for call in calls):
            search.has_examples = True
        break
    return search.has_examples


def _find_by_failed_call(search: _Search) -> ParentMatch | None:
    """Find the failed call that the request repeats, in full or shortened."""
    messages = search.messages
    if not messages:
        return None
    failed = [
        call
        for call in search.calls_under("last", search.keys(len(messages) - 1).fingerprint)
        if call.has_failed and not call.children
    ]
    repeated = [call for call in failed if call.messages == messages]
    if repeated:
        return ParentMatch(repeated[-1], Evidence.RETRY)
    shortened = [call for call in failed if _may_have_shortened(search, call)]
    if len({tuple(call.fingerprints) for call in shortened}) > 1:  # calls with different messages
        return ParentMatch(None, Evidence.RETRY, is_unknown=True)
    return ParentMatch(shortened[-1], Evidence.RETRY) if shortened else None


def _may_have_shortened(search: _Search, call: RecordedCall) -> bool:
    """Return True if a request may be a part of a failed call; a short one, such as "Continue", only if it is near."""
    positions = positions_in(call, search.messages)
    if -1 in positions:
        return False
    size_of_each = {call.fingerprints[position]: call.sizes[position] - SIZE_OF_MESSAGE for position in positions}
    return search.is_near(call) or sum(size_of_each.values()) >= _LONG_OVERLAP


def _find_by_edited_answer(search: _Search) -> ParentMatch | None:
    """Find the call whose last messages are followed by an answer that resembles the call's answer."""
    if search.has_examples:
        return None
    last = len(search.messages) - 1
    for index in range(last, max(0, last - _EDITED + 1), -1):
        is_first_of_answer = search.keys(index).answer_keys and not search.keys(index - 1).answer_keys
        if not is_first_of_answer:
            continue
        front = search.keys(index - 1).fingerprint
        candidates = []
        for call in search.calls_under("last", front):
            candidate = search.candidate(call, index, 0, is_unique=False)
            if candidate.overlap >= min(len(call.messages), index, _COMPARED) and _may_have_edited(search, candidate):
                candidates.append(candidate)
        if candidates:
            is_cut = search.index.is_full(("last", front), search.position.conversation)
            return search.best_of(candidates, Evidence.EDITED_ANSWER, is_cut=is_cut)
    return None


def _may_have_edited(search: _Search, candidate: _Candidate) -> bool:
    """Return True if the answer in a request may be the edited answer to a call."""
    call = candidate.call
    if candidate.is_near and call.answer_messages:
        return True
    if candidate.overlap >= _EDITED_OVERLAP and candidate.overlap_size >= DISTINCTIVE_LENGTH:
        return True
    edited = search.keys(candidate.answer_index).text.lower()
    given = normalized(" ".join(call.answer_texts)).lower()
    return min(len(edited), len(given)) >= _EDITED_LENGTH and (edited in given or given in edited)


#: The kinds of evidence, from the strongest to the weakest; each function returns None if it finds nothing.
_EVIDENCE: Final[tuple[Callable[[_Search], ParentMatch | None], ...]] = (
    _find_by_stored_id,
    _find_by_answer,
    _find_by_failed_call,
    _find_by_edited_answer,
)


def _are_alike(prompts: Sequence[str], new_prompts: Sequence[str]) -> bool:
    """Return True if system prompts can be an agent's earlier and present ones.

    They are equal, edited (at least half of the shorter one is common at the beginning and the end), or absent now.
    """
    before, after = "\n".join(prompts), "\n".join(new_prompts)
    if before == after or not before or not after:
        return True
    shorter = min(len(before), len(after))
    start = common_length(before, after, shorter)
    end = common_length(reversed(before), reversed(after), shorter)
    return 2 * min(start + end, shorter) >= shorter
