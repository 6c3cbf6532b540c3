"""Chains: one run as one trace, one assembly per model call, and one step for each thing that reduces the messages."""

from __future__ import annotations

import asyncio
from operator import itemgetter

import pytest
from blockbuster import blockbuster_ctx
from langchain_agents import chat, scripted
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    filter_messages,
    get_buffer_string,
    merge_message_runs,
    trim_messages,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory

pytestmark = pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory", "ignore:The class `InMemoryChat")

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "You help."), MessagesPlaceholder("history"), ("human", "{input}")]
)
ANSWERS = [f"Answer {number}." for number in range(40)]
ASSEMBLY = "assemble_context"


def model():
    return scripted(*ANSWERS)


def newest(limit, **settings):
    return trim_messages(max_tokens=limit, token_counter=len, strategy="last", **settings)


def turns(number):
    return [
        message
        for turn in range(number)
        for message in (HumanMessage(f"question {turn}"), AIMessage(f"earlier answer {turn}"))
    ]


def asks(number, text="now"):
    return {"history": turns(number), "input": text}


def steps(span):
    """Each step of an assembly: its policy, and the numbers of events in and out."""
    return [
        (step.name.removeprefix("apply_policy "), *(step.attributes[f"assembly.events.{at}"] for at in ("in", "out")))
        for step in span.children
        if step.name.startswith("apply_policy")
    ]


def told(telemetry):
    """Each assembly: the numbers of events in and out, of those injected, and its steps."""
    return [
        (*(span.attributes[f"assembly.events.{at}"] for at in ("in", "out", "injected")), steps(span))
        for span in telemetry.spans_named(ASSEMBLY)
    ]


def runs(telemetry):
    """The names of the runs, each of which is a trace that has everything in it."""
    roots = [span for span in telemetry.spans if span.parent_id is None]
    assert len({span.trace_id for span in telemetry.spans}) == len(roots)
    return [root.name for root in roots]


def trims_history(limit):
    return RunnablePassthrough.assign(history=itemgetter("history") | newest(limit)) | PROMPT | model()


def newest_two(messages):
    return messages[-2:]


def with_newest_two(given):
    return {**given, "history": given["history"][-2:]}


CHAINS = {
    "before the template": (trims_history(4), (9, 5, 0, [("trim_messages", 9, 5)])),
    "after the template": (
        PROMPT | newest(4, include_system=True) | model(),
        (10, 4, 0, [("trim_messages", 10, 4)]),
    ),
    "twice": (
        PROMPT | newest(6) | newest(2) | model(),
        (10, 2, 0, [("trim_messages", 10, 6), ("trim_messages", 6, 2)]),
    ),
    "twice, to no effect": (
        itemgetter("history") | newest(60) | newest(50) | model(),
        (8, 8, 0, [("trim_messages", 8, 8), ("trim_messages", 8, 8)]),
    ),
    "a filter": (
        PROMPT | filter_messages(exclude_types=["ai"]) | model(),
        (10, 6, 0, [("filter_messages", 10, 6)]),
    ),
    "a filter, then runs of messages merged": (
        PROMPT | filter_messages(exclude_types=["ai"]) | merge_message_runs() | model(),
        (10, 2, 1, [("filter_messages", 10, 6), ("merge_message_runs", 6, 2)]),
    ),
    "a function of messages": (
        RunnablePassthrough.assign(history=itemgetter("history") | RunnableLambda(newest_two)) | PROMPT | model(),
        (9, 3, 0, [("newest_two", 9, 3)]),
    ),
    "a function of everything": (
        RunnableLambda(with_newest_two) | PROMPT | model(),
        (9, 3, 0, [("with_newest_two", 9, 3)]),
    ),
    "a lambda": (
        RunnablePassthrough.assign(history=lambda given: given["history"][-2:]) | PROMPT | model(),
        (9, 3, 0, [("RunnableLambda", 9, 3)]),
    ),
    "a function that trims": (
        RunnableLambda(lambda given: {**given, "history": newest(2).invoke(given["history"])}) | PROMPT | model(),
        (9, 3, 0, [("trim_messages", 9, 3)]),
    ),
    "a function that makes the prompt": (
        RunnableLambda(lambda given: [*given["history"][-2:], HumanMessage(given["input"])]) | model(),
        (9, 3, 0, [("RunnableLambda", 9, 3)]),
    ),
}


async def invoke(chain, given):
    return chain.invoke(given)


async def ainvoke(chain, given):
    return await chain.ainvoke(given)


async def stream(chain, given):
    return list(chain.stream(given))


async def astream(chain, given):
    return [part async for part in chain.astream(given)]


async def batch(chain, given):
    return chain.batch([given])


async def abatch(chain, given):
    return await chain.abatch([given])


@pytest.mark.parametrize("way", [invoke, ainvoke, stream, astream, batch, abatch])
@pytest.mark.parametrize("kind", CHAINS)
async def test_a_chain_is_one_run_and_each_reducer_one_step(telemetry, kind, way):
    chain, expected = CHAINS[kind]
    for _ in range(2):
        await way(chain, asks(4))
    assert told(telemetry) == [expected] * 2
    assert runs(telemetry) == ["invoke_agent RunnableSequence"] * 2
    assert all("framework" not in dict.fromkeys(name for name, *_ in steps) for *_, steps in told(telemetry))


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_history_that_is_trimmed_at_each_call_has_one_trim_a_call(telemetry, at_once):
    """The tutorial's chain: in each call the history is trimmed, and the new message is the user's."""
    store = {}

    def history_of(session):
        return store.setdefault(session, InMemoryChatMessageHistory())

    trims = itemgetter("history") | newest(5, include_system=True, start_on="human")
    chain = RunnableWithMessageHistory(
        RunnablePassthrough.assign(history=trims) | PROMPT | model(),
        history_of,
        input_messages_key="input",
        history_messages_key="history",
    )

    async def talk(session):
        for number in range(6):
            given = {"input": f"question {number}"}, {"configurable": {"session_id": session}}
            await chain.ainvoke(*given) if at_once else chain.invoke(*given)

    if at_once:
        await asyncio.gather(talk("a"), talk("b"))
    else:
        await talk("a")
        await talk("b")
    for session in "ab":
        spans = [
            span for span in telemetry.spans_named(ASSEMBLY) if span.attributes["gen_ai.conversation.id"] == session
        ]
        held = [2 * number for number in range(6)]
        left = [min(number, 4) for number in held]
        assert [span.attributes["assembly.turn"] for span in spans] == list(range(6))
        assert [span.attributes["assembly.events.in"] for span in spans] == [number + 1 for number in held]
        assert [span.attributes["assembly.events.injected"] for span in spans] == [0] * 6
        assert [span.attributes["assembly.dropped.count"] for span in spans] == [
            number - kept for number, kept in zip(held, left, strict=True)
        ]
        assert [len(steps(span)) for span in spans] == [0, 1, 1, 1, 1, 1]
        assert {span.attributes["gen_ai.agent.name"] for span in spans} == {"RunnableWithMessageHistory"}
    assert runs(telemetry) == ["invoke_agent RunnableWithMessageHistory"] * 12


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("way", [invoke, ainvoke])
async def test_branches_in_parallel_have_a_trim_each(telemetry, number, way):
    await way(RunnableParallel(long=trims_history(5), short=trims_history(3)), asks(number))
    held = 2 * number
    expected = [
        (held + 1, min(held, limit) + 1, 0, [("trim_messages", held + 1, min(held, limit) + 1)]) for limit in (3, 5)
    ]
    assert sorted(told(telemetry)) == sorted(expected)
    assert runs(telemetry) == ["invoke_agent RunnableParallel"]


@pytest.mark.parametrize("way", ["batch", "abatch"])
async def test_inputs_of_one_batch_that_share_a_history_have_a_trim_each(telemetry, way):
    shared = turns(1)
    given = [{"history": shared, "input": "one"}, {"history": shared, "input": "two"}, asks(4, "three")]
    chain = trims_history(4)
    if way == "batch":
        chain.batch(given)
    else:
        await chain.abatch(given)
    few, many = (3, 3, 0, [("trim_messages", 3, 3)]), (9, 5, 0, [("trim_messages", 9, 5)])
    assert sorted(told(telemetry)) == [few, few, many]
    assert runs(telemetry) == ["invoke_agent RunnableSequence"]


async def test_what_is_trimmed_before_a_chain_is_a_step_of_the_call_that_the_chain_makes(telemetry):
    chain = PROMPT | model()
    for _ in range(2):
        chain.invoke({"history": newest(4).invoke(turns(4)), "input": "now"})
        await chain.ainvoke({"history": trim_messages(turns(4), max_tokens=4, token_counter=len), "input": "now"})
    assert told(telemetry) == [(9, 5, 0, [("trim_messages", 9, 5)])] * 4


@pytest.mark.parametrize("place", ["system", "human"])
async def test_a_history_that_is_rendered_into_a_prompt_is_compacted_into_it(telemetry, place):
    prompt = ChatPromptTemplate.from_messages([(place, "So far:\n{history}"), ("human", "{input}")])
    trimmed = itemgetter("history") | newest(3) | RunnableLambda(get_buffer_string)
    (RunnablePassthrough.assign(history=trimmed) | prompt | model()).invoke(asks(4))
    span, step = telemetry.span(ASSEMBLY), telemetry.span("apply_policy framework")
    assert (span.attributes["assembly.events.in"], span.attributes["assembly.events.out"]) == (9, 2)
    assert span.attributes["assembly.dropped.count"] == 5  # by the trim
    assert step.compacted == ["5", "6", "7"]
    assert "5-7" in span.attributes["assembly.arrived.sources"]


async def test_a_program_may_filter_and_merge_by_itself(telemetry):
    messages = merge_message_runs(filter_messages(turns(3), exclude_types=["ai"]))
    model().invoke(messages)
    assert told(telemetry) == [(6, 1, 1, [("filter_messages", 6, 3), ("merge_message_runs", 3, 1)])]


async def test_a_trim_that_nothing_is_sent_of_is_no_step_of_the_call(telemetry):
    def counts(given):
        trim_messages(given["history"], max_tokens=2, token_counter=len)
        return given

    chain = RunnableLambda(counts) | PROMPT | model()
    for number in (2, 3, 4):
        chain.invoke(asks(number))
    called = [message for message in told(telemetry) if message[1] > 2]
    assert called == [(2 * number + 1, 2 * number + 1, 0, []) for number in (2, 3, 4)]


async def test_a_program_that_goes_on_with_what_it_has_trimmed_has_one_trim_a_call(telemetry):
    asked, messages = model(), []
    for number in range(6):
        messages = trim_messages([*messages, HumanMessage(f"question {number}")], max_tokens=3, token_counter=len)
        messages = [*messages, asked.invoke(messages)]
    assert told(telemetry) == [
        (number, min(number, 3), 0, [("trim_messages", number, min(number, 3))]) for number in (1, 3, 5, 5, 5, 5)
    ]


async def test_conversations_that_take_turns_in_one_thread_are_told_apart(telemetry):
    asked = model()
    histories = {name: [] for name in "ab"}
    for number in range(4):
        for name, history in histories.items():
            kept = trim_messages(history, max_tokens=3, token_counter=len)
            question = HumanMessage(f"{name} {number}")
            history += [question, asked.invoke([*kept, question])]
    expected = [
        (1, 1, 0, []),
        *((held + 1, min(held, 3) + 1, 0, [("trim_messages", held + 1, min(held, 3) + 1)]) for held in (2, 4, 6)),
    ]
    assert told(telemetry) == [message for message in expected for _ in "ab"]


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        ((PROMPT | model()).with_config(run_name="support"), "support"),
        (PROMPT | model(), "RunnableSequence"),
        (RunnableLambda(lambda given: MODEL.invoke(given["history"])), "RunnableLambda"),
        ((PROMPT | model()).with_fallbacks([PROMPT | model()]), "RunnableWithFallbacks"),
        ((PROMPT | model()).with_retry(), "RunnableRetry"),
    ],
)
async def test_a_run_has_the_name_that_it_was_given_else_that_of_its_class(telemetry, chain, name):
    await chain.ainvoke(asks(1))
    assert runs(telemetry) == [f"invoke_agent {name}"]
    assert telemetry.span(ASSEMBLY).attributes["gen_ai.agent.name"] == name


async def test_a_chain_that_calls_no_model_has_no_span(telemetry):
    (PROMPT | RunnableLambda(str)).invoke(asks(1))
    assert telemetry.spans == []


async def test_a_bare_call_is_no_run(telemetry):
    asked = model()
    asked.invoke(chat(1))
    asked.bind(stop=["x"]).invoke(chat(1))
    assert [span.name for span in telemetry.spans] == [ASSEMBLY] * 2


MODEL = model()


async def test_a_chain_of_a_function_does_not_read_files_in_the_event_loop(telemetry):
    answering = model()

    async def answer(messages):
        return await answering.ainvoke(messages)

    chain = RunnableLambda(answer)
    with blockbuster_ctx():
        await chain.ainvoke(turns(2))

    assert runs(telemetry) == ["invoke_agent answer"]
    assert told(telemetry) == [(4, 4, 0, [])]


class Answering:
    def __init__(self):
        self.model = model()

    def answer(self, messages):
        return self.model.invoke(messages)


def test_a_chain_of_a_method_that_calls_a_model_is_a_run(telemetry):
    (RunnableLambda(newest_two) | Answering().answer).invoke(turns(2))

    assert runs(telemetry) == ["invoke_agent RunnableSequence"]
