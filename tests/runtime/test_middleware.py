"""Middleware stands around each step of an agent: the first is the outermost, and what goes wrong in one is named."""

from __future__ import annotations

import asyncio
import sys

import pytest

from otel_assembly import (
    Agent,
    AlertPolicy,
    ConfigurationError,
    HaltedError,
    HaltEvent,
    MiddlewareBase,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    ToolCallEvent,
    ToolResultEvent,
)
from otel_assembly.errors import MiddlewareError, ModelCallError
from otel_assembly.events import ToolErrorEvent
from otel_assembly.runtime import AssemblerMiddleware, PermissionDecision
from otel_assembly.testing import ScriptedModel

CALL = ModelResponse(tool_calls=(ToolCallEvent(id="c", name="add", arguments='{"a": 1, "b": 2}'),))


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Noting(MiddlewareBase):
    """Notes what comes by, in every hook."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.notes.append(f"{self.name}.reply>")
        async for event in next_handler(**input_kwargs):
            self.notes.append(f"{self.name}.reply {event.type}")
            yield event
        self.notes.append(f"<{self.name}.reply")

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        self.notes.append(f"{self.name}.reasoning>")
        async for event in next_handler():
            yield event
        self.notes.append(f"<{self.name}.reasoning")

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        self.notes.append(f"{self.name}.permission> {sorted(input_kwargs)} {input_kwargs['tool_input']}")
        decision = await next_handler()
        self.notes.append(f"<{self.name}.permission")
        return decision

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.notes.append(f"{self.name}.acting> {sorted(input_kwargs)}")
        async for event in next_handler():
            yield event
        self.notes.append(f"<{self.name}.acting")

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.notes.append(f"{self.name}.model> {sorted(input_kwargs)}")
        result = await next_handler()
        self.notes.append(f"<{self.name}.model")
        return result

    async def on_compress_context(self, agent, input_kwargs, next_handler):
        self.notes.append(f"{self.name}.compress> {sorted(input_kwargs)}")
        await next_handler()
        self.notes.append(f"<{self.name}.compress")

    async def on_system_prompt(self, agent, current_prompt):
        self.notes.append(f"{self.name}.prompt")
        return f"{current_prompt} {self.name}"


async def test_the_first_is_the_outermost_at_every_step():
    notes = []
    model = ScriptedModel(CALL, "Three.")
    agent = Agent("helper", "Be brief.", model, [add], middlewares=[Noting("A", notes), Noting("B", notes)])
    await agent.ask("1 + 2?")
    turn = [
        "A.compress> ['context_config', 'instructions']",
        "B.compress> ['context_config', 'instructions']",
        "<B.compress",
        "<A.compress",
        "A.reasoning>",
        "B.reasoning>",
        "A.prompt",
        "B.prompt",
        "A.model> ['current_model', 'messages', 'tool_choice', 'tools']",
        "B.model> ['current_model', 'messages', 'tool_choice', 'tools']",
        "<B.model",
        "<A.model",
        "<B.reasoning",
        "<A.reasoning",
    ]
    acting = [
        "A.permission> ['tool', 'tool_call', 'tool_input'] {'a': 1, 'b': 2}",
        "B.permission> ['tool', 'tool_call', 'tool_input'] {'a': 1, 'b': 2}",
        "<B.permission",
        "<A.permission",
        "B.reply model_response",
        "A.reply model_response",
        "A.acting> ['tool_call']",
        "B.acting> ['tool_call']",
        "<B.acting",
        "<A.acting",
        "B.reply tool_result",
        "A.reply tool_result",
    ]
    assert notes == [
        "A.reply>",
        "B.reply>",
        *turn,
        *acting,
        *turn,
        "B.reply model_response",
        "A.reply model_response",
        "<B.reply",
        "<A.reply",
    ]
    assert model.received[0].prompts == ("Be brief. A B",)


async def test_what_a_middleware_changes_for_a_call_leaves_the_conversation_as_it_is():
    class Only(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            messages = input_kwargs["messages"]
            assert [event.content for event in messages if isinstance(event, ModelRequest)][-1] == messages[-1].content
            return await next_handler(messages=[ModelRequest(content="Something else")])

    model = ScriptedModel("Hm.")
    agent = Agent("helper", "", model, middlewares=[Only()])
    await agent.ask("Hi.")
    assert [event.content for event in model.received[0].events] == ["Something else"]
    assert [event.content for event in agent.session.history if isinstance(event, ModelRequest)] == ["Hi."]


async def test_messages_read_as_a_list_and_may_be_any_sequence():
    class Reads(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            messages = input_kwargs["messages"]
            extra = ModelRequest(content="by the way")
            assert [*messages, extra] == messages + [extra]  # noqa: RUF005  # what is tested
            assert [extra, *messages] == [extra] + messages  # noqa: RUF005
            assert next(reversed(messages)) is messages[-1] is messages[len(messages) - 1]
            assert messages[-1] in messages
            assert messages.index(messages[-1]) == len(messages) - 1
            assert list(messages[:1]) == [messages[0]]
            assert messages[:1] + messages[1:] == list(messages)
            return await next_handler(messages=(*messages, extra))

    for middlewares in ([Reads()], [AssemblerMiddleware([AlertPolicy()]), Reads()]):
        model = ScriptedModel("One.", "Two.")
        agent = Agent("helper", "", model, middlewares=middlewares)
        await agent.ask("1")
        await agent.ask("2")
        assert model.received[1].events[-1].content == "by the way"
        assert "by the way" not in repr(list(agent.session.history))


async def test_what_an_outer_middleware_changes_an_inner_one_need_not_repeat():
    other = ScriptedModel("Here.", model="gpt-4")

    class Changes(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler(current_model=other, tool_choice="none")

    class Inner(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            assert input_kwargs["current_model"] is other
            return await next_handler(messages=[ModelRequest(content="else")])

    agent = Agent("helper", "", ScriptedModel("Never."), middlewares=[Changes(), Inner(), Noting("A", [])])
    assert (await agent.ask("Hi.")).content == "Here."
    assert [event.content for event in other.received[0].events] == ["else"]
    assert other.received[0].tool_choice == "none"


async def test_a_hook_that_nobody_has_costs_nothing():
    async def calls_of(middlewares):
        agent = Agent("helper", "", ScriptedModel(CALL, "Three."), [add], middlewares=middlewares)
        done = []

        def count(frame, event, argument):
            if event == "call" and "otel_assembly" in frame.f_code.co_filename:
                done.append(frame.f_code.co_name)

        sys.setprofile(count)
        try:
            await agent.ask("1 + 2?")
        finally:
            sys.setprofile(None)
        return done

    await calls_of([])  # what is made once in a process
    assert await calls_of([MiddlewareBase() for _ in range(50)]) == await calls_of([])


class Retry(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except ModelCallError:
            return await next_handler()


def away():
    return ModelCallError("it is away", provider="acme", model="scripted")


async def test_a_retry_is_sent_the_same_assembly(recorder):
    model = ScriptedModel(away(), "Back.")
    agent = Agent("helper", "", model, middlewares=[Retry()])
    assert (await agent.ask("Hi.")).content == "Back."
    assert len(recorder.spans_named("assemble_context")) == 1
    assert model.received[0].events == model.received[1].events


async def test_a_fallback_to_another_model_is_an_assembly_of_its_own(recorder):
    other = ScriptedModel("Here.", model="gpt-4")

    class Fallback(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            try:
                return await next_handler()
            except ModelCallError:
                return await next_handler(current_model=other)

    agent = Agent("helper", "", ScriptedModel(away(), model="gpt-4o"), middlewares=[Fallback()])
    assert (await agent.ask("Hi.")).content == "Here."
    assert [span.attributes["assembly.model"] for span in recorder.spans_named("assemble_context")] == [
        "gpt-4o",
        "gpt-4",
    ]
    assert agent.session.turns == 1
    assert len({span.attributes["assembly.ledger.id"] for span in recorder.spans_named("assemble_context")}) == 1


async def test_a_vote_may_call_the_model_several_times_at_once():
    class Vote(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            answers = await asyncio.gather(next_handler(), next_handler(), next_handler())
            return max(answers, key=lambda answer: answer.content)

    agent = Agent("helper", "", ScriptedModel("b", "c", "a"), middlewares=[Vote()])
    assert (await agent.ask("Hi.")).content == "c"


async def test_calls_at_once_are_each_sent_what_was_assembled_once(recorder):
    class Vote(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            first = asyncio.ensure_future(next_handler())
            await asked.wait()
            second = asyncio.ensure_future(next_handler())
            while not all_asked():
                await asyncio.sleep(0)
            answer.set()
            await second
            return await first

    class Memo:
        name = "memo"

        async def apply(self, prompts, events, context):
            return [*prompts, "remember"], events

    asked, answer = asyncio.Event(), asyncio.Event()

    def all_asked():
        return len(model.received) % 2 == 0

    async def slowly(prompts, events):
        asked.set()
        await answer.wait()
        return "Yes."

    model = ScriptedModel(*[slowly] * 4)
    agent = Agent("helper", "Be brief.", model, assembly=[Memo()], middlewares=[Vote()])
    await agent.ask("Hi.")
    asked.clear()
    answer.clear()
    await agent.ask("Again.")
    assert [call.prompts for call in model.received] == [("Be brief.", "remember")] * 4
    assert len(recorder.spans_named("assemble_context")) == 2


async def test_calls_that_begin_at_once_are_sent_one_assembly(recorder):
    class Vote(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            answers = await asyncio.gather(next_handler(), next_handler(), next_handler())
            return max(answers, key=lambda answer: answer.content)

    class Memo:
        name = "memo"

        async def apply(self, prompts, events, context):
            await asyncio.sleep(0)  # as whoever reads a store
            return [*prompts, "remember"], events

    model = ScriptedModel("b", "c", "a")
    agent = Agent("helper", "Be brief.", model, assembly=[Memo()], middlewares=[Vote()])
    assert (await agent.ask("Hi.")).content == "c"
    assert [call.prompts for call in model.received] == [("Be brief.", "remember")] * 3
    assert len(recorder.spans_named("assemble_context")) == 1


# The chain among them


async def test_a_chain_is_the_innermost_unless_one_is_given():
    seen = []

    class Sees(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            seen.append([event.content for event in input_kwargs["messages"] if isinstance(event, ModelRequest)])
            return await next_handler()

    chain = [SlidingWindowPolicy(1)]
    agent = Agent("helper", "", ScriptedModel("One.", "Two."), assembly=chain, middlewares=[Sees()])
    await agent.ask("1")
    await agent.ask("2")
    assert seen == [["1"], ["1", "2"]]
    seen.clear()
    agent = Agent("helper", "", ScriptedModel("One.", "Two."), middlewares=[AssemblerMiddleware(chain), Sees()])
    await agent.ask("1")
    await agent.ask("2")
    assert seen == [["1"], ["2"]]


async def test_a_chain_restores_the_prompt_whatever_happens():
    class After(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            with pytest.raises(ModelCallError):
                await next_handler()
            return await next_handler(messages=[ModelRequest(content="again")])

    class Memo:
        name = "memo"

        async def apply(self, prompts, events, context):
            return [*prompts, "remember"], events

    model = ScriptedModel(away(), "Back.")
    agent = Agent("helper", "Be brief.", model, middlewares=[After(), AssemblerMiddleware([Memo()])])
    await agent.ask("Hi.")
    assert [call.prompts for call in model.received] == [("Be brief.", "remember")] * 2


def test_a_chain_says_what_is_wrong_with_its_order():
    assert AssemblerMiddleware([SlidingWindowPolicy(3), AlertPolicy()]).validate_order()
    assert not AssemblerMiddleware([AlertPolicy(), SlidingWindowPolicy(3)]).validate_order()


# What goes wrong


@pytest.mark.parametrize("hook", ["on_reply", "on_reasoning", "on_acting"])
async def test_one_that_yields_no_result_is_named(hook):
    async def swallow(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            if not isinstance(event, ModelResponse | ToolResultEvent):
                yield event

    swallowing = type("Swallowing", (MiddlewareBase,), {hook: swallow})()
    model = ScriptedModel(CALL, "Three.", "Four.")
    agent = Agent("helper", "", model, [add], middlewares=[swallowing, Noting("A", [])])
    with pytest.raises(MiddlewareError, match=f"middleware Swallowing: {hook} gave no result: call next_handler"):
        await agent.ask("1 + 2?")
    agent.loop = Agent("helper", "", ScriptedModel(), [add]).loop
    assert await agent.ask("And now?") is not None


@pytest.mark.parametrize("hook", ["on_model_call", "on_check_permission"])
async def test_one_that_returns_nothing_is_named(hook):
    async def nothing(self, agent, input_kwargs, next_handler):
        await next_handler()

    forgetful = type("Forgetful", (MiddlewareBase,), {hook: nothing})()
    agent = Agent("helper", "", ScriptedModel(CALL, "Three."), [add], middlewares=[Noting("A", []), forgetful])
    with pytest.raises(MiddlewareError, match=f"middleware Forgetful: {hook} gave no result") as caught:
        await agent.ask("1 + 2?")
    assert (caught.value.middleware, caught.value.hook) == ("Forgetful", hook)


@pytest.mark.parametrize(
    ("gives", "problem"),
    [(None, "gave a NoneType, expected the prompt as a text"), (KeyError("secret"), "raised KeyError")],
)
async def test_one_that_makes_no_system_prompt_is_named_and_the_session_goes_on(gives, problem):
    class Loses(MiddlewareBase):
        async def on_system_prompt(self, agent, current_prompt):
            if agent.session.turns == 1:
                if gives is not None:
                    raise gives
                return None
            return current_prompt

    agent = Agent("helper", "Be brief.", ScriptedModel("Hi."), middlewares=[Noting("A", []), Loses()])
    with pytest.raises(MiddlewareError, match=f"middleware Loses: on_system_prompt {problem}") as caught:
        await agent.ask("Hi.")
    assert caught.value.__cause__ is gives
    assert "secret" not in str(caught.value)
    assert (await agent.ask("Again.")).content == "Hi."


@pytest.mark.parametrize("hook", ["on_reply", "on_reasoning", "on_acting"])
async def test_one_that_raises_in_the_middle_of_a_stream_is_named_and_the_session_goes_on(hook):
    async def breaks(self, agent, input_kwargs, next_handler):
        async for event in next_handler():
            yield event
            raise KeyError("secret")

    breaking = type("Breaking", (MiddlewareBase,), {hook: breaks})()
    model = ScriptedModel(CALL, "Three.", "Four.")
    agent = Agent("helper", "", model, [add], middlewares=[Noting("A", []), breaking, Noting("B", [])])
    with pytest.raises(MiddlewareError, match=f"middleware Breaking: {hook} raised KeyError") as caught:
        await agent.ask("1 + 2?")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "secret" not in str(caught.value)
    agent.loop = Agent("helper", "", ScriptedModel(), [add]).loop
    assert (await agent.ask("And now?")).content in {"Three.", "Four."}
    answered = [event for event in agent.session.history if isinstance(event, ToolResultEvent | ToolErrorEvent)]
    assert len(answered) <= 1


async def test_what_the_model_raises_comes_through_as_it_is():
    failure = away()
    agent = Agent("helper", "", ScriptedModel(failure), middlewares=[Noting("A", []), Noting("B", [])])
    with pytest.raises(ModelCallError) as caught:
        await agent.ask("Hi.")
    assert caught.value is failure


async def test_a_program_error_of_a_client_is_not_a_middlewares():
    agent = Agent("helper", "", ScriptedModel(ZeroDivisionError("x")), middlewares=[Noting("A", [])])
    with pytest.raises(ZeroDivisionError):
        await agent.ask("Hi.")


async def test_one_that_catches_everything_cannot_call_the_model_after_a_halt():
    class Stubborn(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            for _ in range(3):
                try:
                    return await next_handler()
                except Exception:  # what stubborn middleware does
                    continue
            return ModelResponse(content="I went on.")

    class Halts(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await agent.session.stream.send(HaltEvent(reason="enough", source="test"))
            return await next_handler()

    model = ScriptedModel("Never.")
    agent = Agent("helper", "", model, middlewares=[Stubborn(), Halts()])
    assert (await agent.ask("Hi.")).content == "HALTED: enough"
    assert not model.received


# Permission


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (PermissionDecision("deny", "not today"), "not run: not today"),
        (PermissionDecision("deny"), "not run: it is not allowed"),
        (PermissionDecision("allow", updated_input={"a": 5, "b": 5}), "10"),
    ],
)
async def test_a_check_decides_whether_and_with_what_a_tool_runs(decision, line):
    class Checks(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return decision

    agent = Agent("helper", "", ScriptedModel(CALL, "Done."), [add], middlewares=[Checks()])
    await agent.ask("1 + 2?")
    (result,) = [event for event in agent.session.history if isinstance(event, ToolResultEvent | ToolErrorEvent)]
    assert getattr(result, "content", None) or result.error == line
    assert getattr(result, "error", None) or result.content == line


async def test_a_check_may_have_a_person_asked():
    class Asks(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return PermissionDecision("ask")

    agent = Agent("helper", "", ScriptedModel(CALL), [add], middlewares=[Asks()])
    assert (await agent.ask("1 + 2?")).tool_calls[0].awaiting_approval


def test_a_decision_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="it is one of allow, deny, ask, external"):
        PermissionDecision("maybe")


# What a middleware is


def test_only_hooks_of_the_class_are_hooks():
    class Mixin:
        async def on_system_prompt(self, agent, current_prompt):
            return current_prompt

    class Mixed(Mixin, MiddlewareBase):
        pass

    one = Mixed()
    one.on_reply = lambda *_: None
    assert one.is_implemented("on_system_prompt")
    assert not one.is_implemented("on_reply")
    assert not one.is_implemented("on_nothing")
    assert not MiddlewareBase().is_implemented("on_reply")


async def test_its_key_is_its_class_and_it_brings_no_tools():
    assert await Noting("A", []).get_middleware_key() == "Noting"
    assert await Noting("A", []).list_tools() == []


async def test_tools_that_a_middleware_brings_are_used_only_where_somebody_asks_for_them():
    class Brings(MiddlewareBase):
        async def list_tools(self):
            return [add]

    brings = Brings()
    assert not Agent("helper", "", ScriptedModel(), middlewares=[brings]).tools
    agent = Agent("helper", "", ScriptedModel(CALL, "Three."), await brings.list_tools(), middlewares=[brings])
    assert (await agent.ask("1 + 2?")).content == "Three."


def test_a_misspelt_hook_is_found_when_the_agent_is_made():
    class Typo(MiddlewareBase):
        async def on_model_cal(self, agent, input_kwargs, next_handler):
            return await next_handler()

    with pytest.raises(ConfigurationError, match=r"Typo \(index 0\) has no known hook, but 'on_model_cal'"):
        Agent("helper", "", ScriptedModel(), middlewares=[Typo()])


async def test_halted_is_no_fault_of_a_middleware():
    agent = Agent("helper", "", ScriptedModel("Hi."), middlewares=[Noting("A", [])])
    await agent.session.stream.send(HaltEvent(reason="enough", source="test"))
    with pytest.raises(HaltedError):
        await agent.ask("Hi.")
