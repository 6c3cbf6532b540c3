"""What the server of a provider receives is the output of the recorded assembly, for each client and call form."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from any_answer import any_answer
from client_calls import assemblies
from client_forms import CALL_FORMS

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm and google-genai warn of their own code
SYSTEM = "You are the lost and found office of an airport."


def recorded(telemetry):
    """The prompts, messages and whether there are tools in the output of each assembly, as texts."""
    contents, outputs = {}, []
    for span in assemblies(telemetry):
        attributes, ledger = span.attributes, span.attributes["assembly.ledger.id"]
        arrived = zip(
            attributes.get("assembly.arrived.items", ()), attributes.get("assembly.arrived.contents", ()), strict=True
        )
        contents.update({(ledger, item): content for item, content in arrived})
        messages = [contents[ledger, item] for item in _items(attributes.get("assembly.kept.items", ()))]
        prompts = json.loads(attributes.get("gen_ai.system_instructions", "[]"))
        has_tools = "tool_schemas" in attributes["assembly.kind.names"]
        outputs.append(([prompt["content"] for prompt in prompts], messages, has_tools))
    return outputs


def _items(runs):
    for run in runs:
        first, _, last = run.partition("-")
        yield from map(str, range(int(first), int(last) + 1)) if last else [run]


def received(body):
    """The same of a request's body, whatever its form."""
    messages = body.get("messages") or body.get("contents") or body.get("input")
    system = body.get("instructions") or body.get("system") or body.get("systemInstruction") or []
    prompts = _texts(system)
    while messages and messages[0].get("role") == "system":
        prompts += _texts(messages[0]["content"])
        messages = messages[1:]
    tools = body.get("tools") or body.get("toolConfig")
    return prompts, ["\n".join(_texts(message)) for message in messages], bool(tools)


#: The keys of the texts, parts and calls in a message, in the order in which they are recorded.
_KEYS = ("text", "thinking", "content", "parts", "output", "tool_calls", "function", "toolUse", "toolResult")
_KEYS += ("functionCall", "functionResponse")
_ARGUMENTS = ("arguments", "input", "args")


def _texts(value):
    """The texts in a message, a part or a list of parts, with the names and arguments of tool calls."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    arguments = [value[key] for key in _ARGUMENTS if key in value]
    if arguments:
        return [value["name"], arguments[0] if isinstance(arguments[0], str) else json.dumps(arguments[0])]
    if "response" in value:
        return [value["name"], json.dumps(value["response"])]
    return [text for key in _KEYS for text in _texts(value.get(key) or [])]


class Office:
    """A program that asks a model, and changes its messages in many ways between its requests."""

    def __init__(self, call_form, clients, server, question):
        self.form, self.question, self.server = call_form.form, question, server
        self.messages = []
        self.system = SYSTEM
        self._call_form, self._clients = call_form, clients

    async def ask(self, text, **settings):
        self.messages.append(self.form.user(f"{self.question} {text}"))
        return await self.send(**settings)

    async def send(self, **settings):
        answer = await self._call_form.ask(self._clients, self.messages, self.system, **settings)
        self.messages.append(self.form.assistant(answer))

    async def use_tool(self, number):
        self.messages += self.form.answer("", [(f"call_a1b2c3d4{number}", "find", json.dumps({"bag": number}))])
        self.messages.append(self.form.result(f"call_a1b2c3d4{number}", "find", f"Bag {number} is at gate 14."))
        await self.send(tools=True)

    async def run(self):
        await self.ask("I lost it.", tools=True)
        for number in range(3):
            await self.use_tool(number)
            await self.ask(f"Thank you for number {number}.")
        replaced = json.loads(json.dumps(self.messages).replace("Bag 0 is at gate 14.", "[edited]"))
        for message, edited in zip(self.messages, replaced, strict=True):  # a tool result is edited in place
            message.update(edited)
        await self.ask("Is that all?")
        self.messages = json.loads(json.dumps(self.messages).replace("is at gate 14.", "[cleared]"))
        await self.ask("What did you find?")
        self.system += " It is Monday."
        await self.ask("Are you open?")
        self.server.fails(400)
        with suppress(Exception):
            await self.ask("Hello?")
        await self.send()
        self.messages = self.messages[-3:]
        await self.ask("And then?")
        summary = await self._call_form.ask(
            self._clients, [self.form.user(f"{self.question} Summarize: {json.dumps(self.messages)}")]
        )
        self.messages = [self.form.user(f"{self.question} Summary: {summary}"), *self.messages[-3:]]
        await self.ask("Go on.")
        self.messages[0].update(self.form.user("The program uses its dicts for something else."))
        self.messages[0].clear()


#: One call for each different way to the client's request function.
DIFFERENT = {"openai create", "openai streamed", "openai async", "responses create", "responses stream"}
DIFFERENT |= {"anthropic create", "anthropic stream", "anthropic async", "gemini create", "gemini async streamed"}
DIFFERENT |= {"bedrock converse", "bedrock converse_stream", "invoke invoke_model", "litellm completion"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.slow) for name in CALL_FORMS]
)
async def test_each_request_equals_the_output_of_one_assembly(every_client, server, telemetry, question, name):
    server.answers_all(
        lambda path, body: any_answer(
            path, body, f"Answer number {len(server.requests)}: ask at the desk near gate {len(server.requests)}."
        )
    )
    await Office(CALL_FORMS[name], every_client, server, question).run()
    assert len(server.requests) == 15
    assert recorded(telemetry) == [received(body) for body in server.requests]
    steps = [span.attributes for span in assemblies(telemetry)]
    assert [step["assembly.compacted.count"] for step in steps] == [0] * 7 + [1, 2] + [0] * 5 + [2]
    assert [index for index, step in enumerate(steps) if step["assembly.dropped.count"]] == [12]
    ledgers = [step["assembly.ledger.id"] for step in steps]
    assert {*ledgers} - {ledgers[13]} == {ledgers[0]}  # the request for the summary continues no other
