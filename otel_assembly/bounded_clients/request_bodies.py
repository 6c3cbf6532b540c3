"""Writes what an assembly kept into the body of a request, in the form of the request's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.provider_clients.requests import part_texts, plain
from otel_assembly.messages.chat import MessageForm, text_message
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.instrumentation.provider_clients.apis import ProviderAPI
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The key of the messages in the body, for each API whose requests are assembled.
MESSAGES_KEYS: Final = {
    "chat_completions": "messages",
    "responses": "input",
    "messages": "messages",
    "generate_content": "contents",
}
_ANSWERS: Final = (EventKind.RESPONSE, EventKind.TOOL_CALL)


def assembled_body(api: ProviderAPI, body: Mapping[str, Any], request: ProviderRequest, assembly: Assembly) -> Any:
    """Return the body with the prompts and messages of an assembly; the same object if they are those of the request.

    Args:
        api: The API of the request.
        body: The body of the request.
        request: What was read of the body.
        assembly: The assembly of the request.
    """
    prompts, events = list(assembly.prompts), list(assembly.events)
    same_prompts = prompts == request.prompts
    if same_prompts and list(map(id, events)) == list(map(id, request.messages)):
        return body
    key = MESSAGES_KEYS[api.name]
    given = body.get(key)
    sent = list(given) if isinstance(given, list | tuple) else list(request.messages)
    first = len(sent) - len(request.messages)
    leading = sent[:first]
    # A message that the SDK serializes, such as an earlier answer, was read as a dict, but is sent itself.
    originals = {id(read): original for read, original in zip(request.messages, sent[first:], strict=True)}
    messages = list(_messages(events, originals, api))
    if same_prompts:
        return {**body, key: [*leading, *messages]}
    return {**body, key: messages, **_with_prompts(api, body, prompts, leading, messages)}


def _messages(events: Sequence[Any], originals: Mapping[int, Any], api: ProviderAPI) -> Iterator[Any]:
    """Yield the messages of events: original ones, and those that policies made, of which some are no dicts."""
    form = MessageForm.GEMINI if api.name == "generate_content" else MessageForm.CHAT
    for event in events:
        if id(event) in originals:
            yield originals[id(event)]
        elif isinstance(event, dict):
            yield event
        elif (facts := describe(event)).rendered:
            yield text_message(form, "assistant" if facts.kind in _ANSWERS else "user", "\n".join(facts.texts))


def _with_prompts(
    api: ProviderAPI, body: Mapping[str, Any], prompts: Sequence[str], leading: Sequence[Any], messages: Sequence[Any]
) -> dict[str, Any]:
    """Return the fields of a body with prompts that policies changed. A prompt that they kept is the same object."""
    match api.name:
        case "chat_completions":
            kept = {tuple(part_texts(plain(message).get("content"))): message for message in leading}
            role = plain(leading[0])["role"] if leading else "system"
            front = [kept.get((prompt,), {"role": role, "content": prompt}) for prompt in prompts]
            return {"messages": [*front, *messages]}
        case "messages":
            blocks = body.get("system") if isinstance(body.get("system"), list) else []
            kept = {tuple(part_texts([block])): block for block in blocks or ()}
            return {"system": [kept.get((prompt,), {"type": "text", "text": prompt}) for prompt in prompts]}
        case "responses":
            return {"instructions": "\n\n".join(prompts)}
        case _:
            instruction = body.get("systemInstruction") or {}
            return {"systemInstruction": {**instruction, "parts": [{"text": prompt} for prompt in prompts]}}
