"""Conversations in the messages of model contexts, ours or AutoGen's, and what can be wrong with them."""

from __future__ import annotations

import random
from types import SimpleNamespace

from otel_assembly import model_context as ours


class Talk:
    """Messages of one family of types."""

    def __init__(self, types=ours, call=ours.FunctionCall):
        self.types, self.call = types, call

    def user(self, text, source="user"):
        return self.types.UserMessage(content=text, source=source)

    def reply(self, text):
        return self.types.AssistantMessage(content=text, source="assistant")

    def calls(self, *ids):
        content = [self.call(id=item_id, arguments='{"city": "Bonn"}', name="weather") for item_id in ids]
        return self.types.AssistantMessage(content=content, source="assistant")

    def results(self, *ids, text="it rains"):
        made = [
            self.types.FunctionExecutionResult(content=text, name="weather", call_id=item_id, is_error=False)
            for item_id in ids
        ]
        return self.types.FunctionExecutionResultMessage(content=made)

    def of(self, *lines):
        """``"ask"``, ``"say"``, ``"call a b"``, ``"result a b"``, ``"result"`` (of nothing), ``"system"``."""
        made = {"ask": self.user, "say": self.reply}
        talk = []
        for at, line in enumerate(lines):
            word, *ids = line.split()
            if word == "system":
                talk.append(self.types.SystemMessage(content=f"rule {at}"))
            elif word in made:
                talk.append(made[word](f"{word} {at}"))
            else:
                talk.append((self.calls if word == "call" else self.results)(*ids))
        return talk

    def random(self, seed, turns):
        """Turns with parallel calls, results together or apart, and the newest turn open or answered."""
        dice, talk = random.Random(seed), []
        for number in range(turns):
            talk.append(self.user(f"request {number} " + "word " * dice.randrange(12)))
            for step in range(dice.randrange(3)):
                ids = [f"{number}.{step}.{index}" for index in range(dice.randrange(1, 4))]
                talk.append(self.calls(*ids))
                if dice.random() < 0.6:
                    talk.append(self.results(*ids, text="found " * dice.randrange(1, 12)))
                else:
                    talk += [self.results(item_id, text="found " * dice.randrange(1, 12)) for item_id in ids]
            if number < turns - 1 or dice.random() < 0.5:
                talk.append(self.reply("answer " * dice.randrange(1, 12)))
        return talk


OURS = Talk()


def called(message):
    content = getattr(message, "content", None)
    made = content if isinstance(content, list) else []
    return [part.id for part in made if hasattr(part, "arguments")]


def answered(message):
    content = getattr(message, "content", None)
    return [part.call_id for part in content if hasattr(part, "call_id")] if isinstance(content, list) else []


def broken(messages):
    """Calls without their result and results without their call, by their places; the newest may be open."""
    problems: list[tuple[int, str]] = []
    waiting: dict[str, int] = {}
    for at, message in enumerate(messages):
        results = type(message).__name__ == "FunctionExecutionResultMessage"
        if results and not answered(message):
            problems.append((at, "answers nothing"))
        problems += [(at, item) for item in answered(message) if waiting.pop(item, None) is None]
        if not results and waiting and type(message).__name__ == "AssistantMessage":
            problems += [(place, key) for key, place in waiting.items()]
            waiting = {}
        waiting.update(dict.fromkeys(called(message), at))
    return problems


def said(messages):
    return [message.content if isinstance(message.content, str) else type(message).__name__ for message in messages]


def places(kept, talk):
    """Where each message stands in the talk, by identity; None for what was made."""
    where = {id(message): at for at, message in enumerate(talk)}
    return [where.get(id(message)) for message in kept]


class WordClient:
    """Any object that counts: a word is a token, a message three more, a prompt two."""

    def __init__(self, window=1_000_000):
        self.window, self.asked = window, 0

    def count_tokens(self, messages, *, tools=()):
        self.asked += 1
        return 2 + sum(map(self._words, messages)) + 5 * len(tools)

    def _words(self, message):
        content = message.content
        texts = (
            [content] if isinstance(content, str) else [getattr(part, "content", None) or part.name for part in content]
        )
        return 3 + sum(len(text.split()) for text in texts)

    def remaining_tokens(self, messages, *, tools=()):
        return self.window - self.count_tokens(messages, tools=tools)


async def filled(context, messages):
    for message in messages:
        await context.add_message(message)
    return context


def table(home, **given):
    """One context of each kind."""
    client = given.pop("client", None) or WordClient()
    return SimpleNamespace(
        unbounded=home.UnboundedChatCompletionContext(**given),
        buffered=home.BufferedChatCompletionContext(5, **given),
        head_and_tail=home.HeadAndTailChatCompletionContext(2, 4, **given),
        token_limited=home.TokenLimitedChatCompletionContext(client, token_limit=400, **given),
    )
