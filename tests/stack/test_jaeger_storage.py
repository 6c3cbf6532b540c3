"""Jaeger's storages that outlive its process: what an agent left is there after a crash, and is found as before."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import contextmanager
from urllib.error import HTTPError

import grpc
import jaeger_api
import pytest
from jaeger_api import SEARCHES, STORAGE_SEARCHES, SUPPORT_AGENT, search
from local_stack import COLLECTORS, Jaeger, stop_all, wait_until
from local_stack.opensearch import OpenSearch
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from otlp_receiver import receiving

from otel_assembly.cli import main

SERVICE = "stored-support-agent"


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    """What the support agent's exporter sent, to be sent to each Jaeger."""
    with receiving() as receiver:
        endpoint = f"http://127.0.0.1:{receiver.port}"
        jaeger_api.run_agent(tmp_path_factory.mktemp("agent"), SUPPORT_AGENT, endpoint, SERVICE)
    assert len(list(receiver.spans())) == 55
    return receiver.requests


@contextmanager
def stopped_at_last(*servers):
    try:
        yield
    finally:
        stop_all(servers)


def send(jaeger, requests):
    """Jaeger acknowledged all of it."""
    with grpc.insecure_channel(jaeger.otlp) as channel:
        stub = trace_service_pb2_grpc.TraceServiceStub(channel)
        for request in requests:
            answer = stub.Export(request, timeout=30)
            assert not answer.partial_success.rejected_spans


def whole(jaeger):
    """The spans of all its traces, by their ids."""
    return {span["spanID"]: span for trace in search(jaeger, SERVICE) for span in trace["spans"]}


def _count(jaeger):
    try:
        return len(whole(jaeger))
    except HTTPError:  # a new index cannot be asked for its first moments
        return 0


@pytest.mark.parametrize("config", ["memory.yaml", "badger.yaml", "opensearch.yaml"])
def test_a_configuration_passes_jaeger_s_own_check_with_nothing_set(programs, config):
    folder = COLLECTORS / "jaeger"
    command = [programs["jaeger"], "validate", "--config", config]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# Badger


@pytest.fixture(scope="module")
def badger(programs, tmp_path_factory, requests):
    """Killed the very moment in which it acknowledged, and started again."""
    jaeger = Jaeger(programs, tmp_path_factory.mktemp("badger"), config=COLLECTORS / "jaeger" / "badger.yaml")
    with stopped_at_last(jaeger):
        jaeger.start()
        send(jaeger, requests)
        jaeger.kill()
        jaeger.start()
        yield jaeger


def test_what_badger_acknowledged_survives_a_crash_of_jaeger(badger):
    assert len(whole(badger)) == 55
    assert "otel_assembly" in json.dumps(search(badger, SERVICE)[0])


def test_badger_s_searches_find_what_the_guide_says(badger):
    assert jaeger_api.found(badger, SERVICE, SEARCHES) == jaeger_api.expected(SEARCHES)


def test_on_badger_errors_and_events_are_found_by_name(badger):
    assert jaeger_api.found(badger, SERVICE, STORAGE_SEARCHES) == jaeger_api.expected(STORAGE_SEARCHES, "badger")


def test_explain_answers_from_badger(badger, capsys):
    assert main(["explain", "--jaeger", badger.url, "--turn", "9", "--item", "0"]) == 0
    assert "sliding_window" in capsys.readouterr().out


def test_badger_takes_more_after_the_crash_and_forgets_nothing_when_it_is_stopped(badger, requests):
    before = set(whole(badger))
    send(badger, requests)
    badger.stop()
    badger.start()
    assert set(whole(badger)) == before


# OpenSearch


@pytest.fixture(scope="module")
def opensearch(tmp_path_factory):
    if not (shutil.which("javac") and shutil.which("mvn")):
        pytest.skip("no JDK and Maven to run OpenSearch with")
    server = OpenSearch(tmp_path_factory.mktemp("opensearch"))
    with stopped_at_last(server):
        server.start()
        yield server


@pytest.fixture(scope="module")
def fleet(programs, opensearch, tmp_path_factory, requests):
    """Two Jaegers on one OpenSearch: the first one writes and is killed, the second one answers."""
    folder = tmp_path_factory.mktemp("fleet")
    password = folder / "password"
    password.write_text("secret")
    config = COLLECTORS / "jaeger" / "opensearch.yaml"
    # One node holds no replica. The second one logs in, which this OpenSearch does not ask for.
    settings = {"OPENSEARCH_URL": opensearch.url, "JAEGER_REPLICAS": "0"}
    login = {"OPENSEARCH_USER": "jaeger", "OPENSEARCH_PASSWORD_FILE": str(password)}
    writing = Jaeger(programs, folder / "writing", settings, config=config)
    answering = Jaeger(programs, folder / "answering", settings | login, config=config)
    with stopped_at_last(writing, answering):
        writing.start()
        send(writing, requests)
        wait_until(lambda: _count(writing) == 55, seconds=60, what="55 spans in OpenSearch")
        writing.kill()
        answering.start()
        yield answering


def test_one_jaeger_finds_in_opensearch_what_another_one_wrote(fleet):
    assert len(whole(fleet)) == 55


def test_opensearch_s_searches_find_what_the_guide_says(fleet):
    assert jaeger_api.found(fleet, SERVICE, SEARCHES) == jaeger_api.expected(SEARCHES)


def test_on_opensearch_errors_and_events_are_found_by_name(fleet):
    assert jaeger_api.found(fleet, SERVICE, STORAGE_SEARCHES) == jaeger_api.expected(STORAGE_SEARCHES, "opensearch")


def test_explain_answers_from_opensearch(fleet, capsys):
    assert main(["explain", "--jaeger", fleet.url, "--turn", "9", "--item", "0"]) == 0
    assert "sliding_window" in capsys.readouterr().out


def test_an_index_of_opensearch_is_named_and_shared_out_as_the_settings_say(opensearch, fleet):
    indices = opensearch.get("/_cat/indices?format=json")
    spans = [index for index in indices if index["index"].startswith("assembly-jaeger-span-")]
    assert [(index["pri"], index["rep"], index["docs.count"]) for index in spans] != []
    assert {(index["pri"], index["rep"], index["health"]) for index in spans} == {("3", "0", "green")}
