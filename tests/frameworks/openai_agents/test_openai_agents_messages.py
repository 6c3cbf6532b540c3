"""How the SDK's items are read: those that a model of it may be given, as a dict and as the client's own object."""

from __future__ import annotations

from typing import Any

import agents
import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    LocalShellTool,
    WebSearchTool,
    function_tool,
    handoff,
)
from agents.models.fake_id import FAKE_RESPONSES_ID
from openai.types import responses as r
from openai_agents_models import schema
from pydantic import TypeAdapter

from otel_assembly import describe
from otel_assembly.instrumentation.openai_agents.messages import SCHEMAS, items_of
from otel_assembly.messages import MEDIA_TOKENS, summary_like

#: Items, what each is, what is read of it, and its files.
ITEMS: list[tuple[dict[str, Any], str, tuple[str, ...], int]] = [
    ({"role": "user", "content": "hello"}, "request", ("hello",), 0),
    ({"role": "developer", "content": "be kind"}, "system", ("be kind",), 0),
    ({"type": "message", "role": "system", "content": "be kind"}, "system", ("be kind",), 0),
    (
        {"role": "user", "content": [
            {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "https://x/y.png"},
            {"type": "input_file", "file_id": "f"}]},
        "request", ("see",), 2,
    ),
    (
        {"id": "m1", "type": "message", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Hi.", "annotations": []}, {"type": "refusal", "refusal": "No."}]},
        "response", ("Hi.", "No."), 0,
    ),
    ({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]}, "response", ("hm",), 0),
    ({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, "tool_call", ("look", "{}"), 0),
    ({"type": "function_call_output", "call_id": "c", "output": "found"}, "tool_result", ("found",), 0),
    (
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "found"}, {"type": "input_image", "image_url": "https://x/y.png"}]},
        "tool_result", ("found",), 1,
    ),
    ({"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "x"}, "tool_call", ("sql", "x"), 0),
    ({"type": "custom_tool_call_output", "call_id": "c", "output": "done"}, "tool_result", ("done",), 0),
    ({"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
     "tool_call", ("q",), 0),
    ({"type": "image_generation_call", "id": "i", "result": "AAAA", "status": "completed"}, "tool_call", (), 1),
    ({"type": "mcp_approval_request", "id": "a", "name": "erase", "arguments": "{}", "server_label": "s"},
     "tool_call", ("erase", "{}"), 0),
    ({"type": "mcp_approval_response", "approval_request_id": "a", "approve": True, "reason": "fine"},
     "tool_result", ("fine",), 0),
    ({"type": "item_reference", "id": "m1"}, "response", (), 0),
]  # fmt: skip

OBJECTS = [
    r.ResponseOutputMessage(
        id="m1", type="message", role="assistant", status="completed",
        content=[r.ResponseOutputText(type="output_text", text="Hi.", annotations=[], logprobs=[])],
    ),
    r.ResponseFunctionToolCall(type="function_call", call_id="c", name="look", arguments="{}"),
    r.ResponseReasoningItem(
        type="reasoning", id="rs", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="x" * 160
    ),
]  # fmt: skip


@pytest.mark.parametrize(("item", "kind", "texts", "files"), ITEMS, ids=lambda message: message.get("type", "message")
                         if isinstance(message, dict) else "")  # fmt: skip
def test_what_is_read_of_an_item(item, kind, texts, files):
    facts = describe(item)
    assert (facts.kind, facts.texts, facts.media_tokens) == (kind, texts, files * MEDIA_TOKENS)
    assert facts.unknown == ()


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.type)
def test_an_object_of_the_client_s_says_what_its_dict_says(item):
    facts = describe(item)
    assert facts == describe(item.to_dict())


def test_what_a_provider_gave_no_id_has_none():
    one, other = (
        {"id": FAKE_RESPONSES_ID, "type": "message", "role": "assistant", "content": said} for said in ("a", "b")
    )
    assert describe(one).id is describe(other).id is None
    assert describe({**one, "content": [{"type": "output_text", "text": "a"}]}).id is None


def test_an_input_may_be_one_text():
    assert items_of("hello") == [{"role": "user", "content": "hello"}]


def test_the_tools_that_have_a_schema_are_known_by_it():
    @function_tool
    def look(q: str) -> str:
        """Look."""
        return q

    passes = handoff(Agent("other", handoff_description="Knows more."))
    hosted: list[Any] = [WebSearchTool(), LocalShellTool(executor=lambda _: ""), ApplyPatchTool(editor=None)]
    if hasattr(agents, "CustomTool"):  # not in the oldest releases
        hosted.append(agents.CustomTool(name="sql", description="Ask.", on_invoke_tool=None))
    assert SCHEMAS.of([look, passes, *hosted]) == (schema(look), schema(passes))


def test_a_summary_of_items_that_are_objects_is_an_item_of_the_input():
    answer = r.ResponseFunctionToolCall(type="function_call", call_id="c", name="look", arguments="{}")
    summary = summary_like(answer, "They looked.", [answer])
    assert describe(summary).kind == "summary"
    assert summary["role"] == "user"
    TypeAdapter(r.ResponseInputItemParam).validate_python(dict(summary))
