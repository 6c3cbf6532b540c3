"""A desk of a framework, as `python desks.py NAME`: an agent that knows nothing of us, offline, which is asked twice.

The model is one of 8,192 tokens; the second question alone has more. Each desk has the name of its framework.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.framework_agents import AGENTS, Role

QUESTIONS = (
    "Where is my parcel?",
    "Read what I wrote to you, please. " + "The lamp came broken, and the box wet. " * 1_200,
)


async def main(framework: str) -> None:
    """Ask it twice."""
    ask = AGENTS[framework](Role(framework, "gpt-4", 8_192))
    for question in QUESTIONS:
        await ask(question)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
