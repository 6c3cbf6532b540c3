"""Sessions of frameworks, exports of observability tools, evaluation logs and training sets, one small file each."""

from __future__ import annotations

import json
import zipfile

import pytest
from read_logs import prompts, read, read_one

from otel_assembly import describe
from otel_assembly.transcripts import installed_formats, read_transcripts

ASK = {"role": "user", "content": "Which ferry?"}
SYSTEM = {"role": "system", "content": "Be brief."}
NINE = {"role": "assistant", "content": "Nine."}


def called(content=None, arguments='{"q": "x"}', call_id="c", name="find"):
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def answered(content="at nine", call_id="c"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


WHOLE = [SYSTEM, ASK, called(), answered(), NINE]


def lc(name, **kwargs):
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": kwargs}


LC_CALLS = [{"name": "find", "args": {"q": "x"}, "id": "c", "type": "tool_call"}]


def block(text):
    return {"block_type": "text", "text": text}


def ai(kind, **parts):
    return {"kind": kind, "parts": [{"part_kind": name.replace("_", "-"), **part} for name, part in parts.items()]}


#: For each format: the file's name, its records, and the messages that are read.
FILES = {
    "LangChain messages": (
        "a.json",
        [
            [
                lc("SystemMessage", content="Be brief."),
                lc("HumanMessage", content="Which ferry?"),
                lc("AIMessageChunk", content="", tool_calls=LC_CALLS),
                lc("ToolMessage", content="at nine", tool_call_id="c"),
                lc("AIMessage", content="Nine."),
            ]
        ],
        [SYSTEM, ASK, called(""), answered(), NINE],
    ),
    "LangChain messages as dicts": (
        "a.json",
        [
            [
                {"type": "system", "data": {"content": "Be brief."}},
                {"type": "human", "data": {"content": "Which ferry?"}},
                {"type": "ai", "data": {"content": "", "tool_calls": LC_CALLS}},
                {"type": "tool", "data": {"content": "at nine", "tool_call_id": "c"}},
                {"type": "ai", "data": {"content": "Nine."}},
            ]
        ],
        [SYSTEM, ASK, called(""), answered(), NINE],
    ),
    "LangGraph state": (
        "a.json",
        [
            {
                "values": {
                    "messages": [
                        {"type": "human", "content": "Which ferry?", "name": None},
                        {"type": "ai", "content": "", "tool_calls": LC_CALLS},
                        {"type": "tool", "content": "at nine", "tool_call_id": "c"},
                        {"type": "ai", "content": "Nine."},
                    ]
                },
                "config": {"configurable": {"thread_id": "t-1"}},
            }
        ],
        [ASK, called(""), answered(), NINE],
    ),
    "Pydantic AI": (
        "a.json",
        [
            [
                ai("request", system_prompt={"content": "Be brief."}, user_prompt={"content": "Which ferry?"}),
                ai(
                    "response",
                    thinking={"content": "hm"},
                    tool_call={"tool_name": "find", "args": '{"q": "x"}', "tool_call_id": "c"},
                ),
                ai("request", tool_return={"tool_name": "find", "content": "at nine", "tool_call_id": "c"}),
                ai("response", text={"content": "Nine."}),
            ]
        ],
        WHOLE,
    ),
    "Strands session": (
        "a.jsonl",
        [
            {"message": {"role": "assistant", "content": [{"text": "Nine."}]}, "message_id": 1},
            {"message": {"role": "user", "content": [{"text": "Which ferry?"}]}, "message_id": 0},
        ],
        [
            {"role": "user", "content": [{"text": "Which ferry?"}]},
            {"role": "assistant", "content": [{"text": "Nine."}]},
        ],
    ),
    "LlamaIndex chat store": (
        "a.json",
        [
            {
                "store": {
                    "ann": [
                        {"role": "user", "blocks": [block("Which ferry?")]},
                        {
                            "role": "assistant",
                            "blocks": [],
                            "additional_kwargs": {"tool_calls": called()["tool_calls"]},
                        },
                        {"role": "tool", "blocks": [block("at nine")], "additional_kwargs": {"tool_call_id": "c"}},
                        {"role": "assistant", "content": "Nine."},
                    ]
                },
                "class_name": "SimpleChatStore",
            }
        ],
        [ASK, called(""), answered(), NINE],
    ),
    "AutoGen TaskResult": (
        "a.json",
        [
            {
                "messages": [
                    {"source": "user", "content": "Which ferry?", "type": "TextMessage"},
                    {
                        "source": "a",
                        "content": [{"id": "c", "name": "find", "arguments": '{"q": "x"}'}],
                        "type": "ToolCallRequestEvent",
                    },
                    {
                        "source": "a",
                        "content": [{"call_id": "c", "content": "at nine"}],
                        "type": "ToolCallExecutionEvent",
                    },
                    {"source": "a", "content": "at nine", "type": "ToolCallSummaryMessage"},
                    {"source": "a", "content": "Nine.", "type": "TextMessage"},
                ],
                "stop_reason": None,
            }
        ],
        [ASK, called(), answered(), NINE],
    ),
    "AutoGen chat_messages": ("a.json", [{"proxy": [ASK, NINE]}], [ASK, NINE]),
    "inspect-ai log": (
        "a.json",
        [
            {
                "eval": {"task": "t"},
                "samples": [
                    {
                        "id": "s",
                        "epoch": 1,
                        "messages": [
                            SYSTEM,
                            ASK,
                            {
                                "role": "assistant",
                                "content": "",
                                "tool_calls": [{"id": "c", "function": "find", "arguments": {"q": "x"}}],
                            },
                            answered() | {"function": "find"},
                            NINE | {"model": "m"},
                        ],
                    }
                ],
            }
        ],
        [SYSTEM, ASK, called(""), answered(), NINE],
    ),
    "tau2-bench": (
        "a.json",
        [
            {
                "simulations": [
                    {
                        "task_id": "3",
                        "trial": 0,
                        "messages": [
                            ASK,
                            {
                                "role": "assistant",
                                "content": None,
                                "tool_calls": [{"id": "c", "name": "find", "arguments": {"q": "x"}}],
                            },
                            {"role": "tool", "id": "c", "content": "at nine", "requestor": "assistant"},
                            {
                                "role": "user",
                                "content": None,
                                "tool_calls": [{"id": "u", "name": "look", "arguments": {}}],
                            },
                            {"role": "tool", "id": "u", "content": "rain", "requestor": "user"},
                            NINE,
                        ],
                    }
                ]
            }
        ],
        [ASK, called(), answered(), NINE],
    ),
    "ShareGPT": (
        "a.json",
        [
            [
                {
                    "system": "Be brief.",
                    "conversations": [
                        {"from": "human", "value": "Which ferry?"},
                        {"from": "function_call", "value": '{"name": "find", "arguments": {"q": "x"}}'},
                        {"from": "observation", "value": "at nine"},
                        {"from": "gpt", "value": "Nine."},
                    ],
                }
            ]
        ],
        [SYSTEM, ASK, called(call_id="call_1"), answered(call_id="call_1"), NINE],
    ),
    "Alpaca": ("a.jsonl", [{"instruction": "Which ferry?", "input": "", "output": "Nine."}], [ASK, NINE]),
    "LMSYS-Chat": ("a.jsonl", [{"conversation_id": "l", "model": "m", "conversation": [ASK, NINE]}], [ASK, NINE]),
    "OpenAI preference pairs": (
        "a.jsonl",
        [{"input": {"messages": [ASK]}, "preferred_output": [NINE], "non_preferred_output": [ASK]}],
        [ASK, NINE],
    ),
    "ToolBench": (
        "a.json",
        [{"query": "q", "available_tools": [{"name": "find"}], "train_messages": [[ASK, NINE]]}],
        [ASK, NINE],
    ),
    "OpenAI stored messages": (
        "a.json",
        [
            {
                "object": "list",
                "data": [
                    {
                        "object": "chat.completion.message",
                        "id": "x",
                        "role": "user",
                        "content": "Which ferry?",
                        "name": None,
                    }
                ],
            }
        ],
        [ASK],
    ),
    "OpenHands completion": (
        "a.json",
        [
            {
                "messages": [SYSTEM, ASK],
                "response": {"choices": [{"message": NINE}]},
                "kwargs": {"tools": [{"name": "find"}]},
            }
        ],
        [SYSTEM, ASK, NINE],
    ),
}


@pytest.mark.parametrize("name", list(FILES))
def test_each_format_is_read_as_chat_messages(write, name):
    file, records, expected = FILES[name]
    found = read_one(write(file, *records))
    assert found.format == name.removesuffix(" as dicts")
    assert found.messages == expected
    assert not found.skipped


@pytest.mark.parametrize(
    ("name", "turns"),
    [("LangGraph state", 2), ("OpenAI stored messages", 1), ("OpenHands completion", 1), ("ShareGPT", 2)],
)
def test_the_turns_of_formats_are_assembled(otel_assembly, write, name, turns):
    file, records, _ = FILES[name]
    ran = otel_assembly("replay", write(file, *records), "--json")
    assert (ran.status, ran.json["turns"], ran.json["orphans"]) == (0, turns, 0)


def test_a_session_of_adk_with_a_compaction(write):
    def event(name, time, role, *parts, **more):
        return {"id": name, "timestamp": time, "author": role, "content": {"role": role, "parts": list(parts)}, **more}

    compaction = {
        "startTimestamp": 1,
        "endTimestamp": 4,
        "compactedContent": {"role": "model", "parts": [{"text": "At nine."}]},
    }
    events = [
        event("e1", 1, "user", {"text": "Which ferry?"}),
        event("e2", 2, "model", {"functionCall": {"id": "f", "name": "find", "args": {}}}),
        event("e3", 3, "user", {"functionResponse": {"id": "f", "name": "find", "response": {"result": "at nine"}}}),
        event("e4", 4, "model", {"text": "Nine."}),
        {"id": "e5", "timestamp": 5, "author": "user", "actions": {"compaction": compaction}},
        event("e6", 6, "user", {"text": "Sure?"}),
        event("e7", 7, "model", {"text": "Ye"}, partial=True),
        event("e8", 8, "model", {"text": "Yes."}),
    ]
    found = read_one(write("a.json", {"id": "s", "appName": "a", "userId": "u", "events": events}))
    calls = prompts(found)
    assert (found.format, found.id, list(calls)) == ("Google ADK session", "s", ["e2", "e4", "e8"])
    assert calls["e8"] == [
        {"role": "user", "parts": [{"text": "At nine."}]},
        {"role": "user", "parts": [{"text": "Sure?"}]},
    ]
    assert len(found.calls[-1].reduction.before) == 4


def test_roo_code_condenses_and_truncates(otel_assembly, write):
    def message(role, text, **more):
        return {"role": role, "content": [{"type": "text", "text": text}], "ts": 1, **more}

    path = write(
        "a.json",
        [
            message("user", "Which ferry?", condenseParent="s"),
            message("assistant", "I look.", condenseParent="s"),
            message("user", "Summary: a ferry.", isSummary=True, condenseId="s"),
            message("user", "And?"),
            message("assistant", "Nine.", truncationParent="t"),
            message("user", "Hidden: 1 message.", isTruncationMarker=True, truncationId="t"),
            message("user", "More?"),
            message("assistant", "No."),
        ],
    )
    found = read_one(path)
    texts = [[describe(message).texts[0] for message in call.messages] for call in found.calls]
    assert found.format == "Cline and Roo Code"
    assert texts == [
        ["Which ferry?"],
        ["Summary: a ferry.", "And?"],
        ["Summary: a ferry.", "And?", "Hidden: 1 message.", "More?"],
    ]
    ran = otel_assembly("replay", path)
    assert "condense: 2 items" in ran.out
    assert "truncate: 1 item" in ran.out


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_samples_of_an_eval_file(tmp_path, method):
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/1_epoch_1.json", json.dumps({"id": 1, "epoch": 1, "messages": [ASK, NINE]}))
        archive.writestr("samples/2_epoch_1.json", "{bad")
    good, bad = read_transcripts([path])
    assert (good.id, good.format, good.messages) == ("1-1", "inspect-ai sample", [ASK, NINE])
    assert bad.problem.startswith("'samples/2_epoch_1.json': not JSON")
    path.write_bytes(path.read_bytes()[:60])
    (error,) = read_transcripts([path])
    assert error.problem == "is a zip file that cannot be read (BadZipFile): unpack it first"


# Requests


@pytest.mark.parametrize(
    "request_",
    [
        {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [ASK]}},
        {"custom_id": "r", "url": "/v1/responses", "body": {"model": "m", "instructions": "Be brief.", "input": "Hi"}},
        {"custom_id": "r", "params": {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [ASK]}},
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "config": {"systemInstruction": "Be brief."}},
        {
            "modelId": "m",
            "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
            "system": [{"text": "Be brief."}],
        },
        {"model": "m", "messages": [SYSTEM, ASK, called(), answered()], "stream": False},
    ],
    ids=["openai batch", "responses batch", "anthropic batch", "gemini", "bedrock", "open request"],
)
def test_a_request_is_a_prompt_without_an_answer(otel_assembly, write, request_):
    ran = otel_assembly("replay", write("r.jsonl", request_), "--json")
    open_turns = 2 if "stream" in request_ else 1
    assert (ran.status, ran.json["turns"]) == (0, open_turns)
    assert ran.json["max_tokens_out"] > 0


def test_nothing_to_assemble_is_status_1(otel_assembly, write):
    ran = otel_assembly("replay", write("r.jsonl", {"id": "r", "messages": [ASK]}), "--json")
    assert (ran.status, ran.json["turns"]) == (1, 0)
    assert "no assistant turn" in ran.err


@pytest.mark.parametrize(
    ("plain", "more"),
    [
        (
            {"modelId": "m", "messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
            {"toolConfig": {"tools": [{"toolSpec": {"name": "find", "inputSchema": {"json": {"type": "object"}}}}]}},
        ),
        (
            {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
            {"config": {"system_instruction": "Be brief.", "tools": [{"functionDeclarations": [{"name": "find"}]}]}},
        ),
    ],
    ids=["bedrock", "gemini"],
)
def test_tools_and_system_texts_of_configurations_are_counted(otel_assembly, write, plain, more):
    counts = [
        otel_assembly("replay", write("r.jsonl", each), "--json").json["tokens_in"] for each in (plain, plain | more)
    ]
    assert counts[0] + 5 < counts[1]
    assert read_one(write("r.jsonl", plain | more)).tools


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ({"input": {"q": "x"}}, {"output": {"type": "text", "value": "at nine"}}),
        ({"input": {"q": "x"}}, {"output": {"type": "json", "value": {"time": 9}}}),
        ({"args": {"q": "x"}}, {"result": "at nine"}),
    ],
    ids=["5", "5 json", "4"],
)
def test_tool_parts_of_vercel_are_pairs(otel_assembly, write, call, result):
    ids = {"toolCallId": "c", "toolName": "find"}
    path = write(
        "a.json",
        [
            ASK,
            {"role": "assistant", "content": [{"type": "tool-call", **ids, **call}]},
            {"role": "tool", "content": [{"type": "tool-result", **ids, **result}]},
            NINE,
        ],
    )
    _, asked, found, _ = read_one(path).messages
    assert (list(describe(asked).opens), list(describe(found).closes)) == (["c"], ["c"])
    assert otel_assembly("replay", path, "--json").json["orphans"] == 0


# Exports of observability tools


def attribute(key, value):
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def otlp(*spans):
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "i"}, "spans": list(spans)}]}]}


def span(number, attributes, events=()):
    return {
        "traceId": "a" * 32,
        "spanId": f"{number:016x}",
        "name": "chat m",
        "startTimeUnixNano": str(number),
        "attributes": [attribute(*item) for item in attributes.items()],
        "events": [
            {"name": name, "attributes": [attribute(*item) for item in fields.items()]} for name, fields in events
        ],
    }


def text_parts(role, text):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


FLAT = {
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.content": "Which ferry?",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "find",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"q": "x"}',
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.content": "at nine",
    "llm.input_messages.3.message.tool_call_id": "c",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Nine.",
}
NESTED = {
    "llm": {
        "input_messages": [
            {"message": {"role": "system", "content": "Be brief."}},
            {"message": {"role": "user", "contents": [{"message_content": {"type": "text", "text": "Which ferry?"}}]}},
        ]
    },
    "session": {"id": "x"},
}
EXPORTS = {
    "semantic conventions": otlp(
        span(
            1,
            {
                "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
                "gen_ai.input.messages": [text_parts("user", "Which ferry?")],
                "gen_ai.output.messages": [text_parts("assistant", "Nine.")],
            },
        )
    ),
    "details in an event": otlp(
        span(
            1,
            {},
            [
                (
                    "gen_ai.client.inference.operation.details",
                    {"gen_ai.input.messages": [text_parts("system", "Be brief."), text_parts("user", "Which ferry?")]},
                )
            ],
        )
    ),
    "events": otlp(
        span(
            1,
            {},
            [
                ("gen_ai.system.message", {"content": "Be brief."}),
                ("gen_ai.user.message", {"content": "Which ferry?"}),
                ("gen_ai.choice", {"message": {"content": "Nine."}}),
            ],
        )
    ),
    "Logfire": otlp(
        span(
            1,
            {
                "events": [
                    {"event.name": "gen_ai.system.message", "content": "Be brief."},
                    {"event.name": "gen_ai.user.message", "content": "Which ferry?"},
                ]
            },
        )
    ),
    "OpenLLMetry": otlp(
        span(
            1,
            {
                "gen_ai.prompt.0.role": "system",
                "gen_ai.prompt.0.content": "Be brief.",
                "gen_ai.prompt.1.role": "user",
                "gen_ai.prompt.1.content": "Which ferry?",
            },
        )
    ),
    "AI SDK": otlp(span(1, {"ai.prompt.messages": [SYSTEM, ASK], "ai.response.text": "Nine."})),
    "Phoenix": {"context": {"trace_id": "t", "span_id": "s"}, "attributes": NESTED},
    "Langfuse": {
        "id": "g",
        "traceId": "t",
        "type": "GENERATION",
        "input": {"messages": [SYSTEM, ASK], "tools": []},
        "output": NINE,
    },
    "Langfuse trace": {
        "id": "t",
        "sessionId": "x",
        "observations": [{"id": "g", "type": "GENERATION", "input": [SYSTEM, ASK]}],
    },
    "LangSmith": {
        "id": "r",
        "run_type": "llm",
        "trace_id": "t",
        "inputs": {
            "messages": [[lc("SystemMessage", content="Be brief."), lc("HumanMessage", content="Which ferry?")]]
        },
        "outputs": {"generations": [[{"message": lc("AIMessage", content="Nine.")}]]},
    },
    "LangSmith with OpenAI's messages": {
        "id": "r",
        "run_type": "llm",
        "trace_id": "t",
        "inputs": {"messages": [SYSTEM, ASK]},
        "outputs": {"choices": [{"message": NINE}]},
    },
}


@pytest.mark.parametrize("name", list(EXPORTS))
@pytest.mark.parametrize("file", ["a.json", "a.jsonl"])
def test_each_export_has_the_request_of_the_model_call(write, name, file):
    found = read_one(write(file, EXPORTS[name]))
    (call,) = found.calls
    assert [describe(message).texts for message in call.messages] == [("Be brief.",), ("Which ferry?",)]
    assert not found.skipped


def test_tool_calls_of_openinference_are_pairs(write):
    found = read_one(write("a.json", {"context": {"trace_id": "t", "span_id": "s"}, "attributes": FLAT}))
    assert list(found.calls[0].messages) == WHOLE[:-1]


def test_spans_of_one_conversation_are_its_calls_and_share_their_messages(otel_assembly, write):
    first = {"gen_ai.conversation.id": "x", "ai.prompt.messages": [SYSTEM, ASK]}
    second = {"gen_ai.conversation.id": "x", "ai.prompt.messages": [SYSTEM, ASK, NINE, ASK | {"content": "Sure?"}]}
    path = write("a.jsonl", otlp(span(2, second)), otlp(span(1, first), span(3, {"http.method": "GET"})))
    found = read_one(path)
    one, two = found.calls
    assert (found.id, found.named) == ("x", True)
    assert one.messages[1] is two.messages[1]
    ran = otel_assembly("replay", path, "--json")
    assert (ran.json["turns"], ran.json["prefix_reuse"]) == (2, 1.0)
    assert otel_assembly("view", path).out.startswith("wrote assemblies.html: 1 conversation, 2 turns")


def test_an_export_without_content_is_an_error(write):
    (error,) = read_transcripts([write("a.json", otlp(span(1, {"gen_ai.request.model": "m"})))])
    assert error.problem == "no model call with the messages of its request, expected at least one"


# All


def test_each_file_has_one_specific_format(write):
    for name, (file, records, _) in FILES.items():
        found = read_one(write(file, *records))
        specific = [each.name for each in installed_formats() if not each.is_general]
        assert found.format in specific, name


@pytest.mark.realdata
def test_the_samples_of_other_tools_are_read(samples):
    unreadable = []
    for path in sorted(samples.iterdir()):
        if path.is_file() and path.name != "README.md":
            unreadable += [path.name for each in read_transcripts([path]) if isinstance(each, Exception)]
    # This sample has no messages.
    assert unreadable == ["inspect_log.eval"]


@pytest.mark.realdata
def test_the_logs_of_coding_agents_are_read_whole(samples):
    for path in sorted((samples / "coding_agents").glob("*.jsonl")):
        assert all(not found.skipped for found in read(path)), path.name
