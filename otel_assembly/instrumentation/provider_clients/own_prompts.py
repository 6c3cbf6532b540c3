"""The prompts that assemblers of this library have made: the request with such a prompt has an assembly already."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from otel_assembly.instrumentation.provider_clients.fingerprints import facts_of, without_reasoning
from otel_assembly.messages.provider_rules import NO_RESULT_YET, OPENING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.instrumentation.provider_clients.requests import ProviderRequest

#: The most prompts that wait for their request. Other clients than the instrumented ones send some prompts.
_PROMPTS: Final = 256
#: The newest messages of a prompt whose texts are compared.
_COMPARED: Final = 8
#: Texts that `to_openai` and `to_anthropic` add to a prompt.
_ADDED: Final = frozenset({NO_RESULT_YET, OPENING})

#: The bounded copies of OpenAI's clients. Their `request` assembles what their `post`, which is hooked, receives.
BOUNDED_CLIENTS: Final[WeakSet[Any]] = WeakSet()
#: The APIs whose requests these copies assemble.
BOUNDED_APIS: Final = frozenset({"chat_completions", "responses"})
#: Whether the request that is sent was assembled by a bounded client, so that it has an assembly already.
IS_BOUNDED: Final[ContextVar[bool]] = ContextVar("otel_assembly_bounded", default=False)


class OwnPrompt(NamedTuple):
    """What identifies the prompt of an assembly in a request, in any provider's format.

    Attributes:
        texts: The first system prompt and the newest texts of the messages, with uniform white space.
        newest: The texts of the messages among them.
    """

    texts: tuple[str, ...]
    newest: tuple[str, ...]


class OwnPrompts:
    """The prompts of assemblies that were not sent yet. One request claims each of them.

    Only the newest texts are compared: to read all of them would cost more than the assembly of a long conversation.
    """

    def __init__(self) -> None:
        self._unsent: deque[OwnPrompt] = deque(maxlen=_PROMPTS)

    def add(self, assembly: Assembly) -> None:
        self._unsent.append(_prompt_of(assembly))

    def claim(self, request: ProviderRequest) -> OwnPrompt | None:
        """Remove and return the assembly's prompt that a request sends; None if there is none."""
        if not self._unsent:
            return None
        # A conversion can divide and move messages, so the request is searched further back than the prompt was read.
        newest = _texts(request.messages[-4 * _COMPARED :])
        if not newest:
            return None
        sent = "\n".join(map(_uniform, (*request.prompts, *newest)))
        for prompt in reversed(self._unsent):
            ends_alike = any(text in newest[-1] for text in prompt.newest)
            if ends_alike and all(text in sent for text in prompt.texts):
                with suppress(ValueError):  # another thread has claimed it
                    self._unsent.remove(prompt)
                    return prompt
        return None

    def discard(self, assembly: Assembly) -> None:
        """Forget the prompt of an assembly: its request is recognized in another way."""
        if self._unsent:
            with suppress(ValueError):
                self._unsent.remove(_prompt_of(assembly))

    def give_back(self, prompt: OwnPrompt) -> None:
        """Remember a prompt again, because its request failed: the program may send it once more."""
        self._unsent.append(prompt)


OWN_PROMPTS: Final = OwnPrompts()


def _prompt_of(assembly: Assembly) -> OwnPrompt:
    newest = _texts(assembly.events[-_COMPARED:])
    return OwnPrompt((*map(_uniform, assembly.prompts[:1]), *newest), (*newest,))


def _uniform(text: str) -> str:
    return " ".join(text.split())


def _texts(messages: Sequence[Any]) -> list[str]:
    """Return the texts that each provider's format has: no reasoning, no tool calls, and no results without a call."""
    texts: list[str] = []
    open_calls: set[str] = set()
    for message in messages:
        facts = facts_of(without_reasoning(message))
        if facts is None or (facts.closes and open_calls.isdisjoint(facts.closes)):
            continue
        open_calls.difference_update(facts.closes)
        open_calls.update(facts.opens)
        if not facts.opens:
            texts += map(_uniform, (facts.text, *facts.fields))
    return [text for text in texts if text and text not in _ADDED]
