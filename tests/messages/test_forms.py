"""Messages in the forms of each provider are read as what they are: kinds, texts, pairs, media."""

from __future__ import annotations

import pytest
from recount import count

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    History,
    SlidingWindowPolicy,
    describe,
)
from otel_assembly.messages import MEDIA_TOKENS

LONG = "The flight was moved to gate 14. " * 2_500


def anthropic(result=LONG, *, beside=()):
    return [
        {"role": "user", "content": "Where is my bag?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "c2lnbmF0dXJl" * 40},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "bag"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": result}, *beside],
        },
    ]


def responses(result=LONG):
    return [
        {"role": "user", "content": [{"type": "input_text", "text": "Where is my bag?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I should look."}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": '{"q": "bag"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": result},
    ]


def bedrock(result=LONG):
    return [
        {"role": "user", "content": [{"text": "Where is my bag?"}]},
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "I should look.", "signature": "c2lnbmF0dXJl" * 40}}},
                {"text": "Let me look."},
                {"toolUse": {"toolUseId": "t1", "name": "search", "input": {"q": "bag"}}},
                {"cachePoint": {"type": "default"}},
            ],
        },
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": result}], "status": "success"}}],
        },
    ]


def gemini(result=LONG, *, snake=False):
    call, answer = ("function_call", "function_response") if snake else ("functionCall", "functionResponse")
    return [
        {"role": "user", "parts": [{"text": "Where is my bag?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I should look.", "thought": True},
                {"text": "Let me look."},
                {call: {"name": "search", "args": {"q": "bag"}}, "thoughtSignature": "c2lnbmF0dXJl" * 40},
            ],
        },
        {"role": "user", "parts": [{answer: {"name": "search", "response": {"output": result}}}]},
    ]


def conversation_of(form, result=LONG):
    return FORMS[form](result)


FORMS = {
    "anthropic": anthropic,
    "responses": responses,
    "bedrock": bedrock,
    "gemini": gemini,
    "gemini, in Python's spelling": lambda result: gemini(result, snake=True),
}
forms = pytest.mark.parametrize("form", list(FORMS))
SAID = ["Where is my bag?", "I should look.", "Let me look.", "search", '{"q": "bag"}']


@forms
def test_a_conversation_reads_alike_in_every_form(form):
    facts = list(map(describe, conversation_of(form, "found")))
    assert [text for fact in facts for text in fact.texts][: len(SAID)] == SAID
    assert "found" in facts[-1].texts[-1]
    assert (facts[0].kind, facts[-1].kind) == ("request", "tool_result")
    assert {str(fact.kind) for fact in facts[1:-1]} <= {"response", "tool_call"}
    opened = [call for fact in facts for call in fact.opens]
    assert len(opened) == 1
    assert list(facts[-1].closes) == opened
    assert not any(fact.media_tokens or fact.unknown for fact in facts)


@forms
async def test_a_tool_result_of_twenty_thousand_tokens_counts_as_what_it_is(form):
    events = conversation_of(form)
    tokens = (await Assembler([]).assemble([], events)).totals.tokens_out
    alone = (await Assembler([]).assemble([], conversation_of(form, ""))).totals.tokens_out
    assert tokens - alone == pytest.approx(count(LONG), rel=0.01)
    assert tokens > 15_000


@forms
async def test_a_window_never_parts_a_call_from_its_result_in_any_form(form):
    events = [*conversation_of(form, "found"), {"role": "user", "content": "Thanks. And my coat?"}]
    for most in range(1, len(events) + 1):
        kept = (await Assembler([SlidingWindowPolicy(most)]).assemble([], events)).events
        opened = [call for facts in map(describe, kept) for call in facts.opens]
        assert opened == [call for facts in map(describe, kept) for call in facts.closes]


@forms
async def test_a_result_without_its_call_is_an_orphan_in_every_form(form):
    request, *_, result = conversation_of(form, "found")
    assembly = await Assembler([ConversationPolicy()]).assemble([], [request, result])
    assert assembly.events == [request]
    assert [d.reason for d in assembly.dropped] == ["orphaned_tool_result"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 5_000}}
PDF = "JVBERi0xLjQK" * 5_000


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [IMAGE]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}]},
        {
            "role": "user",
            "content": [
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
            ],
        },
        {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PDF}"}]},
        {"role": "user", "content": [{"type": "input_file", "filename": "a.pdf", "file_data": PDF}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": PDF, "format": "wav"}}]},
        {"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x89PNG" * 9_000}}}]},
        {"role": "user", "content": [{"document": {"format": "pdf", "name": "a", "source": {"bytes": PDF.encode()}}}]},
        {"role": "user", "content": [{"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://a/b"}}}}]},
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": PDF}}]},
        {"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": PDF.encode()}}]},
        {"role": "user", "parts": [{"fileData": {"fileUri": "gs://a/b", "mimeType": "video/mp4"}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {"url": PDF}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "a", "content": [{"image": {"source": {"bytes": PDF}}}]}}],
        },
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": PDF}]},
        {
            "type": "computer_call_output",
            "call_id": "a",
            "output": {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PDF}"},
        },
    ],
    ids=lambda message: str(message)[:80],
)
def test_pictures_clips_and_files_are_media_and_not_text_in_any_form(message):
    facts = describe(message)
    assert facts.media_tokens == MEDIA_TOKENS
    assert not any(len(text) > 40 for text in facts.texts)
    assert not facts.unknown


def test_a_document_of_plain_text_is_text():
    source = {"type": "text", "media_type": "text/plain", "data": "Bags are on belt 4."}
    facts = describe({"role": "user", "content": [{"type": "document", "title": "Belts", "source": source}]})
    assert facts.texts == ("Belts", "Bags are on belt 4.")
    source = {"type": "content", "content": [{"type": "text", "text": "Bags are on belt 4."}, IMAGE]}
    facts = describe({"role": "user", "content": [{"type": "document", "source": source}]})
    assert (facts.texts, facts.media_tokens) == (("Bags are on belt 4.",), MEDIA_TOKENS)


def test_what_is_encrypted_is_estimated_and_no_text():
    blob = "RW5jcnlwdGVk" * 400
    for message in (
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": blob}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": blob},
        {"type": "compaction", "encrypted_content": blob},
        {"role": "assistant", "content": [{"reasoningContent": {"redactedContent": blob.encode()}}]},
    ):
        facts = describe(message)
        assert not facts.texts, message
        assert 0 < facts.media_tokens <= len(blob) // 4
        assert not facts.unknown


def test_a_compaction_of_the_providers_is_a_summary():
    assert describe({"type": "compaction", "id": "cmp_1", "encrypted_content": "YWJj"}).kind == "summary"


# Messages that hold results and more


async def test_results_with_a_text_of_the_user_pair_and_are_a_request():
    events = [*anthropic("found", beside=[{"type": "text", "text": "And my coat?"}])]
    facts = describe(events[-1])
    assert facts.kind == "request"
    assert list(facts.closes) == ["toolu_1"]
    assembly = await Assembler([ConversationPolicy()]).assemble([], events)
    assert assembly.events == events


async def test_a_request_that_holds_results_is_pinned_with_its_call():
    events = [
        {"role": "user", "content": "go " * 400},
        *anthropic("found", beside=[{"type": "text", "text": "And my coat?"}])[1:],
        *[{"role": "assistant", "content": f"Step {i}: " + "looking around. " * 40} for i in range(20)],
    ]
    pair = events[1:3]
    for policy in (SlidingWindowPolicy(1), SlidingWindowPolicy(3), BudgetPolicy(500, 0)):
        assembly = await Assembler([policy]).assemble([], events)
        assert [event for event in assembly.events if event in pair] == pair, policy
        assert [d.reason for d in assembly.decisions if d.item in ("1", "2")] == ["pinned", "pinned"]
    assert assembly.totals.tokens_out <= 500


def test_images_beside_results_are_a_request_and_cache_points_are_not():
    result = {"toolResult": {"toolUseId": "t1", "content": [{"text": "found"}]}}
    assert describe({"role": "user", "content": [result, {"cachePoint": {"type": "default"}}]}).kind == "tool_result"
    assert describe({"role": "user", "content": [result, {"image": {"source": {}}}]}).kind == "request"


async def test_parallel_results_in_one_message_answer_their_calls():
    calls = [{"type": "tool_use", "id": letter, "name": "search", "input": {"q": letter}} for letter in "abc"]
    results = [{"type": "tool_result", "tool_use_id": letter, "content": f"found {letter}"} for letter in "cab"]
    events = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    assembly = await Assembler([ConversationPolicy()]).assemble([], events)
    assert assembly.events == events
    texts = [
        "go",
        *(t for letter in "abc" for t in ("search", f'{{"q": "{letter}"}}')),
        *(f"found {letter}" for letter in "cab"),
    ]
    framing = (3 + 1) + (3 + 1) + 3 * 3 + (3 + 1) * 3 + 3
    assert assembly.totals.tokens_out == framing + sum(map(count, texts))


async def test_geminis_calls_pair_by_name_whether_or_not_a_side_has_an_id():
    call = {"functionCall": {"id": "call-7", "name": "search", "args": {}}}
    again = {"functionCall": {"name": "search", "args": {"q": "coat"}}}
    answer = {"functionResponse": {"name": "search", "response": {"result": "found"}}}
    events = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [call, again]},
        {"role": "user", "parts": [answer, answer]},
        {"role": "model", "parts": [again]},
        {"role": "user", "parts": [answer]},
    ]
    assembly = await Assembler([ConversationPolicy()]).assemble([], events)
    assert assembly.events == events
    lost = await Assembler([ConversationPolicy()]).assemble([], events[:3] + events[4:])
    assert [d.item for d in lost.dropped] == ["3"]


# Responses' items


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (
            {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": "select 1"},
            {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
        ),
        (
            {"type": "computer_call", "id": "cu_1", "call_id": "a", "action": {"type": "click", "x": 1, "y": 2}},
            {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot", "file_id": "f"}},
        ),
        (
            {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "a", "output": '{"stdout": "x"}'},
        ),
        (
            {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "x", "stderr": "", "outcome": {}}]},
        ),
        (
            {"type": "apply_patch_call", "call_id": "a", "operation": {"type": "create_file", "diff": "+x"}},
            {"type": "apply_patch_call_output", "call_id": "a", "status": "completed", "output": "done"},
        ),
        (
            {"type": "mcp_approval_request", "id": "a", "name": "pay", "arguments": "{}", "server_label": "bank"},
            {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
        ),
    ],
    ids=lambda item: item["type"],
)
async def test_every_call_of_responses_pairs_with_its_output(call, result):
    opened, closed = describe(call), describe(result)
    assert (opened.kind, closed.kind) == ("tool_call", "tool_result")
    assert list(opened.opens) == list(closed.closes) == ["a"]
    assert opened.texts
    assert not opened.unknown
    assert not closed.unknown
    request = {"role": "user", "content": "go"}
    kept = await Assembler([ConversationPolicy()]).assemble([], [request, call, result])
    assert kept.events == [request, call, result]
    left = await Assembler([ConversationPolicy()]).assemble([], [request, result])
    assert left.events == [request]


def test_an_approval_that_is_asked_for_waits():
    facts = describe({"type": "mcp_approval_request", "id": "a", "name": "pay", "arguments": "{}"})
    assert list(facts.awaiting) == ["a"]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "bags"}},
        {"type": "file_search_call", "id": "fs_1", "queries": ["bags"], "results": [{"text": "belt 4", "score": 0.9}]},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": [{"type": "logs", "logs": "2"}]},
        {"type": "mcp_call", "id": "m_1", "name": "find", "arguments": "{}", "output": "belt 4", "server_label": "s"},
        {"type": "mcp_list_tools", "id": "m_2", "server_label": "s", "tools": [{"name": "find"}]},
    ],
    ids=lambda item: item["type"],
)
async def test_tools_that_the_provider_runs_stand_alone_and_stay_in_the_conversation(item):
    facts = describe(item)
    assert (list(facts.opens), list(facts.closes), facts.unknown) == ([], [], ())
    assert facts.texts
    events = [{"role": "user", "content": "go"}, item]
    assert (await Assembler([ConversationPolicy()]).assemble([], events)).events == events


def test_a_picture_that_the_provider_made_is_media():
    facts = describe({"type": "image_generation_call", "id": "ig_1", "result": PDF, "status": "completed"})
    assert (facts.media_tokens, facts.texts) == (MEDIA_TOKENS, ())


async def test_a_reference_to_an_item_stays_in_the_conversation():
    events = [{"role": "user", "content": "go"}, {"type": "item_reference", "id": "msg_1"}]
    assert (await Assembler([ConversationPolicy()]).assemble([], events)).events == events


# Anthropic's server tools, and blocks in results


def test_what_a_server_tool_found_is_text_without_what_is_encrypted():
    found = {
        "type": "web_search_result",
        "title": "Bags",
        "url": "https://a.example",
        "encrypted_content": "QUJD" * 999,
    }
    facts = describe(
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "bags"}},
                {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [found]},
                {"type": "text", "text": "On belt 4.", "citations": [{"cited_text": "x" * 999}]},
            ],
        }
    )
    assert facts.kind == "response"
    assert (list(facts.opens), list(facts.closes)) == ([], [])
    assert facts.texts == ("web_search", '{"query": "bags"}', "Bags", "https://a.example", "On belt 4.")
    assert 0 < facts.media_tokens < 999
    assert not facts.unknown


def test_a_result_in_several_parts_is_read_part_by_part():
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "is_error": True,
        "content": [
            {"type": "text", "text": "one"},
            IMAGE,
            {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "two"}]},
        ],
    }
    facts = describe({"role": "user", "content": [result]})
    assert (facts.kind, facts.text, facts.media_tokens) == ("tool_result", "one", MEDIA_TOKENS)
    assert set(facts.texts) == {"one", "two", "s", "t"}
    facts = describe({"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"json": {"k": 1}}]}}]})
    assert facts.texts == ('{"k": 1}',)


def test_a_result_without_content_is_a_result():
    facts = describe({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]})
    assert (facts.kind, list(facts.closes), facts.texts) == ("tool_result", ["a"], ())


def test_code_that_gemini_ran_is_text():
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
    ]
    assert {"1 + 1", "2"} <= set(describe({"role": "model", "parts": parts}).texts)


def test_a_content_of_geminis_without_a_role_is_the_users():
    assert describe({"parts": [{"text": "hi"}]}).kind == "request"


def test_calls_say_in_every_form_that_they_await_an_approval():
    waits = {"awaiting_approval": True}
    for message in (
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "pay", "input": {}, **waits}]},
        {"type": "function_call", "call_id": "a", "name": "pay", "arguments": "{}", **waits},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "pay", "input": {}, **waits}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}, **waits}}]},
    ):
        assert list(describe(message).awaiting) == ["a"]


# What nobody knows


async def test_a_part_of_an_unknown_type_is_counted_by_its_json_and_told_once(caplog):
    part = {"type": "hologram_of_a_bag", "shape": {"edges": [1, 2, 3]}}
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, part]}
    facts = describe(message)
    assert (facts.kind, list(facts.unknown)) == ("request", ["hologram_of_a_bag"])
    assert facts.texts == ("look", '{"type": "hologram_of_a_bag", "shape": {"edges": [1, 2, 3]}}')
    describe(message)
    assert [record.message for record in caplog.records if "hologram_of_a_bag" in record.message].__len__() == 1
    assert "edges" not in caplog.text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"hologram": {"edges": 3}}]},
        {"role": "user", "parts": [{"hologram": {"edges": 3}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "hologram"}]}]},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "hologram"}]},
    ],
)
def test_an_unknown_part_is_told_wherever_it_stands(message):
    assert list(describe(message).unknown) == ["hologram"]


def test_an_item_of_an_unknown_type_is_other_and_counts():
    facts = describe({"type": "hologram", "edges": 3})
    assert (facts.kind, facts.text, list(facts.unknown)) == ("other", '{"type": "hologram", "edges": 3}', ["hologram"])


async def test_strict_refuses_what_nobody_knows_and_leaves_the_rest_as_it_was():
    from otel_assembly.errors import DescribeError

    good, bad = {"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "hologram", "x": "secret"}]}
    history = History([good], strict=True)
    with pytest.raises(DescribeError, match="hologram") as caught:
        history.append(bad)
    assert "secret" not in str(caught.value)
    assert list(history) == [good]
    with pytest.raises(DescribeError):
        history.extend([good, bad])
    assert list(history) == [good]

    strict, context = Assembler([ConversationPolicy()], strict=True), Context()
    for _ in range(2):
        with pytest.raises(DescribeError, match="hologram"):
            await strict.assemble([], [good, bad], context)
    with pytest.raises(DescribeError, match="hologram"):
        await strict.assemble([], History([good, bad]))
    assert (await strict.assemble([], [good], context)).events == [good]
    assert (await Assembler([ConversationPolicy()]).assemble([], [good, bad])).events == [good, bad]


def test_strict_is_said_in_a_configuration():
    chain = {"strict": True, "policies": ["conversation"]}
    assert Assembler.from_config(chain).to_config()["strict"] is True
    assert "strict" not in Assembler([]).to_config()
