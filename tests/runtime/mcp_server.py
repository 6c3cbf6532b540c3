"""A real MCP server for the tests: over its standard streams, or by HTTP on a port that it is given."""

from __future__ import annotations

import os
import sys
import time

from mcp.types import CallToolResult, ToolAnnotations

PORTS = [int(port) for port in sys.argv[1:]]
try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # releases below 2
    from mcp.server.fastmcp import FastMCP
    from mcp.server.fastmcp.exceptions import ToolError

    server, where = FastMCP("kitchen", log_level="ERROR", **({"port": PORTS[0]} if PORTS else {})), {}
else:
    server, where = MCPServer("kitchen", log_level="ERROR"), {"port": PORTS[0]} if PORTS else {}


def hints(**given):
    """Annotations of a tool; their fields have other names in releases below 2, and the same aliases."""
    return ToolAnnotations.model_validate(given)


@server.tool(annotations=hints(readOnlyHint=True))
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@server.tool(annotations=hints(idempotentHint=True))
def burn() -> str:
    """Always fails."""
    raise ToolError("it is burnt")


@server.tool(annotations=hints(idempotentHint=False))
def die() -> str:
    """The whole server dies."""
    os._exit(3)


@server.tool()
def sleep() -> str:
    """Takes long."""
    time.sleep(600)
    return "awake"


@server.tool()
def weigh() -> CallToolResult:
    """Answers with data and no text."""
    return CallToolResult.model_validate({"content": [], "structuredContent": {"grams": 250}})


@server.tool(name="3d_print")
def print_it() -> str:
    """Has a name that begins with a digit."""
    return "printed"


if __name__ == "__main__":
    server.run("streamable-http" if PORTS else "stdio", **where)
