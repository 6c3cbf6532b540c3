"""Returns an answer with a given text to a request for any API of the providers, as a whole or streamed."""

from __future__ import annotations

import base64
import json

from provider_bodies import OUTPUT, chat_body, chat_chunks, gemini_body, message_body, response_body
from provider_server import aws_events, json_content, sse_events


def any_answer(path, body, text):
    """Return the content type and the content of an answer.

    Args:
        path: The request's path, which names the API.
        body: The request's body.
        text: The answer's text.
    """
    if path.endswith("/chat/completions"):
        if not body.get("stream"):
            return json_content(chat_body({"role": "assistant", "content": text}))
        start, end = {"role": "assistant", "content": ""}, {"delta": {}, "finish_reason": "stop"}
        return sse_events(chat_chunks({"delta": start}, *({"delta": {"content": part}} for part in _parts(text)), end))
    if path.endswith("/responses"):
        whole = response_body([{**OUTPUT, "content": [{**OUTPUT["content"][0], "text": text}]}], id=f"resp {text}")
        return sse_events(_response_events(whole, text), named=True) if body.get("stream") else json_content(whole)
    if path.startswith("/v1/messages"):
        content = {"type": "text", "text": text}
        if not body.get("stream"):
            return json_content(message_body([content]))
        return sse_events(_message_events(text), named=True, done=False)
    if ":generateContent" in path:
        return json_content(gemini_body({"text": text}))
    if ":streamGenerateContent" in path:
        return sse_events([gemini_body({"text": part}) for part in _parts(text)], done=False)
    if path.endswith("/converse"):
        usage = {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}
        message = {"role": "assistant", "content": [{"text": text}]}
        return json_content({"output": {"message": message}, "stopReason": "end_turn", "usage": usage})
    if path.endswith("/converse-stream"):
        return aws_events(
            [
                {"messageStart": {"role": "assistant"}},
                *({"contentBlockDelta": {"delta": {"text": part}, "contentBlockIndex": 0}} for part in _parts(text)),
                {"messageStop": {"stopReason": "end_turn"}},
            ]
        )
    if path.endswith("/invoke"):
        return json_content(message_body([{"type": "text", "text": text}]))
    assert path.endswith("/invoke-with-response-stream"), path
    chunks = [base64.b64encode(json.dumps(event).encode()).decode() for event in _message_events(text)]
    return aws_events([{"chunk": {"bytes": chunk}} for chunk in chunks])


def _parts(text):
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def _message_events(text):
    return [
        {"type": "message_start", "message": message_body([], stop_reason=None)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}
            for part in _parts(text)
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]


def _response_events(whole, text):
    place = {"output_index": 0, "content_index": 0, "item_id": OUTPUT["id"]}
    item = {**OUTPUT, "content": [], "status": "in_progress"}
    part = {"type": "output_text", "text": "", "annotations": []}
    events = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": delta, "logprobs": []} for delta in _parts(text)),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]
