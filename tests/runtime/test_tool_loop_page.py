"""The programs of the page on tool loops run as they stand, in front of a server that answers as OpenAI does."""

from __future__ import annotations

import asyncio
import io
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
from providers import TOO_LONG_FOR_OPENAI, Provider, completion, function_call

from otel_assembly import uninstrument

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tool-loop.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))

pytest.importorskip("openai", reason="not installed: python -m pip install --group dev")


async def run(name, *answers):
    """Run a program in a thread, and return its output and its requests; in a process, it would import the client."""
    async with Provider(*answers) as server:
        out, err = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "key"}),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                await asyncio.to_thread(exec, PROGRAMS[name], {"__name__": "__main__"})
            finally:
                if "instrument(" in PROGRAMS[name]:
                    uninstrument("openai")
        assert err.getvalue() == ""
        return out.getvalue(), server.requests


def test_every_program_of_the_page_is_run():
    assert set(PROGRAMS) == {"tool_loop", "sync_loop", "own_trimming", "refused"}
    assert PAGE.count("```python") == len(PROGRAMS)


async def test_the_synchronous_loop_calls_the_tool_and_answers():
    asked = completion(None, [function_call("a", '{"flight": "KE081"}', "find_bag")])
    out, requests = await run("sync_loop", asked, completion("At gate 14."))
    assert out == "At gate 14.\n"
    assert [message["role"] for message in requests[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert requests[1]["messages"][-1]["content"] == "The bag of KE081 is at gate 14."


async def test_the_loop_that_records_its_trimming_sends_the_newest_messages():
    answers = [completion(f"Answer {number}.") for number in range(5)]
    out, requests = await run("own_trimming", *answers)
    assert out.splitlines() == [f"Answer {number}." for number in range(5)]
    assert [len(request["messages"]) for request in requests] == [1, 3, 5, 6, 6]


async def test_the_loop_calls_the_tool_and_answers():
    calls = [("a", '{"flight": "KE081"}'), ("b", '{"fli')]
    asked = completion(None, [function_call(*call, "find_bag") for call in calls])
    out, requests = await run("tool_loop", asked, completion("At gate 14."))
    assert out == "At gate 14.\n"
    assert [message["role"] for message in requests[1]["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert [message["content"] for message in requests[1]["messages"][-2:]] == [
        "The bag of KE081 is at gate 14.",
        "wrong arguments: JSONDecodeError",
    ]


@pytest.mark.slow
async def test_the_guard_stops_a_loop_that_goes_round():
    again = [completion(None, [function_call(f"c{n}", '{"flight": "KE081"}', "find_bag")]) for n in range(20)]
    out, requests = await run("tool_loop", *again)
    assert out.startswith("stopped by ")
    assert len(requests) < 20


@pytest.mark.slow
async def test_a_prompt_that_was_refused_is_sent_shorter():
    out, (first, second) = await run("refused", TOO_LONG_FOR_OPENAI["openai"][0], completion("Done."))
    assert out == "refused: 10383 tokens, and the model takes 8192\nDone.\n"
    assert len(str(second["messages"])) <= 0.8 * len(str(first["messages"]))
