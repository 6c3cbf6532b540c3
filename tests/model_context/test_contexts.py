"""AutoGen's contexts without AutoGen: pairs whole, the newest request kept, true numbers, nothing shared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_context.talks import OURS, WordClient, broken, filled, places, said, table

from otel_assembly import ConfigurationError, ContextOverflowError, ObserverAlert, Severity
from otel_assembly import model_context as home
from otel_assembly.errors import AssemblyError, DescribeError, HaltedError
from otel_assembly.explain import explain
from otel_assembly.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    FunctionExecutionResultMessage,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
    UserMessage,
)
from otel_assembly.telemetry import read_ledgers

of = OURS.of


async def given_by(context, *lines):
    talk = of(*lines)
    await filled(context, talk)
    kept = await context.get_messages()
    return places(kept, talk), kept


async def test_a_buffer_never_parts_a_call_from_its_results():
    found, _ = await given_by(BufferedChatCompletionContext(2), "ask", "call a b", "result a", "result b", "ask", "say")
    assert found == [4, 5]
    found, _ = await given_by(BufferedChatCompletionContext(3), "ask", "call a b", "result a", "result b", "ask", "say")
    assert found == [4, 5]


async def test_a_buffer_of_one_still_holds_the_newest_call_and_the_request():
    found, _ = await given_by(BufferedChatCompletionContext(1), "ask", "say", "ask", "call a", "result a")
    assert found == [2, 3, 4]


async def test_both_ends_say_how_many_messages_are_really_left_out():
    found, kept = await given_by(
        HeadAndTailChatCompletionContext(2, 1), "ask", "call a", "result a", "call b", "result b", "say"
    )
    assert found == [0, None, 5]
    assert said(kept)[1] == "Skipped 4 messages."
    assert kept[1].source == "System"


async def test_both_ends_with_the_newest_request_between_them():
    found, kept = await given_by(
        HeadAndTailChatCompletionContext(1, 3), "ask", "say", "say", "ask", "say", "say", "say", "say"
    )
    assert found == [0, None, 3, 6, 7]
    assert said(kept)[1] == "Skipped 4 messages."


async def test_nothing_is_said_where_nothing_is_skipped():
    found, _ = await given_by(HeadAndTailChatCompletionContext(2, 2), "ask", "say", "ask", "say")
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["unbounded", "buffered", "head_and_tail", "token_limited"])
async def test_results_of_nothing_are_given_to_no_model(kind):
    context = getattr(table(home), kind)
    await filled(context, [FunctionExecutionResultMessage(content=[]), *of("ask", "result z", "call a", "say", "ask")])
    kept = await context.get_messages()
    assert broken(kept) == []
    assert said(kept)[-2:] == ["say 3", "ask 4"]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 14), st.integers(1, 9), st.integers(1, 9))
async def test_no_conversation_makes_a_context_break_a_pair(seed, turns, value, other):
    talk = OURS.random(seed, turns)
    newest = max(at for at, message in enumerate(talk) if isinstance(message, UserMessage))
    for context in (
        UnboundedChatCompletionContext(talk),
        BufferedChatCompletionContext(value, talk),
        HeadAndTailChatCompletionContext(value, other, talk),
    ):
        kept = await context.get_messages()
        found = [at for at in places(kept, talk) if at is not None]
        assert broken(kept) == []
        assert found == sorted(found)
        assert newest in found
        notes = [message for message in kept if all(message is not known for known in talk)]
        assert [note.content for note in notes] == [f"Skipped {len(talk) - len(found)} messages."] * len(notes)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 14), st.integers(20, 400))
async def test_what_the_client_counts_is_never_over_the_limit(seed, turns, limit):
    talk, client = OURS.random(seed, turns), WordClient()
    tools = [{"name": "weather", "parameters": {"type": "object", "properties": {}}}]
    context = TokenLimitedChatCompletionContext(client, token_limit=limit, tool_schema=tools, initial_messages=talk)
    try:
        kept = await context.get_messages()
    except ContextOverflowError:
        return
    assert client.count_tokens(kept, tools=tools) <= limit
    assert broken(kept) == []


async def test_a_request_over_the_limit_is_an_error_before_any_model_is_called():
    context = TokenLimitedChatCompletionContext(WordClient(), token_limit=10)
    await filled(context, [OURS.user("word " * 50)])
    with pytest.raises(ContextOverflowError, match="newest_request 53"):
        await context.get_messages()
    compat = TokenLimitedChatCompletionContext(WordClient(), token_limit=10, compat=True)
    await filled(compat, [OURS.user("word " * 50)])
    assert await compat.get_messages() == []


@pytest.mark.parametrize(("compat", "raised"), [(True, ConnectionError), (False, AssemblyError)])
async def test_a_client_that_cannot_count_is_an_error_of_the_context_or_as_with_autogen_its_own(compat, raised):
    class Unreachable(WordClient):
        def count_tokens(self, messages, *, tools=()):
            raise ConnectionError("nobody answers")

    context = TokenLimitedChatCompletionContext(Unreachable(), token_limit=10, compat=compat)
    await filled(context, [OURS.user("word")])
    with pytest.raises(raised):
        await context.get_messages()


async def test_without_a_limit_the_client_says_what_is_left():
    talk = of(*["ask", "say"] * 20)
    client = WordClient(window=30)
    context = TokenLimitedChatCompletionContext(client, initial_messages=talk)
    kept = await context.get_messages()
    assert client.count_tokens(kept) == 27
    assert places(kept, talk) == [35, 36, 37, 38, 39]


async def test_a_model_counts_where_there_is_no_client():
    context = TokenLimitedChatCompletionContext(model="gpt-4o", token_limit=60, initial_messages=of(*["ask"] * 40))
    assert 4 <= len(await context.get_messages()) <= 10


async def test_each_text_is_counted_once_however_often_it_is_asked_for():
    client = WordClient()
    context = TokenLimitedChatCompletionContext(
        client, token_limit=200, initial_messages=[OURS.user(f"ask {number}") for number in range(300)]
    )
    await context.get_messages()
    before = client.asked
    assert before <= 303
    for number in range(10):
        await context.add_message(OURS.user(f"more {number}"))
        await context.get_messages()
    assert client.asked == before + 10
    await context.load_state(await context.save_state())
    await context.get_messages()
    assert client.asked == before + 10


@pytest.mark.parametrize("kind", ["unbounded", "buffered", "head_and_tail", "token_limited"])
async def test_what_is_given_is_the_callers_own(kind):
    context = getattr(table(home), kind)
    await filled(context, of("ask", "say"))
    (await context.get_messages()).clear()
    initial = of("ask")
    assert len(await context.get_messages()) == 2
    other = UnboundedChatCompletionContext(initial)
    initial.append(OURS.reply("later"))
    assert len(await other.get_messages()) == 1
    assert len(other.dump_component().config["initial_messages"]) == 1


async def test_clearing_does_not_bring_the_initial_messages_back():
    context = BufferedChatCompletionContext(3, of("ask", "say"))
    await context.clear()
    assert await context.get_messages() == []
    await context.add_message(OURS.user("anew"))
    assert said(await context.get_messages()) == ["anew"]


async def test_what_is_no_message_is_refused_and_not_held():
    context = UnboundedChatCompletionContext()
    with pytest.raises(DescribeError):
        await context.add_message(object())
    assert await context.get_messages() == []


async def test_a_fatal_alert_halts_a_context():
    context = await filled(BufferedChatCompletionContext(3), of("ask"))
    await context.context.send(ObserverAlert(source="guard", severity=Severity.FATAL, message="stop"))
    with pytest.raises(HaltedError):
        await context.get_messages()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BufferedChatCompletionContext(0), "buffer_size must be greater than 0, got 0"),
        (lambda: HeadAndTailChatCompletionContext(0, 1), "head_size must be greater than 0, got 0"),
        (lambda: HeadAndTailChatCompletionContext(1, -1), "tail_size must be greater than 0, got -1"),
        (lambda: HeadAndTailChatCompletionContext(1, 1.5), "tail_size must be a whole number, got 1.5"),
        (lambda: TokenLimitedChatCompletionContext(WordClient(), token_limit=0), "token_limit must be greater than 0"),
        (lambda: TokenLimitedChatCompletionContext(), "neither token_limit nor model_client is given"),
        (lambda: TokenLimitedChatCompletionContext(object(), token_limit=5), "has no count_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


async def test_a_client_that_does_not_say_what_is_left_needs_a_limit():
    class Counts:
        def count_tokens(self, messages, *, tools=()):
            return len(messages)

    with pytest.raises(ConfigurationError, match="has no remaining_tokens"):
        TokenLimitedChatCompletionContext(Counts())
    context = await filled(TokenLimitedChatCompletionContext(Counts(), token_limit=9), of("ask"))
    assert len(await context.get_messages()) == 1


async def test_a_context_of_ones_own():
    class Newest(ChatCompletionContext):
        async def get_messages(self):
            return self._messages[-1:]

    context = await filled(Newest(), of("ask", "say"))
    assert said(await context.get_messages()) == ["say 1"]
    with pytest.raises(TypeError):
        ChatCompletionContext()


# Turns


async def test_each_asking_is_an_assembly_that_says_what_left(assembly_telemetry):
    context = HeadAndTailChatCompletionContext(1, 2)
    context.context.agent_name = "clerk"
    await filled(context, of(*["ask", "say"] * 4))
    await context.get_messages()
    await context.add_message(OURS.user("more"))
    await context.get_messages()
    first, second = assembly_telemetry.spans_named("assemble_context")
    assert first.attributes["gen_ai.agent.name"] == "clerk"
    assert (first.attributes["assembly.turn"], second.attributes["assembly.turn"]) == (0, 1)
    step = second.children[0]
    assert step.name == "apply_policy head_and_tail"
    assert set(step.dropped_reasons.values()) == {"outside_window"}
    assert (second.attributes["assembly.events.in"], second.attributes["assembly.events.out"]) == (9, 4)
    assert second.attributes["assembly.events.injected"] == 1
    assert assembly_telemetry.violations() == []


@pytest.mark.parametrize(
    ("kind", "parameter"), [("buffered", "max_events"), ("head_and_tail", "tail"), ("token_limited", "max_tokens")]
)
async def test_why_a_message_is_out_is_explained(assembly_telemetry, kind, parameter):
    context = getattr(table(home), kind)
    await filled(context, of(*["ask", "call a", "result a", "say"] * 30))
    await context.get_messages()
    await context.add_message(OURS.user("why?"))
    kept = await context.get_messages()
    (ledger,) = read_ledgers(assembly_telemetry.spans).values()
    answer = explain(ledger, 1, "60" if len(kept) < 60 else "2")
    assert (answer.outcome, answer.unknown) == ("dropped", ())
    assert [raised.parameter for raised in answer.raises] == [parameter]


async def test_what_compat_leaves_out_is_told(assembly_telemetry):
    talk = of("ask", "call a b", "result a", "result b", "ask", "say")
    for context in vars(table(home, compat=True)).values():
        await filled(context, talk)
        await context.get_messages()
    assert len(await BufferedChatCompletionContext(4, talk, compat=True).get_messages()) == 3
    steps = [step.name for span in assembly_telemetry.spans_named("assemble_context") for step in span.children]
    kinds = ("unbounded", "buffered", "head_and_tail", "token_limited", "buffered")
    assert steps == [f"apply_policy {kind}" for kind in kinds]
    step = assembly_telemetry.spans_named("apply_policy buffered")[-1]
    assert step.dropped_reasons == {"0": "outside_window", "1": "outside_window", "2": "orphaned_tool_result"}
    assert assembly_telemetry.violations() == []


@pytest.mark.parametrize("compat", [False, True])
async def test_a_memory_that_asks_makes_no_assembly(assembly_telemetry, compat):
    class Memory:
        async def update_context(self, model_context):
            self.seen = await model_context.get_messages()
            await model_context.add_message(home.SystemMessage(content="it likes tea"))

    for context in vars(table(home, compat=compat)).values():
        memory = Memory()
        await filled(context, of(*["ask", "say"] * 6))
        before = await context.get_messages()
        await memory.update_context(context)
        assert said(memory.seen) == said(before if before is not memory.seen else memory.seen)
        assert said(await context.get_messages())[-1] == "it likes tea"
    assert len(assembly_telemetry.spans_named("assemble_context")) == 2 * 4


async def test_a_turn_reads_what_is_new_and_not_the_conversation():
    for context in vars(table(home)).values():
        await filled(context, of(*["ask", "say"] * 500))
        await context.get_messages()
        history = context._log
        read = []

        class Watched(list):
            def __getitem__(self, place, read=read):
                read.append(place)
                return super().__getitem__(place)

            def __iter__(self):
                raise AssertionError("all of it was read")

        if type(context) is UnboundedChatCompletionContext:
            continue  # it gives all
        history.events = Watched(history.events)
        kept = await context.get_messages()
        assert len(read) <= 3 * len(kept) + 10
