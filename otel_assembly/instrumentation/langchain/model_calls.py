"""Hooks of `BaseChatModel`: read the request of each model call, with the model's name and context window.

The hooked methods are `generate`, `agenerate`, `stream`, `astream` and the private methods that they call. A call's
assembly ends in them, because the messages are final there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation import clients
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.chains import model_run
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reducers import limit_of
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages.provider_rules import RESPONSES_CLIENT, rules_of_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.messages.provider_rules import ClientRules

#: The attributes in which LangChain's chat models keep the model's name.
_NAMES: Final = ("model_name", "model", "model_id")
#: The prefix of OpenAI's response ids.
_RESPONSE_ID: Final = "resp_"
#: The most runnables that are searched for the chat model inside of them.
_MAX_WRAPPERS: Final = 8


def _runnables(model: Any, settings: Mapping[str, Any] | None) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield a model with the settings of its call, then each runnable inside of it; the last one is the chat model."""
    for _ in range(_MAX_WRAPPERS):
        yield model, settings
        attributes = getattr(model, "__dict__", {})
        inner = attributes.get("bound", attributes.get("runnable"))
        if inner is None:
            return
        model, settings = inner, attributes.get("kwargs")


def model_of(model: Any, settings: Mapping[str, Any] | None = None) -> str | None:
    """Return the name of the model that a chat model calls, also inside of a runnable; None if it is unknown."""
    runnable = None
    for runnable, own_settings in _runnables(model, settings):
        # A configurable model, made by `init_chat_model`, has `_default_config`.
        for mapping in (own_settings, getattr(runnable, "__dict__", {}).get("_default_config")):
            if mapping and isinstance(name := mapping.get("model"), str):
                return name
    return next((name for key in _NAMES if isinstance(name := getattr(runnable, key, None), str)), None)


def chat_model_in(model: Any) -> Any:
    *_, (chat_model, _) = _runnables(model, None)
    return chat_model


def _schema(tool: Any) -> Mapping[str, Any]:
    from langchain_core.utils.function_calling import convert_to_openai_tool  # a program with tools has imported it

    return convert_to_openai_tool(tool)


#: Returns the JSON schemas of tools.
schemas_of: Final = ToolSchemas(_schema).of


def _read_request(model: Any, /, *args: Any, **settings: Any) -> ClientRequest:
    window = limit_of(getattr(model, "profile", None), "max_input_tokens")
    messages, tools = argument(args, settings, 0, "messages"), schemas_of(settings.get("tools"))
    rules, unknown = client_of(model, tools, settings), bool(settings.get("previous_response_id"))
    if getattr(model, "use_previous_response_id", None) is True and not unknown:
        # LangChain then sends the id of the newest response, and only the messages after it.
        newer = _after_last_response(messages)
        messages, unknown = newer or messages, newer is not None
    return ClientRequest(messages, None, tools, model_of(model, settings), window, client=rules, unknown=unknown)


def _after_last_response(messages: Sequence[Any]) -> Sequence[Any] | None:
    """Return the messages after the newest response that OpenAI has stored; None if there is no such response."""
    if not isinstance(messages, list | tuple):
        return None
    for index in range(len(messages) - 1, -1, -1):
        metadata = getattr(messages[index], "response_metadata", None)
        if isinstance(metadata, dict) and str(metadata.get("id") or "").startswith(_RESPONSE_ID):
            return messages[index + 1 :]
    return None


def client_of(model: Any, tools: Sequence[Any] = (), settings: Mapping[str, Any] = {}) -> ClientRules | None:
    """Return the rules by which a chat model's client converts messages; None if they are unknown."""
    # OpenAI's Responses API has other rules: for example, its messages have no speaker names.
    decides = getattr(model, "_use_responses_api", None)
    uses_responses = False
    if callable(decides):
        uses_responses = bool(getattr(model, "use_responses_api", False))  # used if the private method fails
        with suppress(Exception):  # a later release may change its parameters
            uses_responses = bool(decides({**getattr(model, "_default_params", {}), "tools": tools, **settings}))
    return RESPONSES_CLIENT if uses_responses else rules_of_client(model)


def _read_single(model: Any, /, *args: Any, **settings: Any) -> ClientRequest | None:
    """Return the request of a call with one prompt; None for several prompts, which `generate_each` records."""
    prompts = argument(args, settings, 0, "messages")
    return _read_request(model, prompts[0], **settings) if len(prompts) == 1 else None


def _read_stream_input(model: Any, /, *args: Any, **settings: Any) -> ClientRequest:
    from langchain_core.messages import convert_to_messages  # where a model is called, it has been imported

    prompt = argument(args, settings, 0, "input")
    return _read_request(model, convert_to_messages([prompt] if isinstance(prompt, str) else prompt), **settings)


def _answer_text(answer: Any) -> str:  # an `LLMResult` or a `ChatResult`
    first: Any = next(iter(getattr(answer, "generations", ())), None)
    return str(getattr(first[0] if isinstance(first, list) else first, "text", ""))


#: Hook of ``generate`` and ``agenerate``, which take a list of prompts.
generate = clients.client(_read_single, _answer_text, record=GRAPH_CONTEXT.client_called, prepared=model_run)
#: Hook of ``_generate_with_cache`` and ``_agenerate_with_cache``, which `generate` calls for each prompt.
generate_each = clients.client(_read_request, _answer_text, record=GRAPH_CONTEXT.client_called)
#: Hook of the streaming methods.
stream = clients.client(_read_stream_input, record=GRAPH_CONTEXT.client_called)
