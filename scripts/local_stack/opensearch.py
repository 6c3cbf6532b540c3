"""An OpenSearch of one node, for the storage of a fleet's Jaeger; from Maven, without Docker."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from local_stack.builds import MODULES
from local_stack.maven import jars
from local_stack.processes import LOOPBACK, Server, answers, free_port

if TYPE_CHECKING:
    from pathlib import Path

_NODE: Final = MODULES / "opensearch" / "OpenSearchNode.java"


def _jars() -> str:
    folder = jars("opensearch", program="javac", package="a JDK of Java 17 or later", megabytes=53)
    return f"{folder}/*"


class OpenSearch(Server):
    """One node without security, so that anybody on this machine may read and write it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        super().__init__(
            "opensearch",
            [
                "java",
                "-Xms512m",
                "-Xmx512m",
                "-cp",
                _jars(),
                _NODE,
                folder / "opensearch-data",
                str(self.port),
                str(free_port()),
            ],
            folder=folder,
            ready=lambda: answers(f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"),
            seconds=180,
        )

    @property
    def url(self) -> str:
        """Its API."""
        return f"http://{LOOPBACK}:{self.port}"

    def get(self, path: str) -> Any:
        """What its API answers, decoded."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)
