"""The call forms of the providers' clients, with one signature: each sends messages, a system prompt and tools."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Any

from identity_scenarios import FORMS
from provider_bodies import ANTHROPIC_TOOL, CHAT_TOOL

#: A tool that `parse` accepts.
STRICT_TOOL = {"type": "function", "function": {**CHAT_TOOL["function"], "strict": True}}
RESPONSES_TOOL = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}
GEMINI_TOOL = {"function_declarations": [{"name": "find", "description": "Find a bag."}]}
BEDROCK_TOOL = {"toolSpec": {"name": "find", "inputSchema": {"json": {"type": "object"}}}}


@dataclass
class CallForm:
    """One way to call a model.

    Attributes:
        form: Makes the messages in the client's form.
        call: Takes the clients, and the arguments of a request; returns the answer's text, or an awaitable of it.
    """

    form: Any
    call: Any

    async def ask(self, clients, messages, system="", tools=False):
        """Return the text of the answer."""
        text = self.call(clients, messages, system, tools)
        return await text if inspect.isawaitable(text) else text


def _chat(messages, system, tools):
    prompts = [{"role": "system", "content": system}] if system else []
    return {"model": "m", "messages": [*prompts, *messages], **({"tools": [STRICT_TOOL]} if tools else {})}


def _response(messages, system, tools):
    return {
        "model": "m",
        "input": messages,
        **({"instructions": system} if system else {}),
        **({"tools": [RESPONSES_TOOL]} if tools else {}),
    }


def _message(messages, system, tools):
    return {
        "model": "m",
        "max_tokens": 99,
        "messages": messages,
        **({"system": system} if system else {}),
        **({"tools": [ANTHROPIC_TOOL]} if tools else {}),
    }


def _gemini(messages, system, tools):
    config = {**({"system_instruction": system} if system else {}), **({"tools": [GEMINI_TOOL]} if tools else {})}
    return {"model": "gemini-x", "contents": messages, "config": config}


def _converse(messages, system, tools):
    return {
        "modelId": "amazon.nova-lite-v1:0",
        "messages": messages,
        **({"system": [{"text": system}]} if system else {}),
        **({"toolConfig": {"tools": [BEDROCK_TOOL]}} if tools else {}),
    }


def _invoke(messages, system, tools):
    body = {key: value for key, value in _message(messages, system, tools).items() if key != "model"}
    return {"modelId": "anthropic.claude-x", "body": json.dumps({"anthropic_version": "bedrock-2023-05-31", **body})}


def _chat_text(answer):
    return answer.choices[0].message.content


def _delta(chunk):
    return (chunk.choices and chunk.choices[0].delta.content) or ""


def _output_delta(event):
    return event.delta if event.type == "response.output_text.delta" else ""


def _block_delta(event):
    return event.delta.text if event.type == "content_block_delta" else ""


def _converse_delta(event):
    return event.get("contentBlockDelta", {}).get("delta", {}).get("text", "")


def _invoke_delta(event):
    return json.loads(event["chunk"]["bytes"]).get("delta", {}).get("text", "")


def _joined(stream, text_of):
    return "".join(text_of(chunk) or "" for chunk in stream)


async def _joined_async(stream, text_of):
    return "".join([text_of(chunk) or "" async for chunk in stream])


def _managed(manager):
    with manager as stream:
        return "".join(stream.text_stream)


def _events(manager):
    with manager as stream:
        return "".join(event.delta for event in stream if event.type == "content.delta")


def _response_events(manager):
    with manager as stream:
        return _joined(stream, _output_delta)


async def _async_chat(clients, *request, **settings):
    return await clients.openai_async.chat.completions.create(**_chat(*request), **settings)


async def _async_chat_text(clients, *request):
    return _chat_text(await _async_chat(clients, *request))


async def _async_chat_stream(clients, *request):
    return await _joined_async(await _async_chat(clients, *request, stream=True), _delta)


async def _async_response(clients, *request):
    return (await clients.openai_async.responses.create(**_response(*request))).output_text


async def _async_response_stream(clients, *request):
    stream = await clients.openai_async.responses.create(**_response(*request), stream=True)
    return await _joined_async(stream, _output_delta)


async def _async_message(clients, *request):
    return (await clients.anthropic_async.messages.create(**_message(*request))).content[0].text


async def _async_message_stream(clients, *request):
    async with clients.anthropic_async.messages.stream(**_message(*request)) as stream:
        return "".join([text async for text in stream.text_stream])


async def _async_gemini(clients, *request):
    return (await clients.gemini.aio.models.generate_content(**_gemini(*request))).text


async def _async_gemini_stream(clients, *request):
    stream = await clients.gemini.aio.models.generate_content_stream(**_gemini(*request))
    return await _joined_async(stream, lambda chunk: chunk.text)


async def _async_litellm(clients, *request):
    return _chat_text(await clients.litellm.acompletion(**_chat(*request), **clients.litellm_options))


def _litellm_stream(clients, *request):
    return _joined(clients.litellm.completion(**_chat(*request), **clients.litellm_options, stream=True), _delta)


def _completions(clients):
    return clients.openai.chat.completions


def _responses(clients):
    return clients.openai.responses


def _messages(clients):
    return clients.anthropic.messages


CALL_FORMS = {
    f"{form} {name}": CallForm(FORMS[{"litellm": "openai", "invoke": "anthropic"}.get(form, form)], call)
    for form, calls in {
        "openai": {
            "create": lambda clients, *r: _chat_text(_completions(clients).create(**_chat(*r))),
            "parse": lambda clients, *r: _chat_text(_completions(clients).parse(**_chat(*r))),
            "raw": lambda clients, *r: _chat_text(_completions(clients).with_raw_response.create(**_chat(*r)).parse()),
            "streamed": lambda clients, *r: _joined(_completions(clients).create(**_chat(*r), stream=True), _delta),
            "stream": lambda clients, *r: _events(_completions(clients).stream(**_chat(*r))),
            "async": _async_chat_text,
            "async streamed": _async_chat_stream,
        },
        "responses": {
            "create": lambda clients, *r: _responses(clients).create(**_response(*r)).output_text,
            "parse": lambda clients, *r: _responses(clients).parse(**_response(*r)).output_text,
            "raw": lambda clients, *r: (
                _responses(clients).with_raw_response.create(**_response(*r)).parse().output_text
            ),
            "streamed": lambda clients, *r: _joined(
                _responses(clients).create(**_response(*r), stream=True), _output_delta
            ),
            "stream": lambda clients, *r: _response_events(_responses(clients).stream(**_response(*r))),
            "async": _async_response,
            "async streamed": _async_response_stream,
        },
        "anthropic": {
            "create": lambda clients, *r: _messages(clients).create(**_message(*r)).content[0].text,
            "beta": lambda clients, *r: clients.anthropic.beta.messages.create(**_message(*r)).content[0].text,
            "raw": lambda clients, *r: (
                _messages(clients).with_raw_response.create(**_message(*r)).parse().content[0].text
            ),
            "streamed": lambda clients, *r: _joined(
                _messages(clients).create(**_message(*r), stream=True), _block_delta
            ),
            "stream": lambda clients, *r: _managed(_messages(clients).stream(**_message(*r))),
            "async": _async_message,
            "async stream": _async_message_stream,
        },
        "gemini": {
            "create": lambda clients, *r: clients.gemini.models.generate_content(**_gemini(*r)).text,
            "streamed": lambda clients, *r: _joined(
                clients.gemini.models.generate_content_stream(**_gemini(*r)), lambda chunk: chunk.text
            ),
            "async": _async_gemini,
            "async streamed": _async_gemini_stream,
        },
        "bedrock": {
            "converse": lambda clients, *r: clients.bedrock.converse(**_converse(*r))["output"]["message"]["content"][
                0
            ]["text"],
            "converse_stream": lambda clients, *r: _joined(
                clients.bedrock.converse_stream(**_converse(*r))["stream"], _converse_delta
            ),
        },
        "invoke": {
            "invoke_model": lambda clients, *r: json.loads(clients.bedrock.invoke_model(**_invoke(*r))["body"].read())[
                "content"
            ][0]["text"],
            "with_response_stream": lambda clients, *r: _joined(
                clients.bedrock.invoke_model_with_response_stream(**_invoke(*r))["body"], _invoke_delta
            ),
        },
        "litellm": {
            "completion": lambda clients, *r: _chat_text(
                clients.litellm.completion(**_chat(*r), **clients.litellm_options)
            ),
            "streamed": _litellm_stream,
            "async": _async_litellm,
        },
    }.items()
    for name, call in calls.items()
}
