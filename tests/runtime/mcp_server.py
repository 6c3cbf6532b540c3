"""A real MCP server for the tests: over its standard streams, or by HTTP on a port that it is given."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.fastmcp import FastMCP
from mcp.types import CallToolResult

server = FastMCP("kitchen", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, log_level="ERROR")


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@server.tool()
def burn() -> str:
    """Always fails."""
    raise ValueError("it is burnt")


@server.tool()
def die() -> str:
    """The whole server dies."""
    os._exit(3)


@server.tool()
def sleep() -> str:
    """Takes long."""
    time.sleep(30)
    return "awake"


@server.tool()
def weigh() -> CallToolResult:
    """Answers with data and no text."""
    return CallToolResult(content=[], structuredContent={"grams": 250})


@server.tool(name="3d_print")
def print_it() -> str:
    """Has a name that begins with a digit."""
    return "printed"


if __name__ == "__main__":
    server.run("streamable-http" if len(sys.argv) > 1 else "stdio")
