from __future__ import annotations

import gc
import sys
import warnings
from importlib import import_module
from types import SimpleNamespace

import pytest
from lazy_clients import LazyClients
from provider_server import ProviderServer

from otel_assembly import instrument, uninstrument
from otel_assembly.instrumentation.provider_clients import api_of_operation, api_of_path, request_body
from otel_assembly.telemetry import ContentCapture, TelemetrySettings
from otel_assembly.testing import RecordedTelemetry

NOT_INSTALLED = "not installed: python -m pip install --group dev"


@pytest.fixture
def server(one_authority):
    """A provider's server."""
    server = ProviderServer()
    yield server
    server.close()


class Calls(list):
    """What is read of each model call of a client, at the function that an instrumentation wraps."""

    def begin(self, api, data, path=""):
        call = SimpleNamespace(api=api, request=None, answer=None, collector=None)
        if api is not None:
            call.request, call.collector = api.read_request(data, path), api.collector()
            self.append(call)
        return call

    def read(self, call, answer):
        if call.api is not None:
            call.answer = call.api.read_answer(answer)
        return answer


@pytest.fixture
def calls(monkeypatch):
    """The model calls of the clients that `watch` is called for."""
    return Calls()


@pytest.fixture
def watch(calls, monkeypatch):
    """Return a function that records the calls of a library in `calls`."""

    def watch_library(library):
        module = {"google_genai": "google.genai"}.get(library, library)
        package = pytest.importorskip(module, reason=NOT_INSTALLED)
        if library == "google_genai":
            _watch_genai(calls, monkeypatch)
        elif library == "botocore":
            _watch_botocore(calls, monkeypatch)
        else:
            _watch_http(library, calls, monkeypatch)
        return package

    return watch_library


def _watch_http(library, calls, monkeypatch):
    base = import_module(f"{library}._base_client")
    sync, asynchronous = base.SyncAPIClient.request, base.AsyncAPIClient.request

    def begin(options):
        api = api_of_path(library, options.method, options.url)
        return calls.begin(api, request_body(options.json_data, options.extra_json), options.url)

    def request(self, cast_to, options, *args, **kwargs):
        call = begin(options)
        return calls.read(call, sync(self, cast_to, options, *args, **kwargs))

    async def request_async(self, cast_to, options, *args, **kwargs):
        call = begin(options)
        return calls.read(call, await asynchronous(self, cast_to, options, *args, **kwargs))

    monkeypatch.setattr(base.SyncAPIClient, "request", request)
    monkeypatch.setattr(base.AsyncAPIClient, "request", request_async)


def _watch_genai(calls, monkeypatch):
    client = import_module("google.genai._api_client").BaseApiClient
    sync, asynchronous = client.request, client.async_request
    sync_streamed, async_streamed = client.request_streamed, client.async_request_streamed

    def begin(method, path, body):
        return calls.begin(api_of_path("google_genai", method, path), body, path)

    def request(self, method, path, body, *args, **kwargs):
        return calls.read(begin(method, path, body), sync(self, method, path, body, *args, **kwargs))

    async def async_request(self, method, path, body, *args, **kwargs):
        call = begin(method, path, body)
        return calls.read(call, await asynchronous(self, method, path, body, *args, **kwargs))

    def request_streamed(self, method, path, body, *args, **kwargs):
        call = begin(method, path, body)
        for chunk in sync_streamed(self, method, path, body, *args, **kwargs):
            call.collector.add(chunk)
            yield chunk

    async def async_request_streamed(self, method, path, body, *args, **kwargs):
        call = begin(method, path, body)
        chunks = await async_streamed(self, method, path, body, *args, **kwargs)

        async def collected():
            async for chunk in chunks:
                call.collector.add(chunk)
                yield chunk

        return collected()

    for function in (request, async_request, request_streamed, async_request_streamed):
        monkeypatch.setattr(client, function.__name__, function)


def _watch_botocore(calls, monkeypatch):
    client = import_module("botocore.client").BaseClient
    original = client._make_api_call

    def make_api_call(self, operation, params):
        call = calls.begin(api_of_operation(operation, params), params)
        return calls.read(call, original(self, operation, params))

    monkeypatch.setattr(client, "_make_api_call", make_api_call)


@pytest.fixture
def openai_client(server, watch):
    """A client of OpenAI in front of the server."""
    return watch("openai").OpenAI(api_key="k", base_url=server.url, max_retries=0)


@pytest.fixture
def anthropic_client(server, watch):
    """A client of Anthropic in front of the server."""
    return watch("anthropic").Anthropic(api_key="k", base_url=server.url, max_retries=0)


@pytest.fixture
def gemini_client(server, watch):
    """A client of Gemini in front of the server."""
    yield watch("google_genai").Client(api_key="k", http_options={"base_url": server.url})
    with warnings.catch_warnings():  # releases before 2.0 leave a socket to the garbage collector
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def bedrock(server, watch):
    """A client of Bedrock in front of the server."""
    watch("botocore")
    return (
        import_module("botocore.session")
        .get_session()
        .create_client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=server.url,
            aws_access_key_id="k",
            aws_secret_access_key="s",
        )
    )


@pytest.fixture
def telemetry():
    """The telemetry of a test, with the content of messages."""
    telemetry = RecordedTelemetry(settings=TelemetrySettings(content=ContentCapture.SPAN_ONLY))
    with telemetry.as_default():
        yield telemetry
    telemetry.shutdown()


def import_client(name):
    """Import a client's library, or skip the test. As after the collection, garbage is not searched in its objects."""
    is_imported = name in sys.modules
    library = pytest.importorskip(name, reason=NOT_INSTALLED)
    if not is_imported:
        gc.collect()
        gc.freeze()
    return library


@pytest.fixture
def clients(server, telemetry):
    """The instrumented clients, which all send their requests to `server`."""
    for name in ("openai", "anthropic", "google.genai", "botocore.session"):
        import_client(name)
    instrument("openai", "anthropic", "google_genai", "botocore")
    clients = LazyClients(server.url)
    yield clients
    uninstrument()
    clients.close()


@pytest.fixture
async def every_client(clients, server, monkeypatch):
    """The instrumented clients, with litellm."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would look for another table in the network
    clients.litellm = import_client("litellm")
    clients.litellm_options = {"custom_llm_provider": "openai", "api_key": "k", "api_base": server.url}
    instrument("litellm")
    yield clients
    await clients.aclose()


@pytest.fixture
def question(request):
    """A question that no other test asks: calls are remembered as long as the process lives."""
    return f"Where is the bag of {request.node.name}?"
