"""An HTTP server that answers as a provider has been seen to: each answer once, in order; what it was sent is kept."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field


@dataclass
class Answer:
    """What is answered to one request."""

    status: int = 200
    body: object = None
    #: Texts of a stream, written one after the other.
    pieces: list = field(default_factory=list)
    #: Whether the connection is cut where the answer should go on.
    cut: bool = False
    headers: dict = field(default_factory=dict)


class Provider:
    """Listens on a free port of the loopback until the block ends."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            async with asyncio.timeout(500):
                await self._answer(reader, writer)
        except (asyncio.CancelledError, ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        headers = {name.lower(): value for name, value in headers.items()}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append({"path": head.split(" ")[1], "headers": headers, **json.loads(body)})
        answer = self.answers.pop(0)
        streams = bool(answer.pieces)
        kind = "text/event-stream" if streams else "application/json"
        told = {"content-type": kind, "connection": "close", **answer.headers}
        whole = b"" if streams else json.dumps(answer.body).encode()
        told |= {"transfer-encoding": "chunked"} if streams else {"content-length": str(len(whole))}
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in told.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + whole)
        for piece in answer.pieces:
            data = piece.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        if answer.cut:
            await asyncio.sleep(0.05)
            writer.transport.abort()
            return
        if streams:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


def refusal(status, body, **headers):
    """An answer that is an error."""
    return Answer(status, body, headers=headers)


# OpenAI's Chat Completions, as recorded from its API, Azure's, vLLM and llama.cpp

USAGE = {
    "prompt_tokens": 1117,
    "completion_tokens": 46,
    "total_tokens": 1163,
    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def completion(content="At gate 14.", calls=None, usage=USAGE, finish=None):
    message = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
    if calls is not None:
        message["tool_calls"] = calls
    finish = finish or ("stop" if calls is None else "tool_calls")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return Answer(
        body={
            "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
            "object": "chat.completion",
            "created": 1741570283,
            "model": "gpt-4o-2024-08-06",
            "choices": [choice],
            "usage": usage,
            "service_tier": "default",
        }
    )


def function_call(call_id, arguments, name="search"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion_pieces(*deltas, finish="stop", usage=USAGE, done=True):
    """The lines of a stream; a delta is a text or what stands in ``delta``."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1741570283, "model": "gpt-4o-2024-08-06"}

    def line(choices, **more):
        return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

    def choice(delta, finish_reason=None):
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]

    lines = [line(choice({"role": "assistant", "content": "", "refusal": None}), usage=None)]
    lines += [line(choice({"content": delta} if isinstance(delta, str) else delta), usage=None) for delta in deltas]
    if finish is not None:
        lines.append(line(choice({}, finish), usage=None))
    if usage is not None:
        lines.append(line([], usage=usage))
    return [*lines, *(["data: [DONE]\n\n"] if done else [])]


def _said(message, **more):
    return {"error": {"message": message, "type": "invalid_request_error", "param": "messages", **more}}


#: Each with the window and the tokens that it says.
TOO_LONG_FOR_OPENAI = {
    "openai": (
        refusal(
            400,
            _said(
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 10383 tokens. "
                "Please reduce the length of the messages.",
                code="context_length_exceeded",
            ),
        ),
        8192,
        10383,
    ),
    "openai, with tools": (
        refusal(
            400,
            _said(
                "This model's maximum context length is 16385 tokens. However, you requested 17000 tokens (12904 in "
                "the messages, 4096 in the completion). Please reduce the length of the messages or completion.",
                code="context_length_exceeded",
            ),
        ),
        16385,
        12904,
    ),
    "openai, newer": (
        refusal(
            400,
            _said(
                "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens. "
                "Please reduce the length of the messages.",
                code="context_length_exceeded",
            ),
        ),
        272000,
        509178,
    ),
    "gemini": (
        refusal(
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "The input token count (1200293) exceeds the maximum number of tokens allowed "
                        "(1048576).",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
        ),
        1048576,
        1200293,
    ),
    "vllm": (
        refusal(
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens "
                "(112946 in the messages, 10000 in the completion). Please reduce the length of the messages or "
                "completion.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
        ),
        16384,
        112946,
    ),
    "llama.cpp": (
        refusal(
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size, try increasing it",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 9001,
                    "n_ctx": 4096,
                }
            },
        ),
        4096,
        9001,
    ),
    "without numbers": (refusal(400, _said("too long", code="context_length_exceeded")), None, None),
}
RATE_LIMIT = refusal(
    429,
    {
        "error": {
            "message": "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000.",
            "type": "tokens",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    },
)
NO_QUOTA = refusal(
    429,
    {
        "error": {
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        }
    },
)
SERVER_ERROR = refusal(
    500,
    {
        "error": {
            "message": "The server had an error while processing your request. Sorry about that!",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    },
)
WRONG_KEY = refusal(
    401,
    {
        "error": {
            "message": "Incorrect API key provided: sk-x.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
    },
)


# Anthropic's Messages

ANTHROPIC_USAGE = {
    "input_tokens": 21,
    "cache_creation_input_tokens": 188,
    "cache_read_input_tokens": 2048,
    "output_tokens": 15,
    "service_tier": "standard",
}


def message(*content, usage=ANTHROPIC_USAGE, stop="end_turn"):
    return Answer(
        body={
            "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5",
            "content": list(content),
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }
    )


def message_pieces(*blocks, usage=ANTHROPIC_USAGE, stopped=True, stop="end_turn"):
    """The events of a stream; a block is its beginning and its deltas."""

    def line(kind, **more):
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n"

    head = message().body | {"content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    lines = [line("message_start", message=head), line("ping")]
    for index, (block, deltas) in enumerate(blocks):
        lines.append(line("content_block_start", index=index, content_block=block))
        lines += [line("content_block_delta", index=index, delta=delta) for delta in deltas]
        lines.append(line("content_block_stop", index=index))
    if stopped:
        ended = {"stop_reason": stop, "stop_sequence": None}
        lines.append(line("message_delta", delta=ended, usage={"output_tokens": usage["output_tokens"]}))
        lines.append(line("message_stop"))
    return lines


def text_block(*texts):
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in texts]


def tool_block(call_id, *partial, name="search"):
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block, [{"type": "input_json_delta", "partial_json": chunk} for chunk in partial]


def anthropic_error(kind, said):
    return {"type": "error", "error": {"type": kind, "message": said}, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}


TOO_LONG_FOR_ANTHROPIC = {
    "the prompt": (
        refusal(400, anthropic_error("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum")),
        200000,
        208310,
    ),
    "with the answer": (
        refusal(
            400,
            anthropic_error(
                "invalid_request_error",
                "input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000, decrease input length or "
                "`max_tokens` and try again",
            ),
        ),
        200000,
        197202,
    ),
    "the request": (
        refusal(413, anthropic_error("request_too_large", "Request exceeds the maximum size")),
        None,
        None,
    ),
}
