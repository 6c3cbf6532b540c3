"""Bodies of the answers of providers."""

from __future__ import annotations

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "bag"}'}}
CHAT_TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def chat_body(message, **more):
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {
        "id": "chat1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": USAGE,
        **more,
    }


def response_body(output, **more):
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }
    body = {"id": "resp1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": output}
    return {**body, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage, **more}


REASONING = {"type": "reasoning", "id": "rs1", "summary": [{"type": "summary_text", "text": "Look."}]}
FUNCTION_CALL = {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "find", "arguments": "{}"}
OUTPUT_TEXT = {"type": "output_text", "text": "At gate 14.", "annotations": []}
OUTPUT = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [OUTPUT_TEXT]}


def message_body(content, **more):
    usage = {"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1}
    body = {"id": "msg1", "type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}
    return {**body, "stop_reason": "end_turn", "stop_sequence": None, **more}


THINKING = {"type": "thinking", "thinking": "Look.", "signature": "sig"}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "bag"}}
ANTHROPIC_TOOL = {"name": "find", "input_schema": {"type": "object", "properties": {}}}


def gemini_body(*parts, **more):
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "responseId": "g1", "usageMetadata": {"promptTokenCount": 7}, **more}


GEMINI_CALL = {"functionCall": {"name": "find", "args": {"q": "bag"}}, "thoughtSignature": "c2ln"}


def chat_chunks(*deltas, **more):
    head = {"id": "chat1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**head, "choices": [{"index": 0, "finish_reason": None, **delta}]} for delta in deltas]
    return [*chunks, {**head, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}}]
