"""The calls of a chat model: what its client is given, and the name and the window of the model that it calls."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation import clients
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.chains import model_run
from otel_assembly.instrumentation.langchain.runs import PLACES
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.reducers import limit_of
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.messages.provider_rules import RESPONSES_CLIENT, rules_of_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.messages.provider_rules import ClientRules

#: Where chat models of LangChain keep the name of the model that they call.
_NAMES: Final = ("model_name", "model", "model_id")
#: How ids of OpenAI's responses begin.
_RESPONSE_ID: Final = "resp_"
#: So many runnables stand around a model, at most.
_AROUND: Final = 8


def model_of(model: Any, settings: Mapping[str, Any] | None = None) -> str | None:
    """The name of the model that a chat model calls, where one is said.

    Args:
        model: A chat model, or a runnable around one: bound to settings, with fall-backs, or configurable.
        settings: Those of the call, which may name another model.
    """
    for _ in range(_AROUND):
        held = getattr(model, "__dict__", {})
        for said in (settings, held.get("_default_config")):
            if said and isinstance(name := said.get("model"), str):
                return name
        inner = held.get("bound", held.get("runnable"))
        if inner is None:
            return next((name for key in _NAMES if isinstance(name := getattr(model, key, None), str)), None)
        model, settings = inner, held.get("kwargs")
    return None


def chat_model_in(model: Any) -> Any:
    """Return the chat model in a runnable around one; see `model_of`."""
    for _ in range(_AROUND):
        held = getattr(model, "__dict__", {})
        inner = held.get("bound", held.get("runnable"))
        if inner is None:
            break
        model = inner
    return model


def _schema(tool: Any) -> Mapping[str, Any]:
    from langchain_core.utils.function_calling import convert_to_openai_tool  # who has tools has imported it

    return convert_to_openai_tool(tool)


#: The schemas of tools.
schemas_of: Final = ToolSchemas(_schema).of


def _read(model: Any, /, *args: Any, **settings: Any) -> ClientRequest:
    """What a model is given."""
    window = limit_of(getattr(model, "profile", None), "max_input_tokens")
    messages, tools = argument(args, settings, 0, "messages"), schemas_of(settings.get("tools"))
    rules, unknown = client_of(model, tools, settings), bool(settings.get("previous_response_id"))
    if getattr(model, "use_previous_response_id", None) is True and not unknown:
        behind = _behind_response(messages)
        messages, unknown = behind or messages, behind is not None
    return ClientRequest(messages, None, tools, model_of(model, settings), window, client=rules, unknown=unknown)


def _behind_response(messages: Sequence[Any]) -> Sequence[Any] | None:
    """Return the messages behind the newest response that OpenAI holds, which are all that it is sent then.

    Returns:
        None if OpenAI holds none of them.
    """
    if not isinstance(messages, list | tuple):
        return None
    for index in range(len(messages) - 1, -1, -1):
        told = getattr(messages[index], "response_metadata", None)
        if isinstance(told, dict) and str(told.get("id") or "").startswith(_RESPONSE_ID):
            return messages[index + 1 :]
    return None


def client_of(model: Any, tools: Sequence[Any] = (), settings: Mapping[str, Any] = {}) -> ClientRules | None:
    """Return what a chat model adds to messages.

    Args:
        model: The chat model.
        tools: The schemas of the tools that it is offered.
        settings: Those of the call.
    """
    return RESPONSES_CLIENT if is_responses(model, {"tools": tools, **settings}) else rules_of_client(model)


def is_responses(model: Any, settings: Mapping[str, Any]) -> bool:
    """Return whether a chat model calls OpenAI's Responses, which has no names of speakers."""
    decides = getattr(model, "_use_responses_api", None)
    if not callable(decides):
        return False
    with suppress(Exception):  # it is private, and a later release can ask for something else
        return bool(decides({**getattr(model, "_default_params", {}), **settings}))
    return bool(getattr(model, "use_responses_api", False))


def _only(model: Any, /, *args: Any, **settings: Any) -> ClientRequest | None:
    """What one prompt of a model is given; of several at once each is looked at by itself."""
    prompts = argument(args, settings, 0, "messages")
    return _read(model, prompts[0], **settings) if len(prompts) == 1 else None


def _streamed(model: Any, /, *args: Any, **settings: Any) -> ClientRequest:
    """What is given to one that answers step by step, in any form that LangChain takes."""
    from langchain_core.messages import convert_to_messages  # where a model is called, it has been imported

    given = argument(args, settings, 0, "input")
    return _read(model, convert_to_messages([given] if isinstance(given, str) else given), **settings)


def _text(answer: Any) -> str:
    """The text of what a model has answered, whoever was asked."""
    first: Any = next(iter(getattr(answer, "generations", ())), None)
    return str(getattr(first[0] if isinstance(first, list) else first, "text", ""))


#: Around the ways in which a chat model is called: prompts all at once, each of several, and step by step.
generate = clients.client(_only, _text, told=PLACES.tell, prepared=model_run)
each = clients.client(_read, _text, told=PLACES.tell)
stream = clients.client(_streamed, told=PLACES.tell)
