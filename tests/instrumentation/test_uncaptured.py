"""The log line at the end of a process that calls models and records no assembly, with the providers' own clients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

HINT = "recorded no assembly"
NOWHERE = "http://127.0.0.1:9"

PRELUDE = f"""
import asyncio, contextlib, os
import otel_assembly
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
otel_assembly.instrument()
quietly = contextlib.suppress(Exception)
messages = [{{"role": "user", "content": "Good morning"}}]

def openai_client(kind="OpenAI"):
    import openai
    return getattr(openai, kind)(base_url="{NOWHERE}/v1", api_key="none", max_retries=0)

def chat(client):
    with quietly:
        return client.chat.completions.create(model="gpt-4o", messages=messages)

async def achat(client, **settings):
    with quietly:
        return await client.chat.completions.create(model="gpt-4o", messages=messages, **settings)
"""


#: The clients are not instrumented, so that no assembly is recorded of their calls.
WITHOUT_CLIENTS = ",".join(
    f"otel_assembly_{client}"
    for client in ("openai", "anthropic", "google_genai", "litellm", "botocore", "groq", "ollama")
)


def stderr_of(program, **environment):
    """What a process with this program writes to its standard error."""
    environment = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": WITHOUT_CLIENTS, **environment}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    return done.stderr


CALLS = {
    "openai": "chat(openai_client())",
    "openai async streamed": "asyncio.run(achat(openai_client('AsyncOpenAI'), stream=True))",
    "openai responses": "with quietly: openai_client().responses.create(model='gpt-4o', input='Good morning')",
    "anthropic": f"""
import anthropic
with quietly:
    anthropic.Anthropic(base_url="{NOWHERE}", api_key="none", max_retries=0).messages.create(
        model="claude-sonnet-4-5", max_tokens=9, messages=messages)
""",
    "google-genai": f"""
from google import genai
client = genai.Client(api_key="none", http_options={{"base_url": "{NOWHERE}"}})
with quietly:
    client.models.generate_content(model="gemini-2.5-flash", contents="Good morning")
""",
    "google-genai async streamed": f"""
from google import genai
client = genai.Client(api_key="none", http_options={{"base_url": "{NOWHERE}"}})
async def main():
    with quietly:
        async for _ in await client.aio.models.generate_content_stream(model="gemini-2.5-flash", contents="Hi"):
            pass
asyncio.run(main())
""",
    "groq": f"""
import groq
with quietly:
    groq.Groq(base_url="{NOWHERE}", api_key="none", max_retries=0).chat.completions.create(model="m", messages=messages)
""",
    "ollama": f"""
import ollama
with quietly:
    ollama.Client(host="{NOWHERE}").chat(model="m", messages=messages)
""",
    "bedrock-runtime": f"""
import botocore.session
from botocore.config import Config
client = botocore.session.get_session().create_client(
    "bedrock-runtime", endpoint_url="{NOWHERE}", region_name="eu-west-1", aws_access_key_id="none",
    aws_secret_access_key="none", config=Config(retries={{"max_attempts": 0}}))
with quietly:
    client.converse(modelId="anthropic.claude", messages=[{{"role": "user", "content": [{{"text": "Good morning"}}]}}])
""",
}


#: The calls that are tested each time alone, and together in one process, which takes seconds to import the clients.
ALONE, TOGETHER = ("openai",), ("openai", "anthropic", "google-genai", "ollama", "bedrock-runtime")


@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=() if call in ALONE else pytest.mark.slow) for call in CALLS]
)
def test_a_process_that_calls_a_client_and_records_nothing_logs_one_line(call):
    written = stderr_of(CALLS[call] + "\n" + CALLS[call])
    assert written.count(HINT) == 1
    assert f"({call.split()[0]})" in written
    assert "OTEL_ASSEMBLY_UNCAPTURED_HINT=false" in written


LITELLM = f"""
import os
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches the map
from litellm import acompletion, anthropic_messages, completion, embedding, responses, token_counter
to_openai = dict(model="openai/gpt-4o", api_base="{NOWHERE}/v1", api_key="none", num_retries=0)
to_anthropic = dict(model="anthropic/claude-sonnet-4-5", api_base="{NOWHERE}", api_key="none", num_retries=0)

async def awaited(call, **given):
    with quietly:
        await call(messages=messages, **given)
"""

needs_litellm = pytest.mark.skipif(
    find_spec("litellm") is None, reason="litellm is not installed: python -m pip install --group dev"
)


@pytest.mark.parametrize(
    "more", [None, pytest.param("litellm", marks=[pytest.mark.slow, needs_litellm])], ids=["without litellm", "litellm"]
)
def test_a_process_that_calls_several_clients_logs_one_line_that_names_each(more):
    calls, named = [CALLS[call] for call in TOGETHER], {*TOGETHER}
    if more:
        calls.append(LITELLM + "with quietly: completion(messages=messages, **to_anthropic)")
        named.add("litellm")
    written = stderr_of("\n".join(calls))
    assert written.count(HINT) == 1
    assert {*re.search(r"called a model \((.*?)\)", written)[1].split(", ")} == named


@pytest.mark.slow
@needs_litellm
@pytest.mark.parametrize(
    "call",
    [
        pytest.param("with quietly: completion(messages=messages, **to_openai)", id="completion"),
        pytest.param("with quietly: list(completion(messages=messages, stream=True, **to_openai))", id="streamed"),
        pytest.param("asyncio.run(awaited(acompletion, **to_openai))", id="awaited"),
        pytest.param("with quietly: completion(messages=messages, **to_anthropic)", id="without a provider's client"),
        pytest.param("with quietly: responses(input='Hi', **to_openai)", id="responses"),
        pytest.param("asyncio.run(awaited(anthropic_messages, max_tokens=9, **to_anthropic))", id="messages"),
    ],
)
def test_a_process_that_calls_a_model_by_litellm_logs_one_line(call):
    """Some of its calls go through OpenAI's client, which is then named as well."""
    written = stderr_of(LITELLM + call)
    assert written.count(HINT) == 1
    assert "(litellm" in written


@pytest.mark.slow
@needs_litellm
def test_litellm_logs_no_line_if_no_model_is_called():
    embeds = "with quietly: embedding(input=['Hi'], **{**to_openai, 'model': 'openai/text-embedding-3-small'})\n"
    assert HINT not in stderr_of(LITELLM + embeds + "token_counter(model='gpt-4o', messages=messages)")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("openai_client()", id="no call", marks=pytest.mark.slow),
        pytest.param(
            "with quietly: openai_client().embeddings.create(model='text-embedding-3-small', input='Hi')\n"
            "with quietly: openai_client().models.list()",
            id="embeddings and models",
        ),
        pytest.param(CALLS["ollama"] + "\notel_assembly.uninstrument()", id="uninstrumented"),
        pytest.param(
            CALLS["ollama"]
            + """
from otel_assembly import Assembler, Context
asyncio.run(Assembler([]).assemble([], messages, Context()))
""",
            id="an assembly later",
        ),
        pytest.param(
            f"""
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
with quietly:
    Agent(OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url="{NOWHERE}/v1", api_key="none"))).run_sync("Hi")
""",
            id="a framework that is captured",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_line_without_an_uncaptured_call(program):
    assert HINT not in stderr_of(program)


def test_no_line_if_a_variable_turns_it_off():
    assert HINT not in stderr_of(CALLS["ollama"], OTEL_ASSEMBLY_UNCAPTURED_HINT="false")


def test_no_line_if_no_provider_is_configured():
    assert HINT not in stderr_of(
        "import opentelemetry.trace as api\n"
        "api._TRACER_PROVIDER = None\n" + CALLS["ollama"]  # as if nobody had called `set_tracer_provider`
    )


def test_instrumenting_twice_logs_one_line_and_uninstrumenting_restores_the_client():
    written = stderr_of(
        """
import openai._base_client as base
otel_assembly.uninstrument()
before = vars(base.SyncAPIClient)["request"], vars(base.AsyncAPIClient)["request"]
for _ in range(2):
    otel_assembly.instrument()
assert vars(base.SyncAPIClient)["request"] is not before[0]
otel_assembly.uninstrument()
assert (vars(base.SyncAPIClient)["request"], vars(base.AsyncAPIClient)["request"]) == before
otel_assembly.instrument()
chat(openai_client())
"""
    )
    assert written.count(HINT) == 1


FORKS = f"""
import multiprocessing, ollama
client = ollama.Client(host="{NOWHERE}")

def ask():
    with quietly:
        client.chat(model="m", messages=messages)

ask()
for target in (ask, print):  # the first child calls a model, the second is idle
    child = multiprocessing.get_context("fork").Process(target=target)
    child.start(); child.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_reports_its_own_calls():
    assert stderr_of(FORKS).count(HINT) == 2


def test_a_framework_in_use_that_is_not_captured_is_named(tmp_path):
    """A distribution of CrewAI's name, whose agents call OpenAI's client."""
    (tmp_path / "crewai-1.0.dist-info").mkdir()
    (tmp_path / "crewai-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: crewai\nVersion: 1.0\n", encoding="utf-8"
    )
    (tmp_path / "crewai.py").write_text("", encoding="utf-8")
    written = stderr_of(f"import sys\nsys.path.append({str(tmp_path)!r})\nimport crewai\n" + CALLS["openai"])
    assert "crewai" in written
    assert "its agents are not captured" in written
