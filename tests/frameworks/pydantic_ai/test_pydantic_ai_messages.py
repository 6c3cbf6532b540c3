"""How Pydantic AI's messages are read, and how a summary or a shorter result stands for them."""

from __future__ import annotations

import subprocess
import sys

import pydantic_ai.messages as m
import pytest
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

import otel_assembly.instrumentation.pydantic_ai.messages as rows
from otel_assembly import describe
from otel_assembly.messages import MEDIA_TOKENS, result_texts, shortened, summary_like

#: Parts that not every release has.
NEWER = {
    "RetryFeedbackPart": lambda part: part("not so", retry=m.RetryInfo("model_retry", attempt=1, max_retries=2)),
    "SpeechPart": lambda part: part(speaker="user", transcript="hello"),
    "ToolAvailabilityDeltaPart": lambda part: part(tools_added=["look"]),
    "ModelSettingsDeltaPart": lambda part: part(settings={"thinking": "high"}),
    "InstructionDeltaPart": lambda part: part(id=None, content="Be brief."),
    "InstructionBaselinePart": lambda part: part(instructions=[]),
}
#: What they are, and what they say.
SAID = {
    "RetryFeedbackPart": ("request", "not so"),
    "SpeechPart": ("request", "hello"),
    "ToolAvailabilityDeltaPart": ("other", ""),
    "ModelSettingsDeltaPart": ("other", ""),
    "InstructionDeltaPart": ("system", "Be brief."),
    "InstructionBaselinePart": ("other", ""),
}


def facts(*parts):
    return describe(ModelRequest(parts=list(parts)))


def answered(*parts, **more):
    return describe(ModelResponse(parts=list(parts), **more))


def test_what_each_request_is():
    assert facts(UserPromptPart("hello")).kind == "request"
    assert facts(SystemPromptPart("be kind")).kind == "system"
    assert facts(SystemPromptPart("be kind"), UserPromptPart("hello")).kind == "request"
    both = facts(ToolReturnPart("look", "found", "1"), ToolReturnPart("look", {"n": 1}, "2"))
    assert (both.kind, both.closes, both.texts) == ("tool_result", ["1", "2"], ("found", '{"n":1}'))
    assert facts(ToolReturnPart("look", "found", "1"), UserPromptPart("and?")).kind == "request"
    assert facts(CompactionPart("They met.")).kind == "summary"


def test_a_prompt_of_texts_and_files():
    picture = BinaryContent(b"x", media_type="image/png")
    found = facts(UserPromptPart(["see", ImageUrl("https://x/y.png"), CachePoint(), TextContent("this"), picture]))
    assert (found.texts, found.media_tokens) == (("see", "this"), 2 * MEDIA_TOKENS)


def test_a_tool_s_result_with_a_file():
    found = facts(ToolReturnPart("look", ["found", BinaryContent(b"x", media_type="image/png")], "1"))
    assert (found.closes, found.media_tokens) == (["1"], MEDIA_TOKENS)
    assert "found" in found.texts[0]


def test_what_a_response_says_and_asks_for():
    found = answered(
        ThinkingPart("let me see", signature="abcdefghijklmnop", provider_name="x"),
        TextPart("I look."),
        ToolCallPart("look", {"q": "a"}, "1"),
        ToolCallPart("look", '{"q":"b"}', "2"),
        FilePart(BinaryContent(b"x", media_type="image/png")),
        usage=RequestUsage(input_tokens=7, output_tokens=3),
    )
    assert found.kind == "response"
    assert found.texts == ("let me see", "I look.", "look", '{"q":"a"}', "look", '{"q":"b"}')
    assert (found.opens, found.billed_tokens, found.output_tokens) == (["1", "2"], 7, 3)
    assert found.media_tokens == MEDIA_TOKENS + 3
    assert [call.name for call in found.calls] == ["look", "look"]


def test_a_tool_of_the_provider_s_own_waits_for_nobody():
    found = answered(NativeToolCallPart("web", {"q": "a"}, "1"), NativeToolReturnPart("web", "seen", "1"))
    assert (found.opens, found.closes, found.texts) == ([], [], ("web", '{"q":"a"}', "seen"))


def test_a_provider_s_compaction_is_a_summary():
    assert answered(CompactionPart("They met.", provider_name="x")).kind == "summary"
    details = {"encrypted_content": "x" * 160}
    assert answered(CompactionPart(provider_name="x", provider_details=details)).media_tokens == 30


def test_parts_of_newer_releases():
    for name in NEWER:
        if hasattr(m, name):
            found = facts(NEWER[name](getattr(m, name)))
            kind, text = SAID[name]
            assert (name, found.kind, found.unknown) == (name, kind, ())
            assert text in " ".join(found.texts)
            assert bool(found.texts) == bool(text)


def test_every_part_that_this_release_has_is_known():
    tried = {name.removesuffix("Part") for name in NEWER} | {
        "SystemPrompt", "UserPrompt", "ToolReturn", "RetryPrompt", "Text", "Thinking", "Compaction", "File", "ToolCall",
        "NativeToolCall", "NativeToolReturn", "Instruction",
    }  # fmt: skip
    parts = {name.removesuffix("Part") for name in vars(m) if name.endswith("Part") and name[0] != "_"}
    typed = {name for name in parts if name.startswith(("ToolSearch", "LoadCapability", "NativeToolSearch"))}
    assert {name for name in parts - typed if hasattr(getattr(m, f"{name}Part"), "part_kind")} - tried == set()


def test_a_part_that_nobody_knows_counts_by_what_it_holds():
    part = UserPromptPart("new")
    part.part_kind = "brand-new"
    found = facts(part)
    assert found.unknown == ("brand-new",)
    assert "new" in found.texts[0]


def test_they_are_read_where_pydantic_ai_is_imported_behind_us():
    """In 2.0.0, a part of the package cannot be imported before another one is there."""
    program = (
        "from otel_assembly import describe; from otel_assembly.instrumentation import instrument;"
        "instrument('pydantic_ai'); import pydantic_ai.messages as m;"
        "print(describe(m.ModelRequest(parts=[m.UserPromptPart('Go')])).text)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("Go\n", "")


def test_the_system_prompts_in_front():
    asked = ModelRequest(parts=[SystemPromptPart("One."), SystemPromptPart("Two."), UserPromptPart("hello")])
    later = ModelRequest(parts=[SystemPromptPart("Three."), UserPromptPart("and?")])
    alone = ModelRequest(parts=[SystemPromptPart("Zero.")])
    prompts, held = rows.split_prompts([alone, asked, later])
    assert prompts == ["Zero.", "One.", "Two."]
    assert describe(held[0]).texts == ("hello",)
    assert held[1] is later
    assert rows.split_prompts([asked])[1][0] is held[0]
    asked.parts = [*asked.parts, UserPromptPart("more")]
    assert describe(rows.split_prompts([asked])[1][0]).texts == ("hello", "more")
    assert rows.split_prompts([alone]) == (["Zero."], [])
    assert rows.split_prompts([]) == ([], [])


@pytest.mark.parametrize("message", [ModelRequest(parts=[UserPromptPart("x")]), ModelResponse(parts=[TextPart("x")])])
def test_a_summary_survives_being_stored(message):
    summary = summary_like(message, "they met", [message])
    assert describe(summary).kind == "summary"
    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json([summary]))[0]
    assert describe(stored).kind == "summary"
    assert "they met" in describe(stored).texts[0]


def test_a_shorter_result_answers_the_same_call():
    result = ModelRequest(parts=[ToolReturnPart("look", "a long story", "1"), ToolReturnPart("look", {"n": 1}, "2")])
    assert result_texts(result) == ["a long story"]
    short = shortened(result, ["a story"])
    assert describe(short).texts == ("a story", '{"n":1}')
    assert describe(short).closes == ["1", "2"]
    assert describe(result).texts[0] == "a long story"
    assert result_texts(ModelRequest(parts=[UserPromptPart("x")])) == []
