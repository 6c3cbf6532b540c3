"""How Gemini's contents are read, and how a summary or a shorter result stands for them."""

from __future__ import annotations

from copy import deepcopy

import pytest
from google.genai import types
from google.genai.types import Content, FunctionCall, FunctionResponse, Part

import otel_assembly.instrumentation.google_adk.messages as rows
from otel_assembly import describe
from otel_assembly.instrumentation import ClientRequest, Instrumentation, InvokingAgent, ModelCall, StepReport
from otel_assembly.messages import MEDIA_TOKENS, result_texts, shortened, summary_like

BLOB = types.Blob(mime_type="image/png", data=b"x")


def facts(*parts, role="user"):
    return describe(Content(role=role, parts=list(parts)))


def asked(name="look", call_id=None, **args):
    return Part(function_call=FunctionCall(name=name, id=call_id, args=args))


def answered(response, name="look", call_id=None, **more):
    return Part(function_response=FunctionResponse(name=name, id=call_id, response=response, **more))


@pytest.mark.parametrize(
    ("part", "role", "kind", "texts"),
    [
        (Part(text="Hello"), "user", "request", ["Hello"]),
        (Part(text="Hello"), None, "request", ["Hello"]),
        (Part(text="Hello"), "model", "response", ["Hello"]),
        (Part(text="I think.", thought=True, thought_signature=b"s"), "model", "response", ["I think."]),
        (Part(thought_signature=b"s" * 90), "model", "response", []),
        (Part(), "model", "response", []),
        (asked(q="a"), "model", "response", ["look", '{"q": "a"}']),
        (answered({"result": "found"}), "user", "tool_result", ['{"result": "found"}', "look"]),
        (answered({"a": 1, "b": ["c"]}), "user", "tool_result", ['{"a": 1, "b": ["c"]}', "look"]),
        (answered({"length": 3}), "user", "tool_result", ['{"length": 3}', "look"]),
        (answered({}), "user", "tool_result", ["{}", "look"]),
        (answered(None), "user", "tool_result", ["look"]),
        (Part(executable_code=types.ExecutableCode(code="2 + 2", language="PYTHON")), "model", "response", ["2 + 2"]),
        (Part(code_execution_result=types.CodeExecutionResult(output="4", outcome="OUTCOME_OK")), "model", "response",
         ["4"]),
    ],
)  # fmt: skip
def test_each_part_says_what_a_model_reads(part, role, kind, texts):
    found = facts(part, role=role)
    assert (str(found.kind), list(found.texts)) == (kind, texts)
    assert not found.media_tokens
    assert not found.unknown


@pytest.mark.parametrize("part", [Part(inline_data=BLOB), Part(file_data=types.FileData(file_uri="gs://a/b"))])
def test_a_file_counts_as_one(part):
    assert facts(Part(text="See"), part).media_tokens == MEDIA_TOKENS


def test_a_tool_may_show_files_beside_its_response():
    shown = types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(mime_type="image/png", data=b"x"))
    found = facts(answered({"result": "found"}, parts=[shown]))
    assert (found.media_tokens, str(found.kind)) == (MEDIA_TOKENS, "tool_result")


@pytest.mark.skipif(not hasattr(types, "ToolCall"), reason="a later release of Gemini's client")
def test_what_gemini_runs_itself_is_owed_no_result():
    call = Part(tool_call=types.ToolCall(tool_type="GOOGLE_SEARCH_WEB", args={"q": "a"}))
    found = facts(call, Part(tool_response=types.ToolResponse(response={"found": "b"})), role="model")
    assert list(found.texts) == ["GOOGLE_SEARCH_WEB", '{"q": "a"}', "b"]
    assert (found.opens, found.closes, str(found.kind)) == ([], [], "response")


@pytest.mark.parametrize(
    ("call_id", "answer_id", "known"), [("c-1", "c-1", "c-1"), ("adk-1", None, "look"), (None, "adk-1", "look")]
)
def test_a_call_is_known_by_the_provider_s_id_else_by_its_tool(call_id, answer_id, known):
    assert list(facts(asked(call_id=call_id), role="model").opens) == [known]
    assert list(facts(answered({"result": "x"}, call_id=answer_id)).closes) == [known]


def test_a_copy_is_known_by_what_a_model_reads_of_it(assembly_telemetry):
    def same_content(message, other):
        with assembly_telemetry.as_default():
            return ModelCall(Instrumentation("pretend"), messages=[message]).reduced(StepReport("window", [other], []))

    one = Content(role="model", parts=[Part(text="I think.", thought=True), asked(call_id="adk-1", q="a")])
    sent = deepcopy(one)
    sent.parts[0].thought, sent.parts[1].function_call.id = None, None
    assert same_content(one, sent)
    sent.parts[1].function_call.args = {"q": "b"}
    assert not same_content(one, sent)
    assert not same_content(Content(role="user", parts=one.parts), one)


def test_a_summary_is_a_user_s_content():
    summary = summary_like(Content(role="model", parts=[]), "They met.", ())
    assert isinstance(summary, Content)
    assert (summary.role, str(describe(summary).kind)) == ("user", "summary")
    assert summary.parts[0].text.endswith("They met.")
    assert str(describe(summary.model_copy()).kind) == "summary"


def test_a_content_without_parts_says_nothing():
    assert not describe(Content(role="user")).texts
    assert result_texts(Content(role="user")) == []


def test_a_result_can_be_shortened():
    long = Content(role="user", parts=[answered({"result": "a" * 50}, call_id="c"), answered({"a": 1, "b": "c" * 50})])
    texts = result_texts(long)
    assert texts == ["a" * 50, '{"a": 1, "b": "' + "c" * 50 + '"}']
    short = shortened(long, ["a…", "c…"])
    assert [part.function_response.response for part in short.parts] == [{"result": "a…"}, {"result": "c…"}]
    assert short.parts[0].function_response.id == "c"
    assert long.parts[0].function_response.response == {"result": "a" * 50}
    assert list(describe(short).closes) == list(describe(long).closes)


@pytest.mark.parametrize(
    ("told", "prompts"),
    [
        (None, []),
        ("", []),
        ("Be kind.", ["Be kind."]),
        (Content(parts=[Part(text="One."), Part(inline_data=BLOB), Part(text="Two.")]), ["One.", "Two."]),
        (["One.", Part(text="Two.")], ["One.", "Two."]),
        (Part(text="One."), ["One."]),
    ],
)
def test_what_a_model_is_told_in_front(told, prompts):
    class Request:
        config = types.GenerateContentConfig(system_instruction=told)

    assert rows.prompts_of(Request) == prompts


def test_tools_are_offered_by_either_form_of_schema():
    schema = types.Schema(type="OBJECT", properties={"q": types.Schema(type="STRING")})
    declared = [
        types.FunctionDeclaration(name="one", description="One.", parameters=schema),
        types.FunctionDeclaration(name="two", parameters_json_schema={"type": "object"}),
        types.FunctionDeclaration(name="three"),
    ]

    class Request:
        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=declared), types.Tool(google_search=types.GoogleSearch())]
        )

    found = [call["function"] for call in rows.schemas_of(Request)]
    assert [message["name"] for message in found] == ["one", "two", "three"]
    assert found[0]["parameters"] == {"type": "OBJECT", "properties": {"q": {"type": "STRING"}}}
    assert (found[1]["parameters"], found[2]["parameters"]) == ({"type": "object"}, {})


def test_an_earlier_content_of_which_a_copy_has_another_part_is_read_again(assembly_telemetry):
    contents = [Content(role="user", parts=[Part(text=f"Note {number}.")]) for number in range(9)]
    parts = ([Part(text="Note 3.")], [Part(text="Note 3."), Part(inline_data=BLOB)], [Part(text="Note 3.")])
    with assembly_telemetry.as_default():
        for contents[3].parts in parts:
            request = ClientRequest(deepcopy(contents))
            ModelCall(Instrumentation("pretend"), InvokingAgent.of("c")).client_called(request)
    first, second, third = (
        span.attributes["assembly.tokens.out"] for span in assembly_telemetry.spans_named("assemble_context")
    )
    assert second - MEDIA_TOKENS == first == third
