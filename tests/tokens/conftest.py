import base64
import lzma
import socket
from pathlib import Path

import pytest
import tiktoken
import tiktoken_ext.openai_public as published

import otel_assembly.tokens

VOCABULARIES = Path(otel_assembly.tokens.__file__).parent / "vocabularies"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a tokenizer reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def vocabularies():
    return VOCABULARIES


@pytest.fixture(scope="session")
def reference():
    """tiktoken's own constructors, fed with the bundled files: independent of how the package reads them."""

    def build(name):
        lines = lzma.decompress((VOCABULARIES / f"{name}.tiktoken.xz").read_bytes()).splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(published, "load_tiktoken_bpe", lambda *_, **__: ranks)
            return tiktoken.Encoding(**getattr(published, name)())

    return {name: build(name) for name in ("o200k_base", "cl100k_base")}


class SpyCounter:
    """Counts words, and remembers what it was asked."""

    name = "words"
    method = "exact"

    def __init__(self):
        self.generation = 0
        self.asked = []

    def count(self, text):
        self.asked.append(text)
        return len(text.split())


@pytest.fixture
def spy():
    return SpyCounter()
