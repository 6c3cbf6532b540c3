"""A program that calls OpenAI's clients without a framework: sync and async, whole and streamed."""

from __future__ import annotations

import asyncio
import itertools
import warnings

from openai import AsyncOpenAI, OpenAI
from opentelemetry import trace
from scripted_provider import scripted_provider

warnings.simplefilter("ignore")
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
NUMBERS = itertools.count()
DETAILS = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}


def answered(path, body):
    return responded(body) if path.endswith("/responses") else completed(body)


def completed(body):
    text = f"an answer to {body['messages'][-1]['content']!r}, behind {len(body['messages']) - 1} others"
    shape = {"id": "r", "created": 1, "model": "gpt-4o"}
    if body.get("stream"):
        shape["object"] = "chat.completion.chunk"
        deltas = [({"role": "assistant", "content": text[:9]}, None), ({"content": text[9:]}, None), ({}, "stop")]
        return [
            {**shape, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} for delta, reason in deltas
        ]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {**shape, "object": "chat.completion", "choices": [choice], "usage": USAGE}


def responded(body):
    text = f"an answer to {body['input'][-1]['content']!r}, behind {len(body['input']) - 1} others"
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]}
    head = {"object": "response", "created_at": 1, "model": "gpt-4o", "parallel_tool_calls": True, "tools": []}
    head |= {"id": f"resp{next(NUMBERS)}", "tool_choice": "auto"}
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8, **DETAILS}
    whole = {**head, "status": "completed", "output": [item], "usage": usage}
    if not body.get("stream"):
        return whole
    begun, place = {**head, "status": "in_progress", "output": []}, {"output_index": 0, "item_id": "m1"}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", **place, "item": {**item, "status": "in_progress", "content": []}},
        {"type": "response.output_text.delta", **place, "content_index": 0, "delta": text, "logprobs": []},
        {"type": "response.output_item.done", **place, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def window(messages, text):
    messages += [{"role": "user", "content": text}]
    return {"model": "gpt-4o", "messages": messages[-3:]}


def keep(messages, text):
    messages += [{"role": "assistant", "content": text}]
    print(text)


def sync_conversation(client) -> None:
    messages = []
    for text in ("A table for six.", "At eight."):
        keep(messages, client.chat.completions.create(**window(messages, text)).choices[0].message.content)
    for text in ("Outside.", "For two hours."):
        chunks = client.chat.completions.create(**window(messages, text), stream=True)
        keep(messages, "".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    with client.chat.completions.stream(**window(messages, "With a cake.")) as stream:
        keep(messages, stream.get_final_completion().choices[0].message.content)
    raw = client.chat.completions.with_raw_response.create(**window(messages, "With candles."))
    keep(messages, raw.parse().choices[0].message.content)
    items = [{"role": "user", "content": "A taxi at ten."}]
    print(client.responses.create(model="gpt-4o", input=items).output_text)
    events = client.responses.create(model="gpt-4o", input=items, stream=True)
    print("".join(event.delta for event in events if event.type == "response.output_text.delta"))


async def async_conversation(client) -> None:
    messages = []
    for text in ("Two rooms.", "For a week."):
        answer = await client.chat.completions.create(**window(messages, text))
        keep(messages, answer.choices[0].message.content)
    for text in ("With a view.", "And breakfast."):
        chunks = await client.chat.completions.create(**window(messages, text), stream=True)
        keep(messages, "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]))
    items = [{"role": "user", "content": "A late checkout."}]
    print((await client.responses.create(model="gpt-4o", input=items)).output_text)
    events = await client.responses.create(model="gpt-4o", input=items, stream=True)
    print("".join([event.delta async for event in events if event.type == "response.output_text.delta"]))


if __name__ == "__main__":
    with scripted_provider(answered) as url:
        sync_conversation(OpenAI(api_key="none", base_url=url))
        with trace.get_tracer("program").start_as_current_span("with a parent"):
            asyncio.run(async_conversation(AsyncOpenAI(api_key="none", base_url=url)))
