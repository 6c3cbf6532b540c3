"""A real MCP server for the tests: over its standard streams, or by HTTP on a port that it is given."""

from __future__ import annotations

import os
import sys
import time

from mcp.types import CallToolResult

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


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@server.tool()
def burn() -> str:
    """Always fails."""
    raise ToolError("it is burnt")


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
    return CallToolResult.model_validate({"content": [], "structuredContent": {"grams": 250}})


@server.tool(name="3d_print")
def print_it() -> str:
    """Has a name that begins with a digit."""
    return "printed"


if __name__ == "__main__":
    server.run("streamable-http" if PORTS else "stdio", **where)
