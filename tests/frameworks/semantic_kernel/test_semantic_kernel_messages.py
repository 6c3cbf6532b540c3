"""How Semantic Kernel's messages are read, and how a summary or a shorter result stands for them."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest
from semantic_kernel.connectors.ai.completion_usage import CompletionUsage
from semantic_kernel.contents import (
    AnnotationContent,
    AudioContent,
    AuthorRole,
    ChatHistory,
    ChatMessageContent,
    FileReferenceContent,
    FunctionCallContent,
    FunctionResultContent,
    ImageContent,
    ReasoningContent,
    StreamingAnnotationContent,
    StreamingChatMessageContent,
    StreamingFileReferenceContent,
    StreamingReasoningContent,
    StreamingTextContent,
    TextContent,
)
from semantic_kernel.contents.binary_content import BinaryContent
from semantic_kernel.contents.chat_message_content import CMC_ITEM_TYPES
from semantic_kernel.functions import FunctionResult, KernelFunctionMetadata

import otel_assembly.instrumentation.semantic_kernel.messages as rows
from otel_assembly import describe
from otel_assembly.instrumentation import ClientRequest, Instrumentation, InvokingAgent, ModelCall
from otel_assembly.messages import MEDIA_TOKENS, result_texts, shortened, summary_like

USER, ASSISTANT, TOOL = AuthorRole.USER, AuthorRole.ASSISTANT, AuthorRole.TOOL
CALL = FunctionCallContent(id="1", plugin_name="Tools", function_name="look", arguments='{"q": "a"}')
RESULT = FunctionResultContent.from_function_call_content_and_result(CALL, "found a")
#: One of each type of content, with what is read of it and the tokens of what is shown.
ITEMS = [
    (TextContent(text="hello"), ("hello",), 0),
    (ReasoningContent(text="let me see"), ("let me see",), 0),
    (CALL, ("Tools-look", '{"q": "a"}'), 0),
    (RESULT, ("found a",), 0),
    (ImageContent(uri="https://x/y.png"), (), MEDIA_TOKENS),
    (ImageContent(data=b"x", mime_type="image/png"), (), MEDIA_TOKENS),
    (AudioContent(data=b"x", mime_type="audio/wav"), (), MEDIA_TOKENS),
    (BinaryContent(data=b"x", mime_type="application/pdf"), (), MEDIA_TOKENS),
    (FileReferenceContent(file_id="file-1"), (), MEDIA_TOKENS),
    (StreamingFileReferenceContent(file_id="file-1"), (), MEDIA_TOKENS),
    (AnnotationContent(file_id="file-1", quote="so it says"), (), 0),
    (StreamingAnnotationContent(file_id="file-1", quote="so it says"), (), 0),
]
#: What a program may import first.
FIRST = (
    "import semantic_kernel",
    "from semantic_kernel.contents import ChatHistory",
    "from semantic_kernel.agents import ChatCompletionAgent",
    "from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion",
    "from semantic_kernel.agents.runtime import InProcessRuntime",
)


def said(role, *items, **more):
    return describe(ChatMessageContent(role=role, items=list(items), **more))


def test_what_each_message_is():
    kinds = {role: str(said(role, TextContent(text="hello")).kind) for role in AuthorRole}
    assert kinds == {
        AuthorRole.SYSTEM: "system", AuthorRole.DEVELOPER: "system", USER: "request", ASSISTANT: "response",
        TOOL: "tool_result",
    }  # fmt: skip
    both = said(TOOL, RESULT, FunctionResultContent(id="2", name="look", result={"n": 1}))
    assert (both.kind, both.closes, both.texts) == ("tool_result", ["1", "2"], ("found a", "{'n': 1}"))
    assert said(USER, RESULT).kind == "tool_result"


@pytest.mark.parametrize(("item", "texts", "media"), ITEMS)
def test_each_content_is_read(item, texts, media):
    found = said(ASSISTANT, item)
    assert (found.texts, found.media_tokens, found.unknown) == (texts, media, ())


def test_every_type_that_a_message_may_hold_is_known():
    held = set(get_args(get_args(CMC_ITEM_TYPES)[0]))
    assert {type(item) for item, *_ in ITEMS} >= held


def test_a_content_that_nobody_knows_counts_by_what_it_holds():
    message = ChatMessageContent(role=USER, content="new")
    message.items[0].__dict__["content_type"] = "brand_new"
    found = describe(message)
    assert found.unknown == ("brand_new",)
    assert "new" in found.texts[0]


def test_what_a_response_says_asks_for_and_cost():
    usage = CompletionUsage(prompt_tokens=7, completion_tokens=3)
    second = FunctionCallContent(id="2", name="look", arguments={"q": "b"})
    bare = FunctionCallContent(id="3", name="look")
    found = said(ASSISTANT, TextContent(text="I look."), CALL, second, bare, metadata={"usage": usage})
    assert found.texts == ("I look.", "Tools-look", '{"q": "a"}', "look", '{"q": "b"}', "look", "{}")
    assert found.opens == ["1", "2", "3"]
    assert (found.billed_tokens, found.output_tokens) == (7, 3)
    assert said(ASSISTANT, TextContent(text="I look."), name="bob").name == "bob"
    assert said(TOOL, RESULT, name="bob").name == ""


def test_a_result_is_read_as_a_model_is_sent_it():
    result = FunctionResult(function=KernelFunctionMetadata(name="look", is_prompt=False), value=["a", 1])
    assert said(TOOL, FunctionResultContent.from_function_call_content_and_result(CALL, result)).texts == ("['a', 1]",)


def test_messages_that_were_streamed_are_read_alike():
    parts = [
        StreamingChatMessageContent(role=ASSISTANT, choice_index=0, items=[item])
        for item in (
            StreamingReasoningContent(choice_index=0, text="let me see"),
            StreamingTextContent(choice_index=0, text="I "),
            StreamingTextContent(choice_index=0, text="look."),
            FunctionCallContent(id="1", name="look", arguments='{"q":', index=0),
            FunctionCallContent(id="1", name="look", arguments=' "a"}', index=0),
        )
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    found = describe(whole)
    assert (found.kind, found.opens) == ("response", ["1"])
    assert found.texts[-3:] == ("I look.", "look", '{"q": "a"}')


def test_the_system_prompts_in_front():
    history = ChatHistory(system_message="One.")
    history.add_developer_message("Two.")
    history.add_user_message("hello")
    history.add_system_message("Three.")
    prompts, held = rows.split_prompts(history.messages)
    assert prompts == ["One.", "Two."]
    assert held == history.messages[2:]
    assert rows.split_prompts(history.messages[:1]) == (["One."], [])
    assert rows.split_prompts([]) == ([], [])
    summary = ChatMessageContent(role=AuthorRole.SYSTEM, content="They met.", metadata={"__summary__": True})
    assert describe(summary).kind == "summary"
    assert rows.split_prompts([summary])[0] == []
    picture = ChatMessageContent(role=AuthorRole.SYSTEM, items=[ImageContent(uri="https://x/y.png")])
    assert rows.split_prompts([picture])[0] == []


def test_a_summary_survives_being_stored():
    message = ChatMessageContent(role=USER, content="hello")
    summary = summary_like(message, "they met", [message])
    assert describe(summary).kind == "summary"
    stored = ChatHistory.restore_chat_history(ChatHistory(messages=[summary]).serialize()).messages[0]
    assert describe(stored).kind == "summary"
    assert "they met" in describe(stored).texts[0]
    assert "otel_assembly_summary" not in str(summary.to_dict())


def test_a_shorter_result_answers_the_same_call():
    result = ChatMessageContent(role=TOOL, items=[RESULT, FunctionResultContent(id="2", name="look", result="")])
    assert result_texts(result) == ["found a"]
    short = shortened(result, ["a"])
    assert describe(short).texts == ("a",)
    assert describe(short).closes == ["1", "2"]
    assert describe(result).texts == ("found a",)
    assert result_texts(ChatMessageContent(role=USER, content="x")) == []


@pytest.mark.parametrize("first", FIRST)
def test_they_are_read_and_all_hooks_take_where_any_part_of_semantic_kernel_is_imported_behind_us(first):
    program = (
        "from otel_assembly import describe;"
        "from otel_assembly.instrumentation import SemanticKernelInstrumentor, instrument;"
        f"instrument('semantic_kernel'); {first};"
        "from semantic_kernel.agents import AgentGroupChat, ChatCompletionAgent, OpenAIResponsesAgent;"
        "from semantic_kernel.agents import SequentialOrchestration;"
        "from semantic_kernel.agents.runtime import InProcessRuntime;"
        "from semantic_kernel.contents import ChatMessageContent, ChatHistoryTruncationReducer;"
        "from semantic_kernel.functions import KernelFunctionFromPrompt;"
        "from semantic_kernel.connectors.ai.text_completion_client_base import TextCompletionClientBase;"
        "told = {*SemanticKernelInstrumentor().states.values()};"
        "print(describe(ChatMessageContent(role='user', content='Go')).text, *told)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("Go taken\n", "")


def test_an_earlier_message_that_changes_in_place_is_read_again(assembly_telemetry):
    messages = [ChatMessageContent(role=USER, content=f"Note {number}.") for number in range(9)]
    with assembly_telemetry.as_default():
        for text in ("Note 3.", "Note 3 of the second round.", "Note 3."):
            messages[3].items[0].text = text
            ModelCall(Instrumentation("pretend"), InvokingAgent.of("c")).client_called(ClientRequest(messages))
    first, second, third = (
        span.attributes["assembly.tokens.out"] for span in assembly_telemetry.spans_named("assemble_context")
    )
    assert second > first == third
