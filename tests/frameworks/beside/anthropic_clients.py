"""A program that calls Anthropic's clients without a framework: sync and async, whole and streamed."""

from __future__ import annotations

import asyncio
import warnings

from anthropic import Anthropic, AsyncAnthropic
from opentelemetry import trace
from scripted_provider import scripted_provider

warnings.simplefilter("ignore")


def answered(path, body):
    text = f"an answer to {body['messages'][-1]['content']!r}, behind {len(body['messages']) - 1} others"
    whole = {
        "id": "msg1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 3},
    }
    if not body.get("stream"):
        return whole
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


def window(messages, text):
    messages += [{"role": "user", "content": text}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 99, "messages": messages[-3:]}


def keep(messages, text):
    messages += [{"role": "assistant", "content": text}]
    print(text)


def text_of(event):
    return event.delta.text if event.type == "content_block_delta" else ""


def sync_conversation(client) -> None:
    messages = []
    for text in ("A table for six.", "At eight."):
        keep(messages, client.messages.create(**window(messages, text)).content[0].text)
    for text in ("Outside.", "For two hours."):
        keep(messages, "".join(map(text_of, client.messages.create(**window(messages, text), stream=True))))
    with client.messages.stream(**window(messages, "With a cake.")) as stream:
        keep(messages, stream.get_final_text())
    raw = client.messages.with_raw_response.create(**window(messages, "With candles."))
    keep(messages, raw.parse().content[0].text)


async def async_conversation(client) -> None:
    messages = []
    for text in ("Two rooms.", "For a week."):
        keep(messages, (await client.messages.create(**window(messages, text))).content[0].text)
    for text in ("With a view.", "And breakfast."):
        stream = await client.messages.create(**window(messages, text), stream=True)
        keep(messages, "".join([text_of(event) async for event in stream]))
    async with client.messages.stream(**window(messages, "And a gym.")) as stream:
        keep(messages, await stream.get_final_text())


if __name__ == "__main__":
    with scripted_provider(answered) as url:
        sync_conversation(Anthropic(api_key="none", base_url=url))
        with trace.get_tracer("program").start_as_current_span("with a parent"):
            asyncio.run(async_conversation(AsyncAnthropic(api_key="none", base_url=url)))
