"""Clients of providers that are created when a test first uses them."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from threading import RLock


class ThreadSafeCachedProperty(cached_property):
    """A `cached_property` that several threads may read: since Python 3.12 the original can create a value for each."""

    _lock = RLock()

    def __get__(self, instance, owner=None):
        with self._lock:
            return super().__get__(instance, owner)


class LazyClients:
    """The clients of one test, which all send their requests to one server.

    To create all of them takes 0.2 seconds of processor time, and most tests use one.
    """

    def __init__(self, url):
        self._url = url
        self._options = {"api_key": "k", "base_url": url, "max_retries": 0}

    @ThreadSafeCachedProperty
    def openai(self):
        return import_module("openai").OpenAI(**self._options)

    @ThreadSafeCachedProperty
    def openai_async(self):
        return import_module("openai").AsyncOpenAI(**self._options)

    @ThreadSafeCachedProperty
    def anthropic(self):
        return import_module("anthropic").Anthropic(**self._options)

    @ThreadSafeCachedProperty
    def anthropic_async(self):
        return import_module("anthropic").AsyncAnthropic(**self._options)

    @ThreadSafeCachedProperty
    def gemini(self):
        return import_module("google.genai").Client(api_key="k", http_options={"base_url": self._url})

    @ThreadSafeCachedProperty
    def bedrock(self):
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        session = import_module("botocore.session").get_session()
        return session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=self._url, **keys)

    def close(self):
        """Close the synchronous clients, or else a later test may see a warning about their connections."""
        self._close("openai", "anthropic", "gemini", "bedrock")

    async def aclose(self):
        """Close the asynchronous clients."""
        for closing in self._close("openai_async", "anthropic_async"):
            await closing
        if "gemini" in vars(self):
            await self.gemini.aio.aclose()

    def _close(self, *names):
        return [getattr(self, name).close() for name in names if name in vars(self)]
