"""A scripted provider for the programs that are watched."""

from __future__ import annotations

import pytest
from frameworks.chat_provider import ChatProvider


@pytest.fixture
def provider():
    server = ChatProvider()
    yield server
    server.close()
