"""The Kubernetes manifests: built with kustomize, held against the API's types, and each pod's Collector started.

There is no cluster here: what a pod is given (arguments, environment, files) is given to a process, on loopback.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import time
import urllib.request
from uuid import uuid4

import msgspec
import pytest
import yaml
from fleet import TOKEN, make_certificates
from local_stack import COLLECTORS, LOOPBACK, Collector, find_go, stop_all, wait_until
from local_stack.builds import MODULES

KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.5.0"
CONFIG, TLS = "/etc/otelcol", "/etc/otelcol-tls"
TIERS = ("otel-agent", "otel-gateway", "otel-gateway-sampler")
BYTES = {"Mi": 1024**2, "MiB": 1024**2, "Gi": 1024**3}


@pytest.fixture(scope="module")
def objects():
    """Everything that `kubectl apply -k collectors` would send, by kind and name."""
    tool = ["kubectl", "kustomize"] if shutil.which("kubectl") else [find_go(), "run", KUSTOMIZE, "build"]
    built = subprocess.run([*tool, str(COLLECTORS)], capture_output=True, text=True, check=True, timeout=300)
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(built.stdout)}
    assert len(found) == built.stdout.count("\nkind: ")
    return found


def workload(objects, tier):
    (found,) = (each for (kind, name), each in objects.items() if name == tier and kind in ("DaemonSet", "StatefulSet"))
    return found


def pod(objects, tier):
    return workload(objects, tier)["spec"]["template"]["spec"]


def container(objects, tier):
    (only,) = pod(objects, tier)["containers"]
    return only


def environment(objects, tier):
    """What a pod's container finds in its environment; of a secret its own name."""
    found = {}
    for source in container(objects, tier).get("envFrom", ()):
        found |= objects["ConfigMap", source["configMapRef"]["name"]]["data"]
    for variable in container(objects, tier)["env"]:
        secret = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = f"secret {secret['name']}" if secret else variable["value"]
    return found


def config_files(objects, tier):
    """The files of its configuration, by their names."""
    (volume,) = (volume for volume in pod(objects, tier)["volumes"] if volume["name"] == "config")
    return objects["ConfigMap", volume["configMap"]["name"]]["data"]


def read_by(text):
    return set(re.findall(r"\$\{env:(\w+)", text))


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(\w+)", quantity).groups()
    return int(number) * BYTES[unit]


def of_the_api(each):
    """The object, read as the type of the API that it says to be: what is no field of that is gone."""
    group, _, version = each["apiVersion"].rpartition("/")
    module = importlib.import_module(f"lightkube.models.{group.partition('.')[0] or 'core'}_{version}")
    return msgspec.to_builtins(msgspec.convert(each, getattr(module, each["kind"])))


def test_every_object_is_made_of_fields_of_the_api(objects):
    kinds = [kind for kind, _ in objects]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "Namespace": 1,
        "ConfigMap": 4,
        "Service": 3,
        "DaemonSet": 1,
        "StatefulSet": 2,
        "PodDisruptionBudget": 2,
        "NetworkPolicy": 1,
        "Role": 1,
        "RoleBinding": 1,
    }
    for each in objects.values():
        assert of_the_api(each) == each
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "observability"


@pytest.mark.parametrize("broken", ["unknown", "of another type", "missing"])
def test_a_field_that_the_api_would_refuse_is_found(objects, broken):
    each = json.loads(json.dumps(workload(objects, "otel-gateway")))
    if broken == "unknown":
        each["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {"periodSeconds": 1}
        assert of_the_api(each) != each
        return
    if broken == "missing":
        del each["spec"]["selector"]
    else:
        each["spec"]["replicas"] = "2"
    with pytest.raises(msgspec.ValidationError):
        of_the_api(each)


@pytest.mark.parametrize("tier", TIERS)
def test_a_pod_runs_the_shipped_files_of_the_release_that_is_tested(objects, tier):
    version = yaml.safe_load((MODULES / "collector" / "builder.yaml").read_text())["dist"]["version"]
    assert container(objects, tier)["image"] == f"otel/opentelemetry-collector-contrib:{version}"
    files = config_files(objects, tier)
    for name, text in files.items():
        folder = COLLECTORS / "kubernetes" if name == "resolver.yaml" else COLLECTORS
        assert text == (folder / name).read_text()
    options, paths = container(objects, tier)["args"][::2], container(objects, tier)["args"][1::2]
    assert set(options) == {"--config"}
    assert paths == [f"{CONFIG}/{name}" for name in files]


@pytest.mark.parametrize("tier", TIERS)
def test_every_variable_of_a_pod_is_read_by_its_configuration(objects, tier):
    read = read_by("\n".join(config_files(objects, tier).values()))
    (settings,) = (each["data"] for (kind, name), each in objects.items() if "settings" in name)
    # The two tiers share their settings: not each reads all of them.
    unread = environment(objects, tier).keys() - read - {"GOMEMLIMIT"}
    assert unread <= settings.keys()
    both = {name for tier in TIERS[1:] for name in read_by("\n".join(config_files(objects, tier).values()))}
    assert settings.keys() <= both


def test_the_secrets_that_pods_want_are_those_that_the_kustomization_tells_to_make(objects):
    told = (COLLECTORS / "kustomization.yaml").read_text()
    wanted = set()
    for tier in TIERS:
        wanted |= {value for value in environment(objects, tier).values() if value.startswith("secret ")}
        wanted |= {f"secret {v['secret']['secretName']}" for v in pod(objects, tier)["volumes"] if "secret" in v}
    assert wanted == {"secret otel-gateway-token", "secret otel-gateway-tls"}
    for secret in wanted:
        assert secret.removeprefix("secret ") in told
    # The key of the gateway is not on every node.
    (volume,) = (volume for volume in pod(objects, "otel-agent")["volumes"] if volume["name"] == "tls")
    assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


@pytest.mark.parametrize("tier", TIERS)
def test_services_and_probes_lead_to_ports_that_the_collector_listens_on(objects, tier):
    text = "\n".join(config_files(objects, tier).values())
    listening = {int(port) for port in re.findall(r"LISTEN_HOST:-[\d.]+\}:\$\{env:\w+_PORT:-(\d+)\}", text)}
    listening |= {int(port) for port in re.findall(r"port: \$\{env:\w+_PORT:-(\d+)\}", text)}
    ports = {port["name"]: port["containerPort"] for port in container(objects, tier)["ports"]}
    assert set(ports.values()) == listening
    assert environment(objects, tier)["LISTEN_HOST"] == "0.0.0.0"
    service = objects["Service", tier]["spec"]
    labels = workload(objects, tier)["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert {port["targetPort"] for port in service["ports"]} <= ports.keys()
    assert {port["port"] for port in service["ports"]} == {ports[port["targetPort"]] for port in service["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert ports[container(objects, tier)[probe]["httpGet"]["port"]] == 13133


def test_each_tier_is_told_the_name_of_the_next(objects):
    assert environment(objects, "otel-agent")["GATEWAY_ENDPOINT"] == "otel-gateway:4317"
    gateway = environment(objects, "otel-gateway")
    assert gateway["SAMPLER_SERVICE"] == gateway["SAMPLER_SERVER_NAME"] == "otel-gateway-sampler"
    assert objects["Service", "otel-gateway-sampler"]["spec"]["clusterIP"] == "None"
    assert objects["Service", "otel-agent"]["spec"]["internalTrafficPolicy"] == "Local"


@pytest.mark.parametrize("tier", TIERS)
def test_the_collector_refuses_before_its_container_is_killed(objects, tier):
    given = environment(objects, tier)
    limiter, soft = int(given["MEMORY_LIMIT_MIB"]) * BYTES["Mi"], bytes_of(given["GOMEMLIMIT"])
    assert limiter < soft < bytes_of(container(objects, tier)["resources"]["limits"]["memory"])


@pytest.mark.parametrize("tier", TIERS)
def test_all_queues_together_fit_onto_the_volume(objects, tier):
    text = next(iter(config_files(objects, tier).values()))
    pipelines = yaml.safe_load(text)["service"]["pipelines"]
    # An exporter has a queue for each signal.
    queues = {(name, signal.partition("/")[0]) for signal, each in pipelines.items() for name in each["exporters"]}
    (default,) = set(re.findall(r"QUEUE_BYTES:-(\d+)", text))
    spec = workload(objects, tier)["spec"]
    if "volumeClaimTemplates" in spec:
        (claim,) = spec["volumeClaimTemplates"]
        room = bytes_of(claim["spec"]["resources"]["requests"]["storage"])
        assert claim["metadata"]["name"] == "data"
    else:
        (volume,) = (volume for volume in pod(objects, tier)["volumes"] if volume["name"] == "data")
        room = bytes_of(volume["emptyDir"]["sizeLimit"])
    assert len(queues) * int(default) < room
    (mount,) = (mount for mount in container(objects, tier)["volumeMounts"] if mount["name"] == "data")
    assert mount["mountPath"] == environment(objects, tier)["DATA_DIR"]


@pytest.mark.parametrize("tier", TIERS)
def test_a_pod_keeps_the_restricted_standard(objects, tier):
    labels = objects["Namespace", "observability"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    spec, only = pod(objects, tier), container(objects, tier)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(volume.keys() & {"configMap", "secret", "emptyDir"} for volume in spec["volumes"])
    assert spec["automountServiceAccountToken"] is False


@pytest.fixture(scope="module")
def pods(objects, programs, tmp_path_factory, stack):
    """A pod's Collector of each tier, with the pod's files, arguments and environment; only addresses are others."""

    def started(tier, **addresses):
        folder = tmp_path_factory.mktemp(tier)
        for name, text in config_files(objects, tier).items():
            (folder / name).write_text(text)
        given = {name: value.replace(TLS, str(secrets)) for name, value in environment(objects, tier).items()}
        given |= {"LISTEN_HOST": LOOPBACK, "DATA_DIR": str(folder / "data")}
        given |= {name: TOKEN for name, value in given.items() if value == "secret otel-gateway-token"}
        collector = Collector(programs, COLLECTORS / "agent.yaml", folder, given | addresses, name=tier)
        arguments = [part.replace(CONFIG, str(folder)) for part in container(objects, tier)["args"]]
        collector.command = [str(programs["otelcol"]), *arguments]
        running.append(collector)
        collector.start()
        return collector

    running = []
    secrets = make_certificates(tmp_path_factory.mktemp("secrets") / "tls")
    try:
        backends = {"JAEGER_ENDPOINT": stack.jaeger.otlp, "PROMETHEUS_ENDPOINT": stack.prometheus.otlp}
        sampler = started("otel-gateway-sampler", **backends)
        port = sampler.settings["OTLP_GRPC_PORT"]
        gateway = started(
            "otel-gateway", SAMPLER_SERVICE=LOOPBACK, SAMPLER_PORT=port, SAMPLER_SERVER_NAME="localhost", **backends
        )
        yield started("otel-agent", GATEWAY_ENDPOINT=gateway.otlp_grpc)
    finally:
        stop_all(running)


def test_a_span_goes_from_a_node_through_both_tiers_to_jaeger(pods, stack):
    service, trace, span = f"kubernetes-{uuid4().hex[:8]}", uuid4().hex, uuid4().hex[:16]
    now = time.time_ns()
    written = {
        "traceId": trace,
        "spanId": span,
        "name": "assemble_context",
        "startTimeUnixNano": str(now),
        "endTimeUnixNano": str(now + 1_000_000),
        "attributes": [{"key": "assembly.overflowed", "value": {"boolValue": True}}],
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": [written]}]}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{pods.otlp_http}/v1/traces", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=30).close()

    def arrived():
        found = stack.jaeger.get(f"/api/traces?service={service}")["data"] or []
        return [(each["traceID"], [span["spanID"] for span in each["spans"]]) for each in found]

    wait_until(lambda: arrived() == [(trace, [span])], seconds=60, what="the span in Jaeger")
