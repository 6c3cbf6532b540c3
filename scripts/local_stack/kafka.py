"""A Kafka broker of one node, for what is tested between the tiers; fetched with Maven, run without Docker."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from local_stack.maven import jars
from local_stack.processes import LOOPBACK, Server, free_port

if TYPE_CHECKING:
    from pathlib import Path

#: Anything of 22 characters of base64 will do: it tells one cluster's folder from another's.
_CLUSTER: Final = "b3RlbC1hc3NlbWJseS1vbg"
_READY: Final = b"Kafka Server started"


def _jars() -> str:
    folder = jars("kafka", program="java", package="a JRE of Java 17 or later", megabytes=43)
    return f"{folder}/*"


class Kafka(Server):
    """One broker that is its own controller; what it holds outlives ``stop`` and ``kill``."""

    def __init__(self, folder: Path, *, partitions: int = 4, max_message_bytes: int = 16 * 1024 * 1024) -> None:
        self.port = free_port()
        self._controller_port = free_port()
        self._partitions = partitions
        self._max_message_bytes = max_message_bytes
        self._java = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", _jars()]
        self._seen = 0
        super().__init__(
            "kafka",
            [
                *self._java[:1],
                # Half a gibibyte holds a few hundred thousand spans; its own default takes a quarter of the machine.
                "-Xmx512m",
                # The line that says that it is up.
                "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
                *self._java[1:],
                "kafka.Kafka",
                folder / "server.properties",
            ],
            folder=folder,
            ready=self._is_ready,
            seconds=120,
        )

    @property
    def address(self) -> str:
        """``host:port``, for ``KAFKA_BROKERS``."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it takes connections; the first time, prepare its folder.

        Raises:
            RuntimeError: it ended, or was not ready in time; the message ends with its log.
        """
        if not (self.folder / "server.properties").exists():
            self._prepare()
        if not self.running:
            self._seen = self._times_ready()
        super().start()

    def stored(self, topic: str) -> dict[int, int]:
        """How many bytes each partition of a topic holds."""
        folders = (self.folder / "kafka-data").glob(f"{topic}-*")
        return {
            int(folder.name.removeprefix(f"{topic}-")): sum(log.stat().st_size for log in folder.glob("*.log"))
            for folder in folders
        }

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        written = self.folder / "server.properties.new"
        written.write_text(
            "\n".join(
                [
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@{LOOPBACK}:{self._controller_port}",
                    f"listeners=PLAINTEXT://{self.address},CONTROLLER://{LOOPBACK}:{self._controller_port}",
                    f"advertised.listeners=PLAINTEXT://{self.address}",
                    "controller.listener.names=CONTROLLER",
                    f"log.dirs={self.folder / 'kafka-data'}",
                    f"num.partitions={self._partitions}",
                    f"message.max.bytes={self._max_message_bytes}",
                    # One node: the defaults ask for three.
                    "offsets.topic.replication.factor=1",
                    "offsets.topic.num.partitions=1",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    # The first member of a group would wait three seconds for others.
                    "group.initial.rebalance.delay.ms=0",
                    "",
                ]
            )
        )
        self._tool("kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", str(written))
        written.rename(self.folder / "server.properties")

    def _tool(self, *command: str) -> str:
        done = subprocess.run([*self._java, *command], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
        return done.stdout

    def _is_ready(self) -> bool:
        return self._times_ready() > self._seen

    def _times_ready(self) -> int:
        # A port that takes connections is not yet a broker that answers.
        return self.log.read_bytes().count(_READY) if self.log.exists() else 0
