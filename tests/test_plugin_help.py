"""`help` of a plug-in's class describes every argument of its constructor."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re

import pytest
from environments import frameworks_apart

from otel_assembly.instrumentation import instrumentor_of

PLUGINS = [
    "ag2.AssembledPolicy",
    "agent_framework.AssemblyMiddleware",
    "agentscope.AssemblyMiddleware",
    "autogen.AssembledChatCompletionContext",
    "google_adk.AssemblyPlugin",
    "haystack.AssemblyChatGenerator",
    "haystack.AssemblyHook",
    "langchain.AssemblyMiddleware",
    "llama_index.AssemblyMemory",
    "openai_agents.AssemblyInputFilter",
    "pydantic_ai.AssemblyCapability",
    "semantic_kernel.AssemblyChatCompletion",
    "semantic_kernel.AssemblyHistoryReducer",
    "strands.AssemblyConversationManager",
]


#: Frameworks that are not installed here, because they cannot be installed together with the others.
ELSEWHERE = {name for name in frameworks_apart() if instrumentor_of(name).version is None}


@pytest.mark.parametrize("plugin", [name for name in PLUGINS if name.partition(".")[0] not in ELSEWHERE])
def test_help_of_a_plugin_describes_each_argument_and_error(plugin):
    framework, name = plugin.split(".")
    cls = getattr(importlib.import_module(f"otel_assembly.instrumentation.{framework}"), name)
    text = pydoc.render_doc(cls, renderer=pydoc.plaintext)
    arguments = set(inspect.signature(cls.__init__).parameters) - {"self"}
    described = {argument for argument in arguments if re.search(rf"^[ |]+{argument}: \w", text, re.MULTILINE)}
    assert arguments - described == set()
    assert "ConfigurationError: An argument has the wrong type" in text
