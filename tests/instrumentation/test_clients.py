"""The hook of a model's client takes whatever calls a model, and tells what that is given."""

from __future__ import annotations

import abc
import asyncio

import pytest
from recount import count

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    Reduction,
    StepReport,
    SubclassHook,
    client,
    model_in,
    run_hook,
)

HELLO = [{"role": "user", "content": "hello"}]
TALK = [{"role": "user", "content": word} for word in ("one", "two", "three", "four")]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


def sent(messages):
    return ClientRequest(messages, model="gpt-4o")


def told(telemetry):
    return [span.attributes["assembly.events.out"] for span in telemetry.spans_named("assemble_context")]


async def answering(messages):
    return "fine"


def lazily(messages):
    return answering(messages)


async def words(messages):
    for word in ("so", "it", "is"):
        yield word


def pieces(messages):
    yield from ("so", "it", "is")


def lazy_words(messages):
    return words(messages)


def lazy_pieces(messages):
    return pieces(messages)


class Reply:
    """A framework's own stream."""

    def __init__(self):
        self.ends = []

    def read(self):
        for end in self.ends:
            end()
        return "fine"


async def read_all(answer):
    if hasattr(answer, "__aiter__"):
        return [word async for word in answer]
    return await answer if hasattr(answer, "__await__") else list(answer)


@pytest.mark.parametrize("original", [answering, lazily, words, pieces, lazy_words])
async def test_however_it_answers_it_is_one_call(original, instrumentation, assembly_telemetry):
    expected = await read_all(original(HELLO))
    assert await read_all(client(sent)(original, instrumentation)(HELLO)) == expected
    assert told(assembly_telemetry) == [1]


def test_a_stream_of_the_frameworks_own_carries_its_call_to_its_end(instrumentation, assembly_telemetry):
    def attach_to_stream(run, answer):
        answer.ends.append(run.end)
        return True

    reply = client(sent, attach_to_stream=attach_to_stream)(lambda messages: Reply(), instrumentation)(HELLO)
    assert reply.read() == "fine"
    assert told(assembly_telemetry) == [1]


def test_one_that_only_hands_on_is_looked_through(instrumentation, assembly_telemetry):
    inner = client(sent)(lambda messages: "fine", instrumentation)
    outer = client(lambda messages: None)(lambda messages: inner(messages[-1:]), instrumentation)
    assert outer(TALK) == "fine"
    assert told(assembly_telemetry) == [1]


@pytest.mark.parametrize("words", [words, lazy_words, pieces, lazy_pieces])
async def test_a_summariser_that_streams_is_an_attempt_of_the_step(words, instrumentation, assembly_telemetry):
    call = ModelCall(instrumentation, InvokingAgent("talk"), messages=TALK)
    reduction = Reduction(instrumentation, StepReport("summary", TALK), call=call)
    with reduction.running():
        assert await read_all(client(sent)(words, instrumentation)(TALK[:3])) == ["so", "it", "is"]
    reduction.done([{"role": "user", "content": "All."}, TALK[3]])
    call.client_called(sent(call.out))
    assert told(assembly_telemetry) == [2]
    block = assembly_telemetry.span("compact_block summary")
    assert block.parent.name == "apply_policy summary"
    assert "assembly.tokens.out" not in block.attributes


async def test_a_summariser_that_streams_takes_as_long_as_it_takes_and_may_say_the_whole_at_its_end(
    instrumentation, assembly_telemetry
):
    async def streams(messages):
        yield "All"
        await asyncio.sleep(0.01)
        yield "All was said."

    reduction = Reduction(instrumentation, StepReport("summary", TALK), call=ModelCall(instrumentation, messages=TALK))
    with reduction.running():
        whole = client(sent, chunk_text=lambda answer: answer if answer != "All" else None)
        async for answer in whole(streams, instrumentation)(TALK[:3]):
            if answer != "All":
                break  # nobody reads it to its end
    reduction.done(TALK[3:])
    reduction.call.client_called(sent(TALK[3:]))
    block = assembly_telemetry.span("compact_block summary")
    assert block.attributes["assembly.tokens.out"] == 8  # with what frames a message
    assert block.end_ns - block.start_ns > 5_000_000


def test_a_summariser_may_add_its_answer_to_the_very_list_that_it_has_read(instrumentation, assembly_telemetry):
    invoking_agent, held = InvokingAgent("talk", "clerk", "clerk"), TALK[:3]
    reduction = Reduction(instrumentation, StepReport("summary", TALK))
    with reduction.running():
        client(sent)(lambda messages: messages.append(TALK[3]), instrumentation)(held)
    reduction.done(TALK[3:], invoking_agent=invoking_agent)
    ModelCall(instrumentation, invoking_agent).client_called(sent(TALK[3:]))
    attempt = assembly_telemetry.span("compact_block summary")
    assert attempt.attributes["assembly.tokens.in"] == 3 * (4 + count("one"))


async def test_what_a_summariser_says_in_parts_is_its_text(instrumentation, assembly_telemetry):
    async def silent(messages):
        yield "  "

    async def breaks(messages):
        yield "so"
        raise ConnectionError

    async def unread(part):
        raise AssertionError("nobody summarises")

    for stream in (words, silent):
        call = ModelCall(instrumentation, InvokingAgent("talk"), messages=TALK)
        reduction = Reduction(instrumentation, StepReport("summary", TALK), call=call)
        with reduction.running():
            await read_all(client(sent, chunk_text=lambda word: f"{word} ")(stream, instrumentation)(TALK[:3]))
        reduction.done(TALK[3:])
        call.client_called(sent(call.out))
    reduction = Reduction(
        instrumentation, StepReport("summary", TALK), call=ModelCall(instrumentation, InvokingAgent("talk"))
    )
    with reduction.running(), pytest.raises(ConnectionError):
        await read_all(client(sent, chunk_text=str)(breaks, instrumentation)(TALK[:3]))
    reduction.done([TALK[3]])
    reduction.call.end()
    made = assembly_telemetry.spans_named("compact_block summary")
    outcomes = [span.attributes["assembly.compaction.outcome"] for span in made]
    assert outcomes == ["compacted", "empty", "raised"]
    assert made[0].attributes["assembly.tokens.out"] == 4 + count("so it is ")
    assert await read_all(client(sent, chunk_text=unread)(words, instrumentation)(TALK[:3])) == ["so", "it", "is"]


def test_what_a_reducer_takes_in_that_the_call_did_not_hold_came_by_the_framework(instrumentation, assembly_telemetry):
    call = ModelCall(instrumentation, InvokingAgent("talk"), messages=TALK)
    assert not call.reduced(StepReport("elsewhere", HELLO, []))
    assert call.reduced(StepReport("window", [*HELLO, *TALK[2:]], TALK[3:]))
    call.client_called(sent(TALK[3:]))
    (assembly,) = assembly_telemetry.spans_named("assemble_context")
    assert [child.attributes["assembly.policy.name"] for child in assembly.children] == ["framework", "window"]
    assert assembly.attributes["assembly.events.in"] == 4


def test_prompts_that_change_behind_a_plugin_are_told(instrumentation, assembly_telemetry):
    call = ModelCall(instrumentation, InvokingAgent("talk"))
    call.replaced_by_plugin(HELLO, prompts=["You help."])
    call.client_called(ClientRequest(HELLO, ["You help, briefly."]))
    assert told(assembly_telemetry) == [1]


def test_where_nobody_listens_a_function_is_what_it_was():
    def run_of(*_):
        raise AssertionError("nobody listens")

    silent = Instrumentation("pretend")
    silent.open = False
    assert run_hook(run_of)(len, silent)("four") == 4


def test_a_method_is_followed_past_classes_that_leave_it_to_others(instrumentation, assembly_telemetry):
    class Base(abc.ABC):
        seen = ()

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            Base.seen = (*Base.seen, cls.__name__)

        @abc.abstractmethod
        def call(self, messages): ...

    own, abstract = vars(Base)["__init_subclass__"], Base.call
    hook = client(lambda _, messages: sent(messages))
    following = SubclassHook("call", lambda original, _, ours: hook(original, ours))
    following.wrap_subclasses(Base, instrumentation)

    class Mine(Base):
        def call(self, messages):
            return "fine"

    class Quiet(Mine):
        pass

    assert Quiet().call(HELLO) == "fine"
    assert told(assembly_telemetry) == [1]
    assert Base.seen == ("Mine", "Quiet")
    with pytest.raises(TypeError, match="abstract"):
        Base()
    following.stop_watching()
    instrumentation.patches.restore()
    assert vars(Base)["__init_subclass__"] is own
    assert Base.call is abstract
    assert not hasattr(Mine.call, "__wrapped__")


def test_the_name_of_a_model_is_what_the_first_says_that_has_one():
    class Configured:
        model = "gpt-4o"

    assert model_in({"model": "gpt-4o-mini"}, Configured()) == "gpt-4o-mini"
    assert model_in({"model": ""}, None, Configured()) == "gpt-4o"
    assert model_in({}, object(), {"model": 4}) is None
