"""The example and the guide's program run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import uuid
from pathlib import Path

from otel_assembly.knowledge import WORKING_MEMORY_PATH, RedisKnowledgeStore

ROOT = Path(__file__).parents[2]


def test_the_next_conversation_knows_what_the_one_before_said(tmp_path):
    def lines(*arguments):
        command = [sys.executable, ROOT / "examples" / "working_memory.py", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    said = lines(tmp_path)
    assert said.count("written by WorkingMemoryAggregate") >= 2  # of turns that end while it runs, one run
    assert said[0] == "I am Ada. | the model is told: []"
    assert "is called Ada" in said[-2]
    assert "prefers trains" in said[-2]
    assert (tmp_path / "memory" / "working.md").read_text() == "- is called Ada\n- prefers trains"
    assert "is called Ada" in lines(tmp_path)[0]


def test_the_program_of_the_guide_runs(redis_server, monkeypatch):
    page = (ROOT / "docs" / "how-to" / "remember-across-conversations.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names = {}
    exec(program, names)
    prefix = f"tests:{uuid.uuid4().hex}"
    # The page's store has the prefix that all have by default.
    names["RedisKnowledgeStore"] = lambda url: RedisKnowledgeStore(url, prefix=prefix)

    async def answer(question):
        return "Noted."

    async def summarize(prompt):
        await asyncio.sleep(0)
        memory = prompt.partition("## Current working memory\n\n")[2].partition("\n\n## New conversation")[0]
        said = re.findall("^user: (.*)$", prompt, re.MULTILINE)
        return "\n".join([*(line for line in memory.splitlines() if line != "(empty)"), *said])

    async def run():
        await names["serve"]([f"question {n}" for n in range(6)], answer, summarize, redis_server.url)
        async with RedisKnowledgeStore(redis_server.url, prefix=prefix) as store:
            return await store.read(WORKING_MEMORY_PATH)

    assert sorted(asyncio.run(run()).splitlines()) == [f"question {n}" for n in range(6)]
