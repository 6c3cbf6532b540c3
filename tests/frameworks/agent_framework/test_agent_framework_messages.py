"""How agent-framework's messages are read: each type of content, pairs, and what stands for others."""

from __future__ import annotations

import copy
import typing

import pytest
from agent_framework import Content, Message, normalize_messages
from agent_framework._types import ContentType
from agent_programs import Stage, own_strategy
from scripted_clients import BareClient, ScriptedClient, assert_told

from otel_assembly import describe
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.instrumentation.agent_framework import AssemblyMiddleware
from otel_assembly.messages import MEDIA_TOKENS, result_texts, shortened, summary_like

assert AssemblyMiddleware  # the rows are registered with it

pytestmark = pytest.mark.filterwarnings("ignore:.*is experimental")

PICTURE = Content.from_uri("https://example.org/a.png", media_type="image/png")
CALL = Content.from_function_call("c1", "weather", arguments={"city": "Bonn"})

#: Of each content: the texts that a model reads.
TEXTS = {
    "text": (Content.from_text("hello"), ["hello"]),
    "text_reasoning": (Content.from_text_reasoning(text="I think"), ["I think"]),
    "data": (Content.from_data(b"x", "image/png"), []),
    "uri": (PICTURE, []),
    "error": (Content.from_error(message="it broke"), ["it broke"]),
    "function_call": (CALL, ["weather", '{"city": "Bonn"}']),
    "function_result": (Content.from_function_result("c1", result="rain"), ["rain"]),
    "usage": (Content.from_usage({"input_token_count": 3}), []),
    "hosted_file": (Content.from_hosted_file("f1"), []),
    "hosted_vector_store": (Content.from_hosted_vector_store("v1"), []),
    "code_interpreter_tool_call": (
        Content.from_code_interpreter_tool_call(call_id="c2", inputs=[Content.from_text("1 + 1")]),
        ["code_interpreter", "1 + 1"],
    ),
    "code_interpreter_tool_result": (
        Content.from_code_interpreter_tool_result(call_id="c2", outputs=[Content.from_text("2")]),
        ["2"],
    ),
    "image_generation_tool_call": (Content.from_image_generation_tool_call(image_id="i1"), ["image_generation"]),
    "image_generation_tool_result": (Content.from_image_generation_tool_result(image_id="i1", outputs=PICTURE), []),
    "mcp_server_tool_call": (
        Content.from_mcp_server_tool_call("c3", "find", arguments={"q": 1}),
        ["find", '{"q": 1}'],
    ),
    "mcp_server_tool_result": (
        Content.from_mcp_server_tool_result("c3", output=[Content.from_text("found")]),
        ["found"],
    ),
    "search_tool_call": (Content.from_search_tool_call("c4", tool_name="web", arguments="{}"), ["web", "{}"]),
    "search_tool_result": (Content.from_search_tool_result("c4", tool_name="web", result="a page"), ["a page"]),
    "shell_tool_call": (Content.from_shell_tool_call(call_id="c5", commands=["ls", "pwd"]), ["shell", "ls", "pwd"]),
    "shell_tool_result": (
        Content.from_shell_tool_result(
            call_id="c5", outputs=[Content.from_shell_command_output(stdout="a", stderr="b")]
        ),
        ["a", "b"],
    ),
    "shell_command_output": (Content.from_shell_command_output(stdout="a", stderr="b"), ["a", "b"]),
    "function_approval_request": (
        Content.from_function_approval_request("a1", CALL),
        ["weather", '{"city": "Bonn"}'],
    ),
    "function_approval_response": (Content.from_function_approval_response(True, "a1", CALL), []),
    "oauth_consent_request": (Content.from_oauth_consent_request("https://example.org"), []),
}
KINDS = typing.get_args(ContentType)
if "computer_tool_call" in KINDS:  # which older releases have not
    TEXTS["computer_tool_call"] = (
        Content("computer_tool_call", id="x", call_id="c6", actions=[{"type": "click"}]),
        ["computer", '[{"type": "click"}]'],
    )
    TEXTS["computer_tool_result"] = (Content("computer_tool_result", call_id="c6", screenshot=PICTURE), [])
FILES = {"data", "uri", "hosted_file", "image_generation_tool_result", "computer_tool_result"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_content_is_read(kind):
    content, texts = TEXTS[kind]
    facts = describe(Message("assistant", [content]))
    assert list(facts.texts) == texts
    assert facts.media_tokens == (MEDIA_TOKENS if kind in FILES else 0)
    assert facts.unknown == ()


def test_a_type_that_nobody_knows_is_counted_by_its_json():
    facts = describe(Message("assistant", [Content("smell", text="of roses")]))
    assert facts.unknown == ("smell",)
    assert "of roses" in facts.text


def test_what_is_encrypted_is_estimated():
    assert describe(Message("assistant", [Content.from_text_reasoning(protected_data="x" * 160)])).media_tokens == 30


def test_calls_and_results_are_pairs_and_a_call_that_waits_for_approval_is_pending():
    asks = Message("assistant", [CALL, Content.from_function_approval_request("a1", CALL)])
    facts = describe(asks)
    assert (list(facts.opens), list(facts.awaiting)) == (["c1"], ["c1"])
    assert list(facts.texts) == ["weather", '{"city": "Bonn"}']
    answer = describe(Message("tool", [Content.from_function_result("c1", result=["rain"])]))
    assert (answer.kind, list(answer.closes)) == ("tool_result", ["c1"])
    pictured = [Content.from_text("see"), PICTURE]
    answer = describe(Message("tool", [Content.from_function_result("c1", result=pictured)]))
    assert (answer.texts, answer.media_tokens) == (("see",), MEDIA_TOKENS)


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "request"),
        ("assistant", "response"),
        ("tool", "tool_result"),
    ],
)
def test_roles(role, kind):
    assert describe(Message(role, ["hello"])).kind == kind


def test_an_answer_to_a_request_for_approval_is_no_request():
    assert describe(Message("user", [TEXTS["function_approval_response"][0]])).kind == "other"


def test_an_id_that_a_compaction_gave_by_place_is_none():
    assert describe(Message("user", ["hello"], message_id="msg_3")).id is None
    assert describe(Message("user", ["hello"], message_id="msg_3f")).id == "msg_3f"


def test_who_speaks_is_counted_except_of_a_tool():
    assert describe(Message("assistant", ["hello"], author_name="clerk")).name == "clerk"
    assert describe(Message("tool", ["hello"], author_name="clerk")).name == ""


def test_a_summary_of_the_frameworks_and_one_of_ours():
    noted = {"_group": {"_summary_of_message_ids": ["1", "2"]}}
    assert describe(Message("assistant", ["in short"], additional_properties=noted)).kind == "summary"
    ours = summary_like(Message("user", ["hello"]), "in short", [])
    assert describe(ours).kind == "summary"
    assert describe(Message.from_dict(ours.to_dict())).kind == "summary"
    assert "in short" in ours.text


def test_a_result_is_shortened_and_keeps_what_else_it_holds():
    long = Message("tool", [Content.from_function_result("c1", result=[Content.from_text("rain " * 9), PICTURE])])
    assert result_texts(long) == ["rain " * 9]
    short = shortened(long, ["rain"])
    facts = describe(short)
    assert (facts.texts, list(facts.closes), facts.media_tokens) == (("rain",), ["c1"], MEDIA_TOKENS)
    assert describe(long).text == "rain " * 9


async def test_a_message_that_changes_in_place_is_read_anew(told):
    message = Message("user", ["one"])
    client = ScriptedClient()
    for _ in range(2):
        await client.get_response([message])
        message.contents.append(Content.from_text("and two, three and four"))
    first, second = told.spans_named("assemble_context")
    assert second.attributes["assembly.tokens.out"] > first.attributes["assembly.tokens.out"]


async def test_a_file_that_is_added_to_an_earlier_tool_result_is_noticed(told):
    result = Content.from_function_result("c1", result=[Content.from_text("rain")])
    messages = [Message("user", ["how is it?"]), Message("assistant", [CALL]), Message("tool", [result])]
    client = ScriptedClient()
    for _ in range(2):
        await client.get_response(messages)
        result.items.append(PICTURE)
    first, second = told.spans_named("assemble_context")
    assert second.attributes["assembly.tokens.out"] - first.attributes["assembly.tokens.out"] == MEDIA_TOKENS


async def test_everything_is_put_back():
    def held():
        import agent_framework._agents as agents
        import agent_framework._clients as clients
        import agent_framework._compaction as compaction
        import agent_framework._middleware as middleware

        owners = [clients.BaseChatClient, agents.RawAgent, compaction.CompactionProvider, *ScriptedClient.__mro__]
        owners += [middleware.AgentMiddlewareLayer, BareClient]
        return [copy.copy(dict(vars(owner))) for owner in owners]

    before = held()
    instrument("agent_framework")
    changed = held()
    await own_strategy(Stage())
    uninstrument("agent_framework")
    after = held()
    assert before != changed
    for message, other in zip(before, after, strict=True):
        assert {name for name in message if message[name] is not other.get(name)} <= {
            "__abstractmethods__",
            "_abc_impl",
        }
        assert message.keys() == other.keys()


@pytest.mark.parametrize("kind", [ScriptedClient, BareClient])
@pytest.mark.parametrize("given", ["hello", ["hello"]])
async def test_a_text_in_the_place_of_messages_is_the_message_of_a_user(told, kind, given):
    class Takes(kind):
        """What it is given it need not be a list of messages for."""

        def _inner_get_response(self, *, messages, **more):
            return super()._inner_get_response(messages=normalize_messages(messages), **more)

    client = Takes()
    if kind is ScriptedClient:
        client.function_invocation_configuration["enabled"] = False  # its layer would make messages of it
    await client.get_response(given)
    (assembly,) = assert_told(told, client.received)
    assert "request" in assembly.attributes["assembly.kind.names"]
