"""A framework of agents, of what reduces their messages, and of clients that note what they receive."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager, suppress


class Client:
    """Notes what it receives."""

    def __init__(self, answers=("fine",)):
        self.received, self.answers = [], list(answers)

    def call(self, messages):
        self.received.append(copy.deepcopy(list(messages)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def acall(self, messages):
        return self.call(messages)

    async def astream(self, messages):
        for word in self.call(messages).split():
            yield word

    @asynccontextmanager
    async def entered(self, messages):
        yield self.call(messages)


class Cache:
    def __init__(self, inner):
        self.inner = inner

    def call(self, messages):
        return self.inner.call(messages)


class Delegate(Client):
    """A model whose answers another agent gives."""

    def __init__(self, agent):
        super().__init__()
        self.agent = agent

    def call(self, messages):
        super().call(messages)
        return self.agent.ask("What do you say?")


class Limits:
    """Stands around the next one, which it gives the newest messages."""

    def __init__(self, inner):
        self.inner = inner

    def call(self, messages):
        return self.inner.call(messages[-2:])


class Retries:
    def __init__(self, inner):
        self.inner = inner

    def call(self, messages):
        try:
            return self.inner.call(messages)
        except ValueError:
            return self.inner.call(messages)


class Window:
    size = 3

    def reduce(self, messages):
        return messages[-self.size :]

    async def areduce(self, messages):
        return copy.deepcopy(messages[-self.size :])

    def shrink(self, messages):
        del messages[: -self.size]


class Plugin:
    """Of ours: it tells of what it lets out by itself."""

    def reduce(self, messages):
        return messages[-2:]


class Summary:
    def __init__(self, client):
        self.client = client

    def reduce(self, messages):
        return [{"role": "user", "content": self.client.call(messages[:-2])}, *messages[-2:]]


class Around:
    """Asks another one, and has nothing to add."""

    def __init__(self, inner):
        self.inner = inner

    def reduce(self, messages):
        return self.inner.reduce(messages)


class Agent:
    name, instructions, tools = "clerk", "You help.", []

    def __init__(self, client, reducers=(), attempts=1, tidies=False):
        self.client, self.reducers, self.attempts, self.tidies = client, reducers, attempts, tidies
        self.history = []

    def prepare(self, messages):
        for reducer in self.reducers:
            messages = reducer.reduce(messages)
        return [{"role": "system", "content": self.instructions}, *messages]

    def ask(self, text):
        self.history.append({"role": "user", "content": text})
        answer = self.turn()
        self.history.append({"role": "assistant", "content": answer})
        if self.tidies:
            Window().shrink(self.history)
        return answer

    def turn(self):
        messages = self.prepare(self.history)
        for _ in range(self.attempts - 1):
            with suppress(ValueError):
                return self.client.call(messages)
        return self.client.call(messages)

    async def aturn(self, text):
        self.history.append({"role": "user", "content": text})
        messages = self.history
        for reducer in self.reducers:
            messages = await reducer.areduce(messages)
        return await self.client.acall(messages)

    async def enter(self, text):
        self.history.append({"role": "user", "content": text})
        async with self.client.entered(self.history) as answer:
            return answer

    async def stream(self, text):
        self.history.append({"role": "user", "content": text})
        async for word in self.client.astream(self.history):
            yield word
