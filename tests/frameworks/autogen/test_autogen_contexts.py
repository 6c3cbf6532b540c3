"""AutoGen's model contexts, as anybody uses them: what left, why, and what AutoGen says of it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import UserMessage
from autogen_talk import asked, calls, filled, model, reply, results, said, user

from otel_assembly.instrumentation import instrument, uninstrument

TALK = [user("opening request"), reply("a"), user("b"), calls("1"), results("1"), reply("c")]


async def test_a_buffer_names_what_it_left_out(told):
    context = await filled(BufferedChatCompletionContext(2), *TALK)
    assert said(await asked(context)) == ["c"]
    step = told.span("apply_policy buffered")
    outside = dict.fromkeys(map(str, range(4)), "outside_window")
    assert step.dropped_reasons == {**outside, "4": "orphaned_tool_result"}
    assert step.attributes["assembly.policy.config"] == '{"buffer_size":2}'
    assert step.attributes["assembly.policy.kind"] == "reduction"
    assembly = told.span("assemble_context")
    assert step.parent == assembly
    assert assembly.attributes["assembly.framework"] == "autogen"
    assert (assembly.attributes["assembly.events.in"], assembly.attributes["assembly.events.out"]) == (6, 1)
    assert assembly.kept == ["5"]
    assert assembly.attributes["assembly.resumed.count"] == 5  # the context was filled elsewhere
    assert assembly.attributes["assembly.newly_dropped.count"] == 0


async def test_head_and_tail_says_less_than_it_drops(told):
    talk = [user("opening request"), calls("0"), results("0"), reply("a"), calls("1"), results("1"), reply("b")]
    context = await filled(HeadAndTailChatCompletionContext(2, 2), *talk)
    assert said(await asked(context)) == ["opening request", "Skipped 3 messages.", "b"]
    step = told.span("apply_policy head_and_tail")
    assert step.attributes["assembly.dropped.reported_count"] == 3
    assert step.attributes["assembly.dropped.count"] == 5
    assert step.dropped_reasons == {
        "1": "orphaned_tool_call",
        "2": "outside_window",
        "3": "outside_window",
        "4": "outside_window",
        "5": "orphaned_tool_result",
    }
    assert step.attributes["assembly.compacted.count"] == 0


async def test_head_and_tail_with_nothing_to_skip(told):
    context = await filled(HeadAndTailChatCompletionContext(4, 4), *TALK)
    assert await asked(context) == TALK
    step = told.span("apply_policy head_and_tail")
    assert step.attributes["assembly.dropped.count"] == 0
    assert "assembly.dropped.reported_count" not in step.attributes


async def test_head_and_tail_with_a_note_for_each_message_that_it_drops(told):
    context = await filled(HeadAndTailChatCompletionContext(1, 1), user("a"), reply("b"), user("c"))
    assert said(await asked(context)) == ["a", "Skipped 1 messages.", "c"]
    step = told.span("apply_policy head_and_tail")
    assert step.attributes["assembly.dropped.reported_count"] == 1
    assert (step.dropped_reasons, step.compacted) == ({"1": "outside_window"}, [])


async def test_a_token_limit_takes_from_the_middle_and_parts_pairs(told):
    context = TokenLimitedChatCompletionContext(model(), token_limit=3)
    await filled(context, user("one"), reply("two"), reply("three four five"), calls("1"), results("1"), user("six"))
    assert said(await asked(context)) == ["one", "two", "FunctionExecutionResultMessage", "six"]
    step = told.span("apply_policy token_limited")
    assert step.dropped_reasons == dict.fromkeys(("2", "3"), "over_budget")
    assert step.attributes["assembly.pairs.broken"] == 1
    assert told.span("assemble_context").attributes["assembly.budget.limit"] == 3
    assert step.attributes["assembly.policy.config"] == '{"token_limit":3}'


async def test_a_parted_pair_is_flagged(told):
    context = await filled(BufferedChatCompletionContext(3), calls("1", "2"), results("1"), results("2"), reply("x"))
    assert said(await asked(context)) == ["FunctionExecutionResultMessage", "x"]
    step = told.span("apply_policy buffered")
    assert step.attributes["assembly.pairs.broken"] == 1
    assert step.dropped_reasons == {"0": "outside_window", "1": "orphaned_tool_result"}


async def test_an_empty_result_is_an_overflow(told):
    context = TokenLimitedChatCompletionContext(model(), token_limit=2)
    await filled(context, user("far more than fits in here"), reply("and that as well, it is long"))
    assert await asked(context) == []
    assembly = told.span("assemble_context")
    assert assembly.attributes["assembly.overflowed"] is True
    assert assembly.attributes["assembly.overflow.cause"] == "newest_atom"
    assert assembly.attributes["assembly.overflow.tokens"] >= 1
    assert assembly.status == "ERROR"
    assert assembly.attributes["error.type"] == "context_overflow"
    assert told.metric("assembly.budget.overflows") == 1


async def test_a_limit_that_only_the_client_knows(told):
    class Small(type(model())):
        component_provider_override = None

        def remaining_tokens(self, messages, *, tools=()):
            return 3 - self.count_tokens(messages, tools=tools)

    context = await filled(TokenLimitedChatCompletionContext(Small([])), user("one two three four five"))
    assert await asked(context) == []
    assert told.span("assemble_context").attributes["assembly.budget.limit"] == 3
    assert told.span("apply_policy token_limited").attributes["assembly.overflow.cause"] == "newest_atom"


async def test_unbounded_leaves_nothing_out(told):
    context = await filled(UnboundedChatCompletionContext(), *TALK)
    assert await asked(context) is context._messages
    assert told.span("apply_policy unbounded").attributes["assembly.dropped.count"] == 0
    assert told.span("assemble_context").kept == ["0", "1", "2", "3", "4", "5"]


async def test_each_turn_tells_all_that_is_out_and_counts_what_is_new(told):
    context = BufferedChatCompletionContext(2)
    exits = []
    for number in range(6):
        await context.add_message(user(f"message {number}"))
        await asked(context)
        exits.append(told.span("apply_policy buffered").dropped_reasons)
    assert exits == [dict.fromkeys(map(str, range(out)), "outside_window") for out in (0, 0, 1, 2, 3, 4)]
    new = [span.attributes["assembly.newly_dropped.count"] for span in told.spans_named("apply_policy buffered")]
    assert new == [0, 0, 1, 1, 1, 1]
    turns = [span.attributes["assembly.turn"] for span in told.spans_named("assemble_context")]
    assert turns == list(range(6))
    assert len({span.attributes["assembly.ledger.id"] for span in told.spans_named("assemble_context")}) == 1


async def test_two_contexts_are_two_conversations(told):
    for _ in range(2):
        context = await filled(BufferedChatCompletionContext(2), *TALK)
        await asked(context)
    ledgers = [span.attributes["assembly.ledger.id"] for span in told.spans_named("assemble_context")]
    assert len(set(ledgers)) == 2


async def test_a_cleared_and_a_loaded_context_go_on(told):
    context = await filled(BufferedChatCompletionContext(3), *TALK)
    state = await context.save_state()
    await asked(context)
    await context.clear()
    assert await asked(context) == []
    await context.load_state(state)
    assert said(await asked(context)) == ["AssistantMessage", "FunctionExecutionResultMessage", "c"]
    counts = [span.attributes["assembly.events.in"] for span in told.spans_named("assemble_context")]
    assert counts == [6, 0, 6]


class Reasoning(BufferedChatCompletionContext):
    """Its own rule on top of the buffer's."""

    async def get_messages(self):
        return [message for message in await super().get_messages() if message.content != "a"]


async def test_a_subclass_is_a_step_behind_its_base(told):
    context = await filled(Reasoning(5), *TALK)
    assert said(await asked(context)) == ["b", "AssistantMessage", "FunctionExecutionResultMessage", "c"]
    steps = [span for span in told.spans if span.name.startswith("apply_policy")]
    assert [step.name for step in steps] == ["apply_policy buffered", "apply_policy Reasoning"]
    assert [step.dropped_reasons for step in steps] == [{"0": "outside_window"}, {"1": "policy"}]
    assert steps[0].attributes["assembly.policy.config"] == '{"buffer_size":5}'
    assert len(told.spans_named("assemble_context")) == 1


async def test_a_subclass_that_adds_nothing_is_its_base(told):
    class Named(BufferedChatCompletionContext):
        pass

    await asked(await filled(Named(2), *TALK))
    assert [span.name for span in told.spans] == ["apply_policy buffered", "assemble_context"]


async def test_copies_are_their_originals(told):
    class Copying(ChatCompletionContext):
        async def get_messages(self):
            return [message.model_copy() for message in self._messages[-2:]]

    context = await filled(Copying(), *TALK[:4])
    await asked(context)
    assembly = told.span("assemble_context")
    assert assembly.attributes["assembly.dropped.count"] == 2
    assert assembly.kept == ["2", "3"]
    assert told.span("apply_policy Copying").dropped_reasons == {"0": "policy", "1": "policy"}


async def test_a_store_of_its_own_gives_no_false_number(told):
    class OwnStore(ChatCompletionContext):
        def __init__(self, initial_messages=None):
            super().__init__(initial_messages)
            self.store = []

        async def add_message(self, message):
            self.store.append(message)

        async def get_messages(self):
            return self.store[-2:]

    for context in (OwnStore(), OwnStore([user("begin")])):
        await asked(await filled(context, *TALK))
        assembly = told.span("assemble_context")
        assert assembly.attributes["assembly.input.unknown"] is True
        assert assembly.attributes["assembly.events.out"] == 2
        assert "assembly.dropped.count" not in assembly.attributes
        assert "assembly.events.in" not in assembly.attributes


class Around(ChatCompletionContext):
    """Asks another context."""

    def __init__(self, inner, own=lambda messages: messages):
        super().__init__()
        self.inner, self.own = inner, own

    async def add_message(self, message):
        await self.inner.add_message(message)

    async def get_messages(self):
        return self.own(await self.inner.get_messages())


async def test_a_context_around_another_one(told):
    await asked(await filled(Around(BufferedChatCompletionContext(2)), *TALK))
    assert [span.name for span in told.spans] == ["apply_policy buffered", "assemble_context"]
    assembly = told.span("assemble_context")
    assert (assembly.attributes["assembly.events.in"], assembly.attributes["assembly.dropped.count"]) == (6, 5)
    assert "assembly.input.unknown" not in assembly.attributes


async def test_a_context_around_another_one_with_rules_of_its_own(told):
    inner = HeadAndTailChatCompletionContext(1, 2)
    await asked(await filled(Around(inner, lambda messages: messages[:-1]), *TALK))
    head_and_tail, around = (span for span in told.spans if span.name.startswith("apply_policy"))
    assert head_and_tail.attributes["assembly.dropped.reported_count"] == 3
    assert head_and_tail.attributes["assembly.dropped.count"] == 4
    assert (around.name, around.dropped_reasons) == ("apply_policy Around", {"5": "policy"})
    told.clear()
    await asked(await filled(Around(Reasoning(5)), *TALK))
    assert told.span("apply_policy buffered").dropped_reasons == {"0": "outside_window"}
    assert told.span("apply_policy Reasoning").dropped_reasons == {"1": "policy"}
    assert len(told.spans) == 3


async def test_a_class_that_looks_at_what_is_added(told):
    class Logging(UnboundedChatCompletionContext):
        def __init__(self, extra=()):
            super().__init__()
            self.seen, self.extra = 0, list(extra)

        async def add_message(self, message):
            self.seen += 1
            await super().add_message(message)

        async def get_messages(self):
            return [*self.extra, *(await super().get_messages())[-1:]]

    await asked(await filled(Logging(), *TALK))
    assert told.span("assemble_context").attributes["assembly.dropped.count"] == 5
    await asked(await filled(Logging([user("found elsewhere")]), *TALK))
    held = told.span("apply_policy Logging").attributes
    assert (held["assembly.dropped.count"] + held["assembly.compacted.count"], held["assembly.events.out"]) == (5, 2)


async def test_classes_of_later_and_of_any_make(told):
    class Silent(ChatCompletionContext):
        """Says nothing to its base, neither as a class nor as an object."""

        def __init_subclass__(cls, **arguments):
            pass

        def __init__(self):
            self._messages = [user("kept by itself")]

        async def get_messages(self):
            return self._messages

    class Quieter(Silent):
        def __init__(self):
            ChatCompletionContext.__init__(self, [user("x")])

        async def get_messages(self):
            return list(self._messages)

    class Last:
        async def get_messages(self):
            return (await super().get_messages())[-1:]

    class Mixed(Last, UnboundedChatCompletionContext):
        pass

    for context, policy in ((Silent(), "Silent"), (Quieter(), "Quieter"), (Mixed([user("a"), user("b")]), "Last")):
        told.clear()
        await asked(context)
        assert [span.name for span in told.spans][-2:] == [f"apply_policy {policy}", "assemble_context"]
    assert told.span("apply_policy Last").dropped_reasons == {"0": "policy"}


async def test_an_error_of_the_context_is_its_own(told):
    class Broken(BufferedChatCompletionContext):
        async def get_messages(self):
            raise LookupError("secret words")

    context = await filled(Broken(2), user("secret words"))
    with pytest.raises(LookupError, match="secret words") as raised:
        await asked(context)
    assert raised.value.__cause__ is None
    step, assembly = told.span("apply_policy Broken"), told.span("assemble_context")
    assert step.status == assembly.status == "ERROR"
    assert step.attributes["error.type"] == "LookupError"
    assert "secret" not in str(told.spans)


async def test_a_failure_of_ours_is_not_the_agents(assembly_telemetry, caplog):
    class Unreadable(type(model())):
        component_provider_override = None

        @property
        def model_info(self):
            raise RuntimeError("secret words")

    instrument("autogen")
    try:
        await asked(UnboundedChatCompletionContext())
        assembly_telemetry.clear()
        for _ in range(2):
            context = await filled(UnboundedChatCompletionContext(), *TALK)
            assert (await Unreadable(["yes"]).create(await context.get_messages())).content == "yes"
    finally:
        uninstrument("autogen")
    assert assembly_telemetry.spans == []
    assert assembly_telemetry.metric("assembly.telemetry.errors", component="instrumentation.autogen") == 2
    warnings = [record.getMessage() for record in caplog.records if record.name == "otel_assembly"]
    assert len(warnings) == 1
    assert "secret" not in warnings[0]


async def test_a_summary_that_is_cancelled(told):
    asked = asyncio.Event()

    class Summarising(ChatCompletionContext):
        async def get_messages(self):
            asked.set()
            await asyncio.sleep(60)
            return self._messages[-1:]

    context = await filled(Summarising(), *TALK)
    turn = asyncio.create_task(context.get_messages())
    await asked.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    for span in (told.span("apply_policy Summarising"), told.span("assemble_context")):
        assert span.status == "ERROR"
        assert span.attributes["error.type"] == "cancelled"
    assert await filled(context, reply("goes on")) is context


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("kind", ["unbounded", "buffered", "head_and_tail", "token_limited"])
async def test_the_same_objects_come_back(kind, size, told):
    def made():
        return {
            "unbounded": lambda: UnboundedChatCompletionContext(list(TALK)),
            "buffered": lambda: BufferedChatCompletionContext(size, list(TALK)),
            "head_and_tail": lambda: HeadAndTailChatCompletionContext(size, size, list(TALK)),
            "token_limited": lambda: TokenLimitedChatCompletionContext(
                model(), token_limit=size, initial_messages=list(TALK)
            ),
        }[kind]()

    watched = await asked(made())
    uninstrument("autogen")
    alone = await asked(made())
    instrument("autogen")
    assert watched == alone
    assert [id(message) for message in watched if message in TALK] == [
        id(message) for message in alone if message in TALK
    ]


async def test_uninstrumenting_puts_the_same_functions_back(assembly_telemetry):
    class Before(BufferedChatCompletionContext):
        async def get_messages(self):
            return await super().get_messages()

    classes = (Before, BufferedChatCompletionContext, UnboundedChatCompletionContext, HeadAndTailChatCompletionContext)
    originals = [vars(kind)["get_messages"] for kind in classes]
    base = dict(vars(ChatCompletionContext))
    instrument("autogen")
    held = vars(Before)["get_messages"]
    built = await filled(Before(2), *TALK)

    class During(ChatCompletionContext):
        async def get_messages(self):
            return self._messages

    await asked(built)
    await asked(During())
    assert len(assembly_telemetry.spans_named("assemble_context")) == 2
    uninstrument("autogen")
    assembly_telemetry.clear()
    assert [vars(kind)["get_messages"] for kind in classes] == originals
    assert dict(vars(ChatCompletionContext)) == base
    assert said(await asked(built)) == ["c"]
    assert said(await held(built)) == ["c"]
    await asked(During())
    assert assembly_telemetry.spans == []


async def test_a_conversation_is_not_kept_alive(told):
    context = await filled(BufferedChatCompletionContext(2), *TALK)
    await asked(context)
    gone = weakref.ref(context)
    del context
    gc.collect()
    assert gone() is None


async def test_an_object_that_cannot_be_weakly_held(told):
    class Slotted(ChatCompletionContext):
        __slots__ = ()

        async def get_messages(self):
            return [user("x")]

    class Duck:
        __slots__ = ("held",)

        def __init__(self):
            self.held = [user("x")]

        async def add_message(self, message):
            self.held.append(message)

        async def get_messages(self):
            return self.held

    from autogen_agentchat.agents import AssistantAgent

    agent = AssistantAgent("duck_keeper", model("yes", "no"), model_context=Duck())
    await agent.run(task="hello")
    await agent.run(task="again")
    assembly = told.span("assemble_context")
    assert assembly.attributes["assembly.input.unknown"] is True
    assert assembly.attributes["assembly.events.out"] == 4
    assert told.span("apply_policy Duck").attributes["assembly.policy.kind"] == "reduction"
    assert isinstance(agent.model_context.held[0], UserMessage)
