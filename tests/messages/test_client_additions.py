"""What a client adds to messages and tools is counted: wrappers, schemas in any form, images by their detail."""

from __future__ import annotations

import json

import pytest
from recount import count

from otel_assembly import Assembler, Context, describe
from otel_assembly.cli import main
from otel_assembly.tokens import TiktokenCounter, TokenMeter

METER = TokenMeter(TiktokenCounter("o200k_base"))
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string", "description": "what"}}, "required": ["q"]}
UPPER = {"type": "OBJECT", "properties": {"q": {"type": "STRING", "description": "what"}}, "required": ["q"]}
FUNCTION = {"name": "find", "description": "Find a ferry."}
SCHEMAS = {
    "openai": {"type": "function", "function": {**FUNCTION, "parameters": PARAMETERS}},
    "responses": {"type": "function", **FUNCTION, "parameters": PARAMETERS},
    "anthropic": {**FUNCTION, "input_schema": PARAMETERS},
    "bedrock": {"toolSpec": {**FUNCTION, "inputSchema": {"json": PARAMETERS}}},
    "gemini": {"functionDeclarations": [{**FUNCTION, "parameters": PARAMETERS}]},
    "gemini, in its client's types": {"function_declarations": [{**FUNCTION, "parameters": UPPER}]},
    "gemini, by a JSON schema": {"functionDeclarations": [{**FUNCTION, "parametersJsonSchema": PARAMETERS}]},
}
BUILT_IN = [
    {"type": "web_search"},
    {"type": "web_search_preview", "search_context_size": "low"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "browser"},
    {"type": "mcp", "server_label": "shop", "server_url": "https://x"},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
    {"googleSearch": {}},
    {"google_search": {}},
    {"codeExecution": {}},
    {"cachePoint": {"type": "default"}},
]


@pytest.mark.parametrize("form", SCHEMAS)
def test_a_function_costs_the_same_in_the_form_of_every_provider(form):
    assert METER.tools([SCHEMAS[form]]) == METER.tools([SCHEMAS["openai"]]) > 20


def test_functions_that_gemini_declares_in_one_tool_are_each_counted():
    one, other = ({**FUNCTION, "name": name, "parameters": PARAMETERS} for name in ("find", "book"))
    together = METER.tools([{"functionDeclarations": [one, other]}])
    assert together == METER.tools([{"type": "function", "function": tool} for tool in (one, other)])


@pytest.mark.parametrize("tool", BUILT_IN, ids=lambda tool: str(tool.get("type") or next(iter(tool))))
def test_nothing_is_counted_for_a_tool_that_the_provider_runs(tool):
    assert METER.tools([tool]) == 0
    assert METER.tools([SCHEMAS["openai"], tool]) == METER.tools([SCHEMAS["openai"]])


def test_a_custom_tool_is_the_programs_own():
    assert METER.tools([{"type": "custom", "name": "sql", "description": "Run a query."}]) > 5


REPLAYED = {
    "bedrock": {
        "messages": [
            {"role": "user", "content": [{"text": "Which?"}]},
            {"role": "assistant", "content": [{"text": "9."}]},
        ],
        "toolConfig": {"tools": [SCHEMAS["bedrock"]]},
        "system": [{"text": "Be brief."}],
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "Which?"}]}, {"role": "model", "parts": [{"text": "9."}]}],
        "tools": [SCHEMAS["gemini"]],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    },
    "gemini, as its client is called": {
        "contents": [{"role": "user", "parts": [{"text": "Which?"}]}, {"role": "model", "parts": [{"text": "9."}]}],
        "config": {"tools": [SCHEMAS["gemini"]], "systemInstruction": "Be brief."},
    },
    "openai": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Which?"},
            {"role": "assistant", "content": "9."},
        ],
        "tools": [SCHEMAS["openai"]],
    },
}


@pytest.mark.parametrize("form", REPLAYED)
def test_a_replayed_request_costs_the_same_in_the_form_of_every_provider(form, tmp_path, capsys):
    tokens = []
    for name in (form, "openai"):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(REPLAYED[name]))
        assert main(["replay", "--policies", "conversation", "--json", str(path)]) == 0
        tokens.append(json.loads(capsys.readouterr().out)["tokens_in"])
    assert tokens[0] == tokens[1] > 30


@pytest.mark.parametrize(("detail", "tokens"), [("low", 85), ("high", 765), ("auto", 765), (None, 765)])
def test_an_image_costs_by_its_detail(detail, tokens):
    chat = {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": detail}}
    item = {"type": "input_image", "image_url": "https://x/y.png", "detail": detail}
    for part in (chat, item):
        assert describe({"role": "user", "content": [part]}).media_tokens == tokens


@pytest.mark.parametrize("key", ["functionResponse", "function_response"])
async def test_the_object_around_a_tools_result_of_gemini_is_counted(key):
    response = {"result": "depot 04"}
    message = {"role": "user", "parts": [{key: {"name": "find", "response": response}}]}
    call = {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {}}}]}
    ask = {"role": "user", "parts": [{"text": "Where?"}]}
    whole = await Assembler([]).assemble([], [ask, call, message], Context())
    before = await Assembler([]).assemble([], [ask, call], Context())
    added = whole.totals.tokens_in - before.totals.tokens_in
    assert added == 4 + count(json.dumps(response)) + count("find")
