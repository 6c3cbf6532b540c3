"""A conversation that is rendered into the text of a prompt is compacted into it, and not dropped."""

from __future__ import annotations

import html
import json

import pytest

from otel_assembly.instrumentation import ClientRequest, Instrumentation, InvokingAgent, ModelCall

ASSEMBLY, STEP = "assemble_context", "apply_policy framework"


def user(text):
    return {"role": "user", "content": text}


TALK = [user('What is "rain"?'), user("It is <water>\nfrom 'clouds'."), user("Thanks, and what is snow?")]


def transcript(messages, form=str):
    return "\n\n".join(f"someone: {form(message['content'])}" for message in messages)


@pytest.fixture
def sends(assembly_telemetry):
    """What is recorded of a call that held some messages, and sends others."""
    instrumentation = Instrumentation("framework", assembly_telemetry.recorder)

    def send(held, sent=(), prompts=()):
        call = ModelCall(instrumentation, InvokingAgent("conversation", "selector", "selector"), messages=held)
        call.client_called(ClientRequest(sent, prompts, model="gpt-4o"))
        return assembly_telemetry.spans_named(ASSEMBLY)[-1], assembly_telemetry.spans_named(STEP)[-1]

    return send


@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda text: json.dumps(text)[1:-1],
        html.escape,
        lambda text: html.escape(text, quote=False),
        lambda text: repr(text)[1:-1],
    ],
    ids=["plain", "JSON", "XML", "XML without quotes", "Python"],
)
@pytest.mark.parametrize("place", ["prompt", "message"])
def test_messages_in_the_text_of_what_is_sent_are_compacted_into_it(sends, form, place):
    text = f"Who is next?\n{transcript(TALK, form)}\nOnly a name."
    span, step = sends(TALK, *(((), (text,)) if place == "prompt" else (([user(text)]), ())))
    assert step.compacted == ["0", "1", "2"]
    assert span.attributes["assembly.dropped.count"] == 0
    assert span.attributes["assembly.compacted.count"] == 3
    assert span.attributes["assembly.events.out"] == 1
    assert span.attributes["assembly.prompts.out"] == 0
    assert [arrived for arrived in span.attributes["assembly.arrived.sources"] if arrived] == ["0-2"]


def test_messages_that_the_text_leaves_out_are_dropped(sends):
    _, step = sends(TALK, prompts=[f"Who is next?\n{transcript(TALK[1:])}"])
    assert step.compacted == ["1", "2"]
    assert step.dropped_reasons == {"0": "policy"}


def test_the_order_of_the_conversation_is_that_of_the_text(sends):
    """Two messages that happen to occur in an instruction, the later one first, are not its transcript."""
    span, _ = sends([user("apples"), user("pears")], prompts=["Compare pears with apples."])
    assert span.attributes["assembly.dropped.count"] == 1


def test_a_short_text_inside_of_a_word_is_not_contained(sends):
    span, _ = sends([user("is")], prompts=["This book lists things."])
    assert span.attributes["assembly.dropped.count"] == 1


def test_a_prompt_that_was_there_before_contains_nothing(assembly_telemetry):
    instrumentation = Instrumentation("framework", assembly_telemetry.recorder)
    prompt = f"Example:\n{transcript(TALK)}"
    call = ModelCall(instrumentation, messages=TALK, prompts=[prompt])
    call.client_called(ClientRequest(TALK[2:], [prompt], model="gpt-4o"))
    span = assembly_telemetry.span(ASSEMBLY)
    assert span.attributes["assembly.prompts.out"] == 1
    assert span.attributes["assembly.dropped.count"] == 2


def test_the_search_is_bounded(sends):
    """Of a long conversation of which a text contains the newest messages, few absent ones are looked for."""
    looked = []

    class Counted(str):
        def rfind(self, *given):
            looked.append(given[0])
            return super().rfind(*given)

    talk = [user(f"message number {number} of many") for number in range(2_000)]
    span, _ = sends(talk, prompts=[Counted(transcript(talk[-10:]))])
    assert span.attributes["assembly.compacted.count"] == 10
    assert span.attributes["assembly.dropped.count"] == 1_990
    assert len(looked) < 10 + 16 * 6 + 1
