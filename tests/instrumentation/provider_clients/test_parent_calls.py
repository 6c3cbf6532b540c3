"""Which earlier model call a model call continues, on programs that know the truth."""

from __future__ import annotations

import copy
import gc
import os
import sys
import threading
import tracemalloc
import warnings

import pytest
from identity_scenarios import (
    SCENARIOS,
    VERDICTS,
    Client,
    Program,
    assistant,
    recorded_conversation,
    replay,
    run_scenario,
    user,
)

from otel_assembly.instrumentation.provider_clients import (
    CallPosition,
    Evidence,
    ParentCalls,
    ParentMatch,
    ProviderAnswer,
    ProviderRequest,
    input_of,
)

#: The scenarios in which not every call is right. A twin is a call with the same messages and answers in another
#: conversation: no evidence can tell them apart, and what is recorded is the same.
NOT_RIGHT = {
    "fifty_users_same_first_answer": {"twin": 49},
    "fifty_users_identical_texts": {"twin": 187},
    "short_answers_in_a_window": {"unknown": 147, "twin": 2},
    "short_answers_in_a_window_own_clients": {"unknown": 2},
    "clients_in_rotation": {"unknown": 58},
    "window_of_last_answer": {"split": 7},
    "long_refusals_of_workers": {"split": 8},
}

POSITION = CallPosition(thread_id=1)


def request(messages, **fields):
    return ProviderRequest([copy.copy(message) for message in messages], ["You are helpful."], [], "m-1", **fields)


def record(calls, messages, answer=None, position=POSITION, **fields):
    """Record a call, and return its match, the record and the request with the recorded messages."""
    sent = request(messages, **fields)
    match = calls.find(sent, position)
    call = calls.add(sent, match, position)
    if answer is not None:
        calls.record_answer(call, ProviderAnswer([assistant(answer)], f"id of {answer}"))
    return match, call, sent._replace(messages=call.messages)


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_call_of_a_program_continues_the_right_call(name):
    totals = run_scenario(name)

    assert {verdict: n for verdict in VERDICTS[1:] if (n := getattr(totals, verdict))} == NOT_RIGHT.get(name, {})


def test_no_scenario_has_a_wrong_parent_or_a_wrong_number_of_omitted_messages():
    assert not {"wrong_merge", "false_link", "miscounted"} & {key for row in NOT_RIGHT.values() for key in row}


def test_a_call_without_earlier_calls_has_no_parent():
    match, call, sent = record(ParentCalls(), [user("Hello")])

    assert match == ParentMatch(None, Evidence.NONE, -1, is_unknown=False)
    assert call.messages == [user("Hello")]
    assert input_of(match, sent) == ([user("Hello")], False)


def test_unchanged_messages_are_the_parents_objects_and_new_ones_are_copies():
    calls = ParentCalls()
    history = [user("one"), user("two")]
    _, first, _ = record(calls, history, "An answer")
    history += [assistant("An answer"), user("three")]

    match, second, _ = record(calls, history)
    history[0]["content"] = "changed by the program"

    assert match.parent is first
    assert match.answer_index == 2
    assert second.thread is first.thread
    assert all(map(lambda one, other: one is other, second.messages, first.messages))
    assert [message["content"] for message in second.messages] == ["one", "two", "An answer", "three"]


def test_the_input_of_a_window_is_all_that_the_parent_sent_and_what_is_new():
    calls = ParentCalls()
    record(calls, [user(f"question {number}") for number in range(6)], "An answer to all of them")
    tail = [user("question 4"), user("question 5"), assistant("An answer to all of them"), user("and now?")]

    match, _, sent = record(calls, tail)
    before, has_unsent = input_of(match, sent)

    assert has_unsent
    assert [message["content"] for message in before[:6]] == [f"question {number}" for number in range(6)]
    assert before[6:] == tail[2:]
    assert [message for message in before if message not in sent.messages] == [
        user(f"question {number}") for number in range(4)
    ]


def test_a_summary_is_not_part_of_the_input():
    calls = ParentCalls()
    history = [message for turn in range(4) for message in (user(f"question {turn}"), assistant(f"answer {turn}"))]
    record(calls, [*history, user("the last question of all")], "A long answer to the last question of all")
    summary = user("Summary: four questions were asked")
    rest = [user("the last question of all"), assistant("A long answer to the last question of all"), user("Thanks")]

    match, _, sent = record(calls, [summary, *rest])
    before, has_unsent = input_of(match, sent)

    assert has_unsent
    assert before == [*history, *rest]


def test_an_edited_message_is_missing_in_the_input_and_its_original_is_there():
    calls = ParentCalls()
    record(calls, [user("a very long document"), user("What does it say?")], "It describes the lamps of a shop")
    after = [user("[cleared]"), user("What does it say?"), assistant("It describes the lamps of a shop"), user("More")]

    match, _, sent = record(calls, after)

    assert input_of(match, sent) == ([user("a very long document"), *after[1:]], True)


def test_the_last_result_of_a_tool_may_be_cleared():
    calls = ParentCalls()
    tool_call = {"id": "call_a1b2c3d4e5", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    asked = [user("Where is it?"), {"role": "assistant", "content": None, "tool_calls": [tool_call]}]
    _, first, _ = record(
        calls, [*asked, {"role": "tool", "tool_call_id": tool_call["id"], "content": "found " * 9}], "Yes"
    )
    cleared = {"role": "tool", "tool_call_id": tool_call["id"], "content": "[cleared]"}

    match, _, sent = record(calls, [*asked, cleared, assistant("Yes"), user("Thanks")])

    assert match.parent is first
    assert input_of(match, sent)[0][2] is first.messages[2]


def test_a_message_that_moves_behind_the_answer_is_not_dropped():
    calls = ParentCalls()
    reminder = user("Remember to be brief")
    record(calls, [user("question"), reminder], "An answer")
    after = [user("question"), assistant("An answer"), user("another question"), reminder]

    match, _, sent = record(calls, after)

    assert match.evidence is Evidence.ANSWER
    assert input_of(match, sent) == (after, False)


def test_the_input_of_a_stored_conversation_is_all_that_the_provider_holds():
    calls = ParentCalls()
    record(calls, [user("Hello")], "Hi")
    match, call, sent = record(calls, [user("Bye")], previous_response_id="id of Hi")

    assert match.evidence is Evidence.RESPONSE_ID
    assert call.messages == [user("Hello"), assistant("Hi"), user("Bye")]
    assert input_of(match, sent) == (call.messages, False)
    assert input_of(match, request([user("Bye")])) == (call.messages, False)


@pytest.mark.parametrize("fields", [{"previous_response_id": "of elsewhere"}, {"conversation_id": "conv_1"}])
def test_a_conversation_that_only_the_provider_knows_is_unknown(fields):
    match, _, _ = record(ParentCalls(), [user("Hello")], **fields)

    assert match.is_unknown
    assert match.parent is None


def test_a_failed_call_is_the_parent_of_its_retry():
    calls = ParentCalls()
    messages = [user("Hello"), user("My lamp from order 1042 has a broken shade."), user("Can you send me a new one?")]
    _, failed, _ = record(calls, messages)
    calls.record_failure(failed)

    match, _, sent = record(calls, messages[1:])

    assert failed.has_failed
    assert (match.parent, match.evidence) == (failed, Evidence.RETRY)
    assert input_of(match, sent) == (messages, True)


@pytest.mark.parametrize(("trace_id", "evidence"), [(None, Evidence.NONE), (7, Evidence.RETRY)])
def test_a_short_request_is_a_retry_only_in_the_same_trace(trace_id, evidence):
    calls, position = ParentCalls(), POSITION._replace(trace_id=trace_id)
    _, failed, _ = record(calls, [user("My lamp has a broken shade."), user("Continue")], position=position)
    calls.record_failure(failed)

    match, _, _ = record(calls, [user("Continue")], position=position)

    assert match.evidence is evidence


def test_the_input_of_a_shortened_retry_of_one_of_two_calls_is_unknown():
    calls, question = ParentCalls(), user("What is the status of the order that I placed on the first of May?")
    for name in ("Kim", "Noor"):
        _, failed, _ = record(calls, [user(f"I am {name}."), question])
        calls.record_failure(failed)

    match, _, _ = record(calls, [question])

    assert (match.parent, match.evidence, match.is_unknown) == (None, Evidence.RETRY, True)


def test_an_answer_after_a_failure_is_not_a_failure():
    calls = ParentCalls()
    _, call, _ = record(calls, [user("one")])
    calls.record_failure(call)
    calls.record_answer(call, ProviderAnswer([assistant("An answer")]))

    assert not call.has_failed


def test_calls_whose_answer_a_summary_quotes_are_found():
    calls = ParentCalls()
    _, summarizer, _ = record(calls, [user("Summarize: …")], "The customer wants a new shade for the lamp.")
    _, other, _ = record(calls, [user("Translate: …")], "Der Kunde wünscht einen neuen Lampenschirm.")
    quoting = [user("Earlier: The customer wants a new\nshade for the lamp. Go on.")]

    assert calls.quoted_calls(quoting, besides=None) == [summarizer]
    assert calls.quoted_calls(quoting, besides=summarizer) == []
    assert other not in calls.quoted_calls(quoting, besides=None)
    assert calls.quoted_calls([], besides=None) == []
    assert calls.quoted_calls([object()], besides=None) == []


def test_an_edited_answer_is_not_a_summary():
    calls = ParentCalls()
    record(calls, [user("Summarize: …")], "The customer wants a new shade for the lamp.")

    assert calls.quoted_calls([assistant("The customer wants a new shade for the lamp. [edited]")], besides=None) == []


def test_a_second_answer_to_a_call_replaces_the_first():
    calls = ParentCalls()
    _, call, _ = record(calls, [user("Hello")], "The first part")
    size = calls.size

    for text in ("The first part of a longer answer", "The first part"):
        calls.record_answer(call, ProviderAnswer([assistant(text)]))

    assert call.answer_texts == ["The first part"]
    assert calls.size == size


def test_a_forgotten_parent_leaves_the_shared_messages_to_its_child():
    now = 0.0
    calls = ParentCalls(clock=lambda: now)
    question, answer, long_answer = user("q" * 1_000), assistant("The answer is 4711."), "a" * 10_000
    record(calls, [question], answer["content"])
    now = 5 * 3_600.0
    _, child, _ = record(calls, [question, answer, user("And then?")], long_answer)
    size = child.size

    now = 7 * 3_600.0  # the parent is too old
    record(calls, [user("An unrelated question")])

    assert len(calls) == 2
    assert child.size == size + child.sizes[0]
    assert calls.size == sum(call.size for call in calls._calls.values())


def test_a_named_conversation_is_not_continued_by_another_one():
    calls = ParentCalls()
    record(calls, [user("Hello")], "Hi", POSITION._replace(conversation="one"))
    history = [user("Hello"), assistant("Hi"), user("Go on")]

    other, _, _ = record(calls, history, position=POSITION._replace(conversation="two"))
    same, _, _ = record(calls, history, position=POSITION._replace(conversation="one"))

    assert other.parent is None
    assert same.parent is not None


def test_another_system_prompt_is_another_agent():
    calls = ParentCalls()
    record(calls, [user("Hello")], "Hi")
    guard = request([user("Hello"), assistant("Hi"), user("Go on")])._replace(prompts=["Is this unsafe? yes or no"])

    assert calls.find(guard, POSITION).parent is None


def test_a_client_object_is_not_kept_alive():
    calls = ParentCalls()
    client = Client()
    _, call, _ = record(calls, [user("Hello")], position=POSITION._replace(client=client))
    assert call.client is client

    del client
    gc.collect()

    assert call.client is None


@pytest.mark.parametrize(
    "messages", [[], ["text"], [None], [{}], [{"role": "assistant"}], [{"role": 7, "content": object()}], [[1]]]
)
def test_messages_of_unknown_forms_start_a_conversation(messages):
    calls = ParentCalls()
    for _ in range(2):
        sent = ProviderRequest(messages, [], [None, {"name": 3}], None)
        match = calls.find(sent, POSITION)
        call = calls.add(sent, match, POSITION._replace(client=3))
        calls.record_answer(call, ProviderAnswer([*messages]))

        assert len(call.messages) == len(messages)
        assert len(input_of(match, sent)[0]) == len(messages)


# Cost.


class FunctionCalls:
    """Counts calls of Python functions; not those of finalizers, which the garbage collector runs at any time."""

    def __enter__(self):
        self.count = 0
        gc.disable()
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *raised):
        sys.setprofile(None)
        gc.enable()

    def _seen(self, frame, event, argument):
        self.count += event == "call"


def turn_calls(length, change=None):
    """The function calls of one turn after so many unchanged messages."""
    calls = ParentCalls()
    history = [message for n in range(length // 2) for message in (user(f"question {n}"), assistant(f"answer {n}"))]
    history.append(user("the last question of them"))
    record(calls, history, "the answer to the last question")
    history += [assistant("the answer to the last question"), user("and then?")]
    if change is not None:
        history = change(history)
    sent = request(history)
    with FunctionCalls() as counted:
        match = calls.find(sent, POSITION)
        call = calls.add(sent, match, POSITION)
        calls.record_answer(call, ProviderAnswer([assistant("yes")]))
        input_of(match, sent._replace(messages=call.messages))
    assert match.parent is not None
    return counted.count


@pytest.mark.parametrize(
    "change",
    [
        lambda history: history[4:],
        lambda history: [history[0], *history[5:]],
        lambda history: [user("a changed state"), *history[1:]],
        lambda history: [*history[:2], user("cleared"), *history[3:-6], user("cleared"), *history[-5:]],
    ],
    ids=["window", "pinned", "first message changed", "two messages changed"],
)
def test_a_turn_costs_the_same_function_calls_however_long_the_conversation_is(change):
    assert turn_calls(200, change) == turn_calls(5_000, change)


def test_an_appended_turn_costs_the_same_function_calls_from_the_start():
    assert turn_calls(10) == turn_calls(50) == turn_calls(5_000)


def test_one_shot_calls_use_bounded_memory():
    calls = ParentCalls()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(6_000):
            record(calls, [user(f"{number} " + "x" * 5_000)], f"answer {number}")
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert used <= 30 * 2**20
    assert len(calls) > 1_000


def test_memory_of_long_conversations_is_bounded_after_their_first_calls_are_forgotten():
    calls = ParentCalls()
    histories = [[user(f"{line}: " + "x" * 100_000)] for line in range(30)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(15):
            for line, history in enumerate(histories):
                record(calls, history, f"answer {turn} of conversation {line}")
                text = f"{turn} of {line}: " + "x" * 100_000
                history += [assistant(f"answer {turn} of conversation {line}"), user(text)]
        gc.collect()
        texts = sum(len(message["content"]) for history in histories for message in history)
        used = tracemalloc.get_traced_memory()[0] - before - texts
    finally:
        tracemalloc.stop()

    assert texts > 30_000_000
    assert calls.size <= 24_000_000
    assert used <= 30 * 2**20


def test_calls_are_forgotten_after_some_hours():
    now = [0.0]
    calls = ParentCalls(clock=lambda: now[0])
    record(calls, [user("Hello")], "Hi")
    history = [user("Hello"), assistant("Hi"), user("Go on")]
    now[0] = 5 * 3_600.0
    assert calls.find(request(history), POSITION).parent is not None

    now[0] = 7 * 3_600.0
    record(calls, [user("something else")])

    assert len(calls) == 1
    assert calls.find(request(history), POSITION).parent is None


def test_calls_beyond_the_limit_are_forgotten_oldest_first():
    calls = ParentCalls()
    for number in range(4_100):
        record(calls, [user(f"question {number}")], f"a long answer to question {number}, which names the question too")

    def parent_of(number):
        answer = assistant(f"a long answer to question {number}, which names the question too")
        return calls.find(request([user(f"question {number}"), answer, user("and?")]), POSITION).parent

    assert len(calls) == 4_000
    assert parent_of(50) is None
    assert parent_of(4_050) is not None


def test_threads_record_calls_concurrently():
    program = Program()
    errors = []

    def converse(line):
        try:
            history = []
            for turn in range(20):
                history.append(user(f"question {turn} of {line}"))
                sent = request(history)
                position = POSITION._replace(thread_id=line)
                match = program.calls.find(sent, position)
                call = program.calls.add(sent, match, position)
                program.calls.record_answer(call, ProviderAnswer([assistant(f"answer {turn} to {line}")]))
                assert (match.parent is None) == (turn == 0)
                assert len(call.messages) == len(history)
                history.append(assistant(f"answer {turn} to {line}"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=converse, args=(line,)) for line in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    assert len(program.calls) == 160


# Recorded conversations, interleaved.

RECORDED = [recorded_conversation(number) for number in range(60)]


@pytest.fixture(scope="module")
def replays():
    """Windows of several sizes, with the ids of tool calls and without; and each conversation twice."""
    totals = {(window, ids): replay(RECORDED, window, ids=ids) for window in (None, 12, 4, 2) for ids in (True, False)}
    twice = [conversation for conversation in RECORDED for _ in range(2)]
    return {**totals, "twice": replay(twice, 4, ids=False)}


def test_no_call_of_interleaved_conversations_continues_another_conversation(replays):
    assert {(totals.wrong_merge, totals.false_link) for totals in replays.values()} == {(0, 0)}


def test_few_calls_of_interleaved_conversations_are_split_or_unknown(replays):
    calls = sum(totals.calls for totals in replays.values())
    missed = sum(totals.split + totals.unknown for totals in replays.values())

    assert calls > 7_000
    assert missed / calls <= 0.035


@pytest.mark.parametrize("window", [None, 12, 4, 2])
def test_all_calls_of_named_conversations_continue_their_conversation(window):
    totals = replay(RECORDED, window, ids=False, named=True)

    assert totals.right == totals.calls


@pytest.mark.parametrize("window", [None, 12, 4, 2])
def test_calls_that_other_processes_make_are_not_replaced_by_similar_ones(window):
    totals = replay(RECORDED, window, unseen=0.5)

    assert (totals.wrong_merge, totals.false_link) == (0, 0)


def test_a_fork_during_a_change_forgets_the_calls_in_the_child():
    calls = ParentCalls()
    record(calls, [user("Hello")], "Hi")
    is_held, may_release = threading.Event(), threading.Event()

    class Messages(list):
        """Messages whose copy takes until the fork is over."""

        def __iter__(self):
            is_held.set()
            may_release.wait(30)
            return super().__iter__()

    changing = threading.Thread(
        target=calls.add, args=(request([])._replace(messages=Messages([user("x")])), ParentMatch(), POSITION)
    )
    changing.start()
    assert is_held.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork in a process with threads
        child = os.fork()
    if not child:
        record(calls, [user("in the child")])
        os._exit(len(calls))
    may_release.set()
    changing.join()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert len(calls) == 2


def test_a_search_among_many_equal_answers_is_bounded():
    def cost(count):
        calls = ParentCalls()
        for number in range(count):
            record(calls, [user(f"question {number}"), user("go")], "OK")
        with FunctionCalls() as counted:
            calls.find(request([user("another"), user("go"), assistant("OK"), user("next")]), POSITION)
        return counted.count

    assert cost(100) == cost(1_000)
