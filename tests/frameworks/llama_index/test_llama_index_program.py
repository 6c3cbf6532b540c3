"""What is wrapped, and what is given back; what is imported when; the examples."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer, ChatSummaryMemoryBuffer, Memory
from llama_index.core.memory.types import BaseChatStoreMemory
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from llama_index.core.workflow import Workflow
from llama_index_models import Scripted, Stage, history
from llama_index_programs import Newest

from otel_assembly.instrumentation import HookState, LlamaIndexInstrumentor, instrument, uninstrument
from otel_assembly.testing import RecordedTelemetry

OWNERS = [
    BaseLLM, MockLLM, Scripted, BaseMemory, BaseChatStoreMemory, Memory, ChatMemoryBuffer, ChatSummaryMemoryBuffer,
    BaseChatStore, SimpleChatStore, Workflow, FunctionAgent, SimpleChatEngine, BaseQueryEngine, Newest,
]  # fmt: skip


def test_every_hook_takes():
    instrument("llama_index")
    try:
        assert set(LlamaIndexInstrumentor().states.values()) == {HookState.TAKEN}
    finally:
        uninstrument("llama_index")


async def test_all_that_was_wrapped_is_given_back(assembly_telemetry):
    before = [dict(vars(owner)) for owner in OWNERS]
    with assembly_telemetry.as_default():
        instrument("llama_index")
        try:

            class LateModel(Scripted):
                async def astream_chat(self, *arguments: Any, **kwargs: Any) -> Any:
                    return await super().astream_chat(*arguments, **kwargs)

            agent = FunctionAgent(llm=LateModel(Stage(), "Done."))
            await agent.run("Go", memory=Newest())
            assert [dict(vars(owner)) for owner in OWNERS] != before
        finally:
            uninstrument("llama_index")
    assert [dict(vars(owner)) for owner in OWNERS] == before
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    await agent.run("Go again")
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1


async def test_agents_that_were_built_before_are_seen(assembly_telemetry):
    agent = FunctionAgent(llm=Scripted(Stage(), "Done."))
    memory = Newest(messages=history(3))
    with assembly_telemetry.as_default():
        instrument("llama_index")
        try:
            await agent.run("Go", memory=memory)
        finally:
            uninstrument("llama_index")
    assert assembly_telemetry.span("assemble_context").attributes["assembly.dropped.count"] == 4


@pytest.mark.parametrize(
    ("module", "breaks"),
    [("calls", "invoking_agent_of"), ("calls", "schemas_of"), ("calls", "model_of"), ("reducers", "policy_name")],
)
async def test_what_fails_of_ours_is_not_felt(monkeypatch, module, breaks):
    import otel_assembly.instrumentation.llama_index.calls as calls
    import otel_assembly.instrumentation.llama_index.reducers as reducers

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr({"calls": calls, "reducers": reducers}[module], breaks, broken)
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        instrument("llama_index")
        try:
            memory = Memory.from_defaults(token_limit=50, token_flush_size=10)
            agent = FunctionAgent(llm=Scripted(Stage(), "Done."), streaming=False)
            for _ in range(3):
                assert str(await agent.run("Go on and on", memory=memory)) == "Done."
            engine = SimpleChatEngine.from_defaults(llm=Scripted(Stage(), "Done."), memory=memory)
            assert "".join([token async for token in (await engine.astream_chat("Go")).async_response_gen()]) == "Done."
        finally:
            uninstrument("llama_index")
    assert telemetry.metric("assembly.telemetry.errors") > 0
    telemetry.shutdown()


def test_nothing_of_llama_index_is_imported_for_it(imported):
    assert imported("llama_index", "llama_index", "workflows") == []


def test_every_hook_takes_of_a_program_that_imports_llama_index_afterwards(run_program):
    program = (
        "import otel_assembly.instrumentation as i; i.instrument('llama_index'); import workflows;"
        "import sys; print('llama_index.core' in sys.modules);"
        "import llama_index.core.chat_engine, llama_index.core.agent.workflow;"
        "from otel_assembly.instrumentation import LlamaIndexInstrumentor;"
        "print({state.value for state in LlamaIndexInstrumentor().states.values()})"
    )
    assert run_program(sys.executable, "-c", program).stdout.split("\n")[:2] == ["False", "{'taken'}"]


def test_the_lost_request_is_explained_from_the_traces_of_an_unmodified_agent(explained):
    said, lost = explained("llama_index", turn=5)
    assert said[1] == "guide: Take the lift behind the desk."
    assert said[5] == "guide: Take the stairs on the left."
    assert "chat_memory_buffer (policy 0), over_budget" in lost


def test_the_plug_in_s_example_keeps_the_request(kept):
    assert kept("llama_index").startswith("All ten.")
