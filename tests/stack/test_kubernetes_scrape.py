"""How Prometheus scrapes the Collectors of a cluster: the real one, on an API that lists pods as Kubernetes does."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from local_stack import COLLECTORS, Prometheus, wait_until

ADDRESS = "    kubernetes_sd_configs:\n      - role: pod\n"


def pod(kind, name, node, port, *, phase="Running", namespace="observability"):
    """A pod of a tier's manifest, as the API lists it; its Collector answers at a port of this machine."""
    file = {"otel-agent": "agent", "otel-gateway": "balancer", "otel-gateway-sampler": "sampler"}[kind]
    made = next(yaml.safe_load_all((COLLECTORS / "kubernetes" / f"{file}.yaml").read_text()))
    template = made["spec"]["template"]
    spec = template["spec"] | {"nodeName": node}
    for each in spec["containers"][0]["ports"]:
        each["containerPort"] = port if each["name"] == "metrics" else 1
    owner = {"apiVersion": "apps/v1", "kind": made["kind"], "name": kind, "uid": "1", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"]
        | {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "ownerReferences": [owner]},
        "spec": spec,
        "status": {"phase": phase, "podIP": "127.0.0.1", "hostIP": "127.0.0.1"},
    }


class Cluster(ThreadingHTTPServer):
    """Lists its pods to whoever asks, and tells whoever watches of each that goes."""

    daemon_threads = True

    def __init__(self, pods):
        self.pods = {each["metadata"]["name"]: each for each in pods}
        self.asked = set()
        self.watching = []
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def remove(self, name):
        gone = self.pods.pop(name)
        gone["metadata"]["resourceVersion"] = "2"
        for watcher in self.watching:
            watcher.put({"type": "DELETED", "object": gone})


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # the name that the server calls
        address = urlsplit(self.path)
        asked = parse_qs(address.query)
        self.server.asked.add(address.path)
        if "sendInitialEvents" in asked:
            return self._json(400, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400})
        if "watch" not in asked:
            listed = {"metadata": {"resourceVersion": "1"}, "items": list(self.server.pods.values())}
            return self._json(200, {"kind": "PodList", "apiVersion": "v1"} | listed)
        self.server.watching.append(events := queue.Queue())
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            line = json.dumps(events.get()).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()

    def _json(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def cluster(stack):
    port = int(stack.collector.own_metrics.rpartition(":")[2])
    pods = [
        pod("otel-agent", "otel-agent-x7k2p", "node-1", port),
        pod("otel-gateway", "otel-gateway-0", "node-1", port),
        pod("otel-gateway", "otel-gateway-1", "node-2", port),
        pod("otel-gateway-sampler", "otel-gateway-sampler-0", "node-2", port),
        pod("otel-gateway-sampler", "otel-gateway-sampler-1", "node-1", port, phase="Failed"),
    ]
    with Cluster(pods) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def test_each_pod_is_a_target_by_a_name_that_outlives_it_and_one_that_is_gone_alerts(
    programs, stack, cluster, tmp_path
):
    prometheus = Prometheus(programs, tmp_path, evaluation_interval="1s")
    folder = tmp_path / "collectors" / "prometheus"
    shipped = (folder / "kubernetes.yaml").read_text()
    assert shipped.count(ADDRESS) == 1
    (folder / "kubernetes.yaml").write_text(shipped.replace(ADDRESS, f'{ADDRESS}        api_server: "{cluster.url}"\n'))
    config = (folder / "prometheus.yaml").read_text().replace("scrape_interval: 15s", "scrape_interval: 1s")
    (folder / "prometheus.yaml").write_text(f"{config}\nscrape_config_files: [kubernetes.yaml]\n")
    prometheus.start()
    try:
        up = 'up{job="assembly-stack",component="collector"}'

        def answering():
            return {(each["metric"]["tier"], each["metric"]["instance"]) for each in prometheus.query(f"{up} == 1")}

        tiers = {
            ("otel-agent", "node-1"),
            ("otel-gateway", "otel-gateway-0"),
            ("otel-gateway", "otel-gateway-1"),
            ("otel-gateway-sampler", "otel-gateway-sampler-0"),
        }
        wait_until(lambda: answering() == tiers, seconds=60, what="the four that run")
        assert cluster.asked == {"/api/v1/namespaces/observability/pods"}
        assert not prometheus.query('ALERTS{alertname="AssemblyCollectorDown"}')
        cluster.remove("otel-gateway-1")
        cluster.remove("otel-agent-x7k2p")

        def pending():
            # It fires after five minutes of this.
            alerts = prometheus.query('ALERTS{alertname="AssemblyCollectorDown",alertstate="pending"}')
            return {each["metric"]["instance"] for each in alerts}

        assert wait_until(pending, seconds=60, what="the alert on the pod that is gone") == {"otel-gateway-1"}
        assert prometheus.query(f'{up[:-1]},instance="otel-gateway-1"}}') == []
    finally:
        prometheus.stop()
