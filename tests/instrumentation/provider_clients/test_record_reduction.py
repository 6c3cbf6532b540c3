"""`record_reduction`: a program that trims its own messages, and names what it did."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from copy import deepcopy

import pytest
from client_calls import TEXT, answer_chats, assemblies, chat, user
from counting import Calls
from provider_bodies import OUTPUT, chat_body, gemini_body, message_body, response_body

from otel_assembly import ConfigurationError, DecisionReason, conversation, instrument, record_reduction, uninstrument

SYSTEM = {"role": "system", "content": "You are brief."}


def assistant(text=TEXT):
    return {"role": "assistant", "content": text}


def talk(question, turns):
    """A conversation whose last message is a question."""
    messages = [SYSTEM]
    for turn in range(turns):
        messages += [user(f"{question} {turn}"), assistant(f"{question}: answer {turn}")]
    return [*messages, user(f"{question} now")]


def steps(assembly):
    """What each step of an assembly dropped or compacted, by the name of its policy."""
    return {
        span.name.removeprefix("apply_policy "): span.dropped_reasons or span.compacted or {}
        for span in assembly.children
        if span.name.startswith("apply_policy")
    }


def last(telemetry):
    return assemblies(telemetry)[-1]


# --- The step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True], ids=["same objects", "copies"])
def test_the_next_call_has_the_programs_step_in_place_of_caller(clients, server, telemetry, question, copied):
    answer_chats(server, 2)
    messages = talk(question, 3)
    chat(clients, messages)
    messages += [assistant(), user("And my other bag?")]
    trimmed = [SYSTEM, *messages[5:]]
    if copied:
        trimmed = deepcopy(trimmed)
    record_reduction(messages, trimmed, "my_trim", reason="outside_window")
    chat(clients, trimmed)
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("0123", "outside_window")}
    assert last(telemetry).attributes["assembly.events.in"] == 9
    assert last(telemetry).attributes["assembly.events.out"] == 5


def test_without_a_reason_it_is_policy_as_of_an_observed_reducer(clients, server, telemetry, question):
    answer_chats(server, 1)
    messages = talk(question, 2)
    record_reduction(messages, messages[3:], "my_trim")
    chat(clients, messages[3:])
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("01", "policy")}


def test_what_the_first_request_of_a_process_lacks_is_known(clients, server, telemetry, question):
    answer_chats(server, 1)
    messages = talk(question, 4)
    record_reduction(messages, messages[-3:], "my_trim", reason=DecisionReason.OVER_BUDGET)
    chat(clients, messages[-3:])
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("012345", "over_budget")}


def test_a_loop_that_trims_a_copy_each_time_drops_old_messages_once(clients, server, telemetry, question):
    answer_chats(server, 4)
    messages = [SYSTEM]
    for turn in range(4):
        messages.append(user(f"{question} {turn}"))
        trimmed = [SYSTEM, *messages[1:][-3:]]
        record_reduction(messages, trimmed, "window")
        messages.append({"role": "assistant", "content": chat(clients, trimmed).choices[0].message.content})
    found = assemblies(telemetry)
    assert [span.attributes["assembly.events.in"] for span in found] == [1, 3, 5, 7]
    assert [span.attributes["assembly.newly_dropped.count"] for span in found] == [0, 0, 2, 2]
    assert [list(steps(span)) for span in found] == [["window"]] * 4


def test_what_the_request_lacks_beyond_the_reduction_is_still_the_step_caller(clients, server, telemetry, question):
    answer_chats(server, 2)
    messages = talk(question, 3)
    chat(clients, messages)
    messages += [assistant(), user("And my other bag?")]
    trimmed = messages[3:]
    record_reduction(messages, trimmed, "my_trim")
    chat(clients, [SYSTEM, *trimmed[1:]])
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("01", "policy"), "caller": {"2": "not_sent"}}


def test_what_the_program_dropped_before_is_the_step_caller(clients, server, telemetry, question):
    answer_chats(server, 2)
    messages = talk(question, 3)
    chat(clients, messages)
    messages = [*messages[3:], assistant(), user("And my other bag?")]
    record_reduction(messages, messages[2:], "my_trim")
    chat(clients, messages[2:])
    assert steps(last(telemetry)) == {
        "my_trim": dict.fromkeys("23", "policy"),
        "caller": dict.fromkeys("01", "not_sent"),
    }


CALL = {"id": "call_a1b2c3d4e5", "type": "function", "function": {"name": "look", "arguments": '{"at": "gate 14"}'}}


def test_results_that_the_program_cut_are_compacted_and_other_edits_are_of_the_step_caller(
    clients, server, telemetry, question
):
    answer_chats(server, 2)
    calls = [{**CALL, "id": f"call_a1b2c3d4e{number}"} for number in range(3)]
    messages = [user(question)]
    for call in calls:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "found at gate 14 " * 50})
    chat(clients, messages)
    messages += [assistant(), user("And my other bag?")]
    cut = [*messages[:2], {**messages[2], "content": "found"}, *messages[3:]]
    record_reduction(messages, cut, "cut_results")
    chat(clients, [*cut[:4], {**cut[4], "content": "[cleared]"}, *cut[5:]])
    assert steps(last(telemetry)) == {"cut_results": ["2"], "caller": ["4"]}
    assert last(telemetry).attributes["assembly.events.in"] == 9


def test_several_reductions_are_steps_in_their_order(clients, server, telemetry, question):
    answer_chats(server, 1)
    messages = talk(question, 4)
    first, second = [*messages[:3], *messages[5:]], messages[5:]
    record_reduction(messages, first, "drop_lookups", reason="low_rank")
    record_reduction(first, second, "window", reason="outside_window")
    chat(clients, second)
    assert list(steps(last(telemetry)).items()) == [
        ("drop_lookups", dict.fromkeys("23", "low_rank")),
        ("window", dict.fromkeys("01", "outside_window")),
    ]


def test_a_summary_stands_for_what_it_replaced(clients, server, telemetry, question):
    messages = talk(question, 3)
    server.answers(chat_body(assistant("The guest asked about three bags, and each of them was found at gate 14.")))
    answer_chats(server, 2)
    summary = chat(clients, [user(f"Summarize: {question}")]).choices[0].message.content
    shorter = [SYSTEM, user(f"Earlier: {summary}"), *messages[5:]]
    record_reduction(messages, shorter, "summarize")
    chat(clients, shorter)
    assembly = last(telemetry)
    assert steps(assembly) == {"summarize": ["0", "1", "2", "3"]}
    assert assembly.attributes["assembly.compacted.count"] == 4
    (step,) = [span for span in assembly.children if span.name == "apply_policy summarize"]
    assert [span.name for span in step.children] == ["compact_block summary"]
    chat(clients, [*shorter, assistant(), user("Thanks")])
    assert steps(last(telemetry)) == {}


def test_a_message_that_is_appended_is_no_summary(clients, server, telemetry, question):
    answer_chats(server, 1)
    messages = talk(question, 2)
    trimmed = [*messages[3:], user("A new question")]
    record_reduction(messages, trimmed, "my_trim")
    chat(clients, trimmed)
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("01", "policy")}
    assert last(telemetry).attributes["assembly.compacted.count"] == 0


def test_answers_may_be_the_objects_of_the_client(clients, server, telemetry, question):
    answer_chats(server, 3)
    messages = [user(question)]
    for turn in range(2):
        messages += [chat(clients, messages).choices[0].message, user(f"And bag {turn}?")]
    record_reduction(messages, messages[2:], "my_trim")
    chat(clients, messages[2:])
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("01", "policy")}


def anthropic(clients, server, messages):
    server.answers(message_body([{"type": "text", "text": TEXT}]))
    return messages, lambda given: clients.anthropic.messages.create(model="m", max_tokens=9, messages=given)


def gemini(clients, server, messages):
    server.answers(gemini_body({"text": TEXT}))
    contents = [
        {"role": "user" if message["role"] == "user" else "model", "parts": [{"text": message["content"]}]}
        for message in messages
    ]
    return contents, lambda given: clients.gemini.models.generate_content(model="m", contents=given)


def gemini_objects(clients, server, messages):
    from google.genai import types

    contents, send = gemini(clients, server, messages)
    return [types.Content(**content) for content in contents], send


def bedrock_converse(clients, server, messages):
    message = {"role": "assistant", "content": [{"text": TEXT}]}
    server.answers({"output": {"message": message}, "stopReason": "end_turn"})
    contents = [{"role": message["role"], "content": [{"text": message["content"]}]} for message in messages]
    return contents, lambda given: clients.bedrock.converse(modelId="m", messages=given)


def responses(clients, server, messages):
    server.answers(response_body([OUTPUT]))
    return messages, lambda given: clients.openai.responses.create(model="m", input=given)


@pytest.mark.parametrize("provider", [anthropic, gemini, gemini_objects, bedrock_converse, responses])
def test_the_messages_of_other_clients(clients, server, telemetry, question, provider):
    messages, send = provider(clients, server, talk(question, 2)[1:])
    record_reduction(messages, messages[2:], "my_trim")
    send(messages[2:])
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("01", "policy")}


# --- The call to which it belongs -------------------------------------------------------------------------------------


def test_a_call_with_other_messages_leaves_it_to_the_next_one(clients, server, telemetry, question):
    answer_chats(server, 2)
    messages = talk(question, 3)
    record_reduction(messages, messages[3:], "my_trim")
    chat(clients, [user(f"Is this allowed? {question}")])
    assert steps(last(telemetry)) == {}
    chat(clients, messages[3:])
    assert list(steps(last(telemetry))) == ["my_trim"]


def test_it_belongs_to_one_call(clients, server, telemetry, question):
    answer_chats(server, 2)
    messages = talk(question, 2)
    record_reduction(messages, messages[3:], "my_trim")
    chat(clients, messages[3:])
    chat(clients, [*messages[3:], assistant(), user("Thanks")])
    assert [list(steps(span)) for span in assemblies(telemetry)] == [["my_trim"], []]


def test_a_reduction_whose_call_failed_is_not_recorded_with_the_next_one(clients, server, telemetry, question):
    answer_chats(server, 1)
    messages = talk(question, 3)
    record_reduction(messages, messages[3:], "my_trim")  # and then the program fails
    messages = [*messages, assistant(), user("Again")]
    record_reduction(messages, messages[5:], "my_trim")
    chat(clients, messages[5:])
    assert [span.dropped_reasons for span in last(telemetry).children if span.name == "apply_policy my_trim"] == [
        dict.fromkeys("0123", "policy")
    ]


def test_a_call_of_another_conversation_leaves_it(clients, server, telemetry, question):
    answer_chats(server, 2)
    messages = talk(question, 2)
    with conversation(f"{question} one"):
        record_reduction(messages, messages[3:], "my_trim")
    with conversation(f"{question} two"):
        chat(clients, messages[3:])
    with conversation(f"{question} one"):
        chat(clients, messages[3:])
    assert [list(steps(span)) for span in assemblies(telemetry)] == [[], ["my_trim"]]


async def test_tasks_have_their_own(clients, server, telemetry, question):
    answer_chats(server, 8)
    messages = talk(question, 2)

    async def ask(number):
        with conversation(f"{question} {number}"):
            record_reduction(messages, messages[3:], f"trim_{number}")
            await asyncio.sleep(0)
            await clients.openai_async.chat.completions.create(model="m", messages=messages[3:])

    async with clients.openai_async:
        await asyncio.gather(*map(ask, range(8)))
    found = {span.attributes["gen_ai.conversation.id"]: list(steps(span)) for span in assemblies(telemetry)}
    assert found == {f"{question} {number}": [f"trim_{number}"] for number in range(8)}


async def test_a_task_that_is_started_for_the_call_takes_it_from_its_parent(clients, server, telemetry, question):
    answer_chats(server, 2)
    messages = talk(question, 2)
    record_reduction(messages, messages[3:], "my_trim")
    async with clients.openai_async as client:
        for _ in range(2):
            await asyncio.create_task(client.chat.completions.create(model="m", messages=messages[3:]))
    assert [list(steps(span)) for span in assemblies(telemetry)] == [["my_trim"], []]


def test_threads_have_their_own(clients, server, telemetry, question):
    answer_chats(server, 8)

    def ask(number):
        messages = talk(f"{question} {number}", 2)
        record_reduction(messages, messages[3:], f"trim_{number}")
        chat(clients, messages[3:])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for span in assemblies(telemetry) for name in steps(span)) == [f"trim_{n}" for n in range(8)]


def test_reductions_without_a_call_are_dropped_in_the_end(clients, telemetry, question):
    class Message(dict):
        pass

    def report():
        for number in range(100):
            message = Message(user(f"{question} {number}"))
            kept.append(weakref.ref(message))
            record_reduction([message], [], "my_trim")

    kept, context = [], contextvars.copy_context()
    context.run(report)
    gc.collect()
    assert sum(reference() is not None for reference in kept) == 16
    assert telemetry.spans == []


# --- Costs and errors -------------------------------------------------------------------------------------------------


def test_a_reduction_is_dropped_after_eight_calls_that_lack_its_messages(clients, server, telemetry, question):
    answer_chats(server, 9)
    messages = talk(question, 2)
    record_reduction(messages, messages[3:], "my_trim")
    for number in range(8):
        chat(clients, [user(f"{question}: another one, {number}")])
    chat(clients, messages[3:])
    assert "my_trim" not in steps(last(telemetry))


def test_where_nothing_is_instrumented_it_costs_next_to_nothing(question):
    uninstrument()
    messages = talk(question, 500)
    record_reduction(messages, messages[3:], "my_trim")
    with Calls() as counted:
        record_reduction(messages, messages[3:], "my_trim")
    assert counted.made < 30


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("text", [], "p"), "before must be a list of messages, got a str"),
        (([], {"role": "user"}, "p"), "after must be a list of messages, got a dict"),
        (([], None, "p"), "after must be a list of messages, got a NoneType"),
        (([], (), 3), "policy must be a text, got a int; give the name of the step"),
        (([], (), ""), "policy is empty"),
    ],
)
def test_wrong_arguments(arguments, problem):
    with pytest.raises(ConfigurationError, match=problem):
        record_reduction(*arguments)


def test_a_list_that_was_trimmed_in_place_is_refused():
    messages = [user("a")]
    with pytest.raises(ConfigurationError, match="the same list; copy the list before you trim it"):
        record_reduction(messages, messages, "my_trim")


def test_an_unknown_reason_is_refused():
    with pytest.raises(ConfigurationError, match="reason must be one of not_conversation, outside_window"):
        record_reduction([], (), "my_trim", reason="too old")


def test_messages_of_no_known_form_do_not_disturb_the_call(clients, server, telemetry, question):
    class Strange:
        def __eq__(self, other):
            raise ValueError("not comparable")

        __hash__ = None

    answer_chats(server, 1)
    record_reduction([Strange(), None, 3], [Strange()], "my_trim")
    chat(clients, [user(question)])
    assert steps(last(telemetry)) == {}


# --- Frameworks -------------------------------------------------------------------------------------------------------


def test_the_next_call_of_a_framework_has_the_step(telemetry, question):
    models = pytest.importorskip("langchain_core.language_models", reason="langchain is not installed")
    messages_of = pytest.importorskip("langchain_core.messages", reason="langchain is not installed")
    instrument("langchain")
    try:
        human, ai = messages_of.HumanMessage, messages_of.AIMessage
        messages = [human(f"{question} 0"), ai("At gate 14."), human(f"{question} 1"), ai("Yes."), human("Thanks")]
        model = models.FakeListChatModel(responses=["You are welcome."])
        record_reduction(messages, messages[2:], "my_trim", reason="outside_window")
        model.invoke(messages[2:])
    finally:
        uninstrument()
    assert steps(last(telemetry)) == {"my_trim": dict.fromkeys("01", "outside_window")}


def test_the_dicts_of_a_program_are_found_among_the_messages_of_a_framework(telemetry, question):
    models = pytest.importorskip("langchain_core.language_models", reason="langchain is not installed")
    instrument("langchain")
    try:
        messages = talk(question, 2)
        model = models.FakeListChatModel(responses=["You are welcome."])
        record_reduction(messages, messages[3:], "my_trim")
        model.invoke(messages[3:])
    finally:
        uninstrument()
    assert list(steps(last(telemetry))) == ["my_trim"]
