"""A turn on our model contexts beside the same turn on AutoGen's: two messages are added, and the context is asked."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table, race
from benchmarks.workload import BUDGET, messages, pairs
from otel_assembly import model_context as alone
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Lengths, and rounds.
SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((1_000, 10_000), 100),
    "quick": ((1_000, 10_000), 30),
    "tiny": ((60, 120), 4),
}
#: AutoGen's token limit counts all that is left again for each message that it takes out: seconds a turn at a thousand.
COUNTED_AGAIN = 200
WARM_UP = 10


class Client:
    """Counts as tiktoken does, and remembers nothing."""

    def __init__(self) -> None:
        self._encode = shared_encoding("o200k_base").encode_ordinary

    def count_tokens(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> int:
        return 3 + sum(map(self._count, messages))

    def _count(self, message: Any) -> int:
        content = message.content
        if isinstance(content, str):
            return 4 + len(self._encode(content))
        return 4 + sum(
            len(self._encode(message.content))
            if hasattr(message, "content")
            else 3 + len(self._encode(message.name + message.arguments))
            for message in content
        )


def _made(events: Sequence[dict[str, Any]], types: Any, call: Any) -> list[Any]:
    """The workload in the messages of a context."""
    made: list[Any] = []
    for event in events:
        text = event.get("content") or ""
        if event["role"] == "user":
            made.append(types.UserMessage(content=text, source="user"))
        elif event["role"] == "tool":
            result = types.FunctionExecutionResult(
                content=text, name="lookup", call_id=event["tool_call_id"], is_error=None
            )
            made.append(types.FunctionExecutionResultMessage(content=[result]))
        else:
            calls = [
                call(id=item["id"], name=item["function"]["name"], arguments=item["function"]["arguments"])
                for item in event.get("tool_calls") or []
            ]
            made.append(types.AssistantMessage(content=calls or text, source="assistant"))
    return made


def _shapes(home: Any, held: list[Any], more: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    return {
        "Unbounded": lambda: home.UnboundedChatCompletionContext(held, **more),
        "Buffered(100)": lambda: home.BufferedChatCompletionContext(100, held, **more),
        "HeadAndTail(50, 50)": lambda: home.HeadAndTailChatCompletionContext(50, 50, held, **more),
        f"TokenLimited({BUDGET:,})": lambda: home.TokenLimitedChatCompletionContext(
            Client(), token_limit=BUDGET, initial_messages=held, **more
        ),
    }


def _modules_of() -> dict[str, tuple[Any, Any, Any]]:
    """Whose contexts, with the types of their messages; AutoGen's where it is installed."""
    modules_of: dict[str, tuple[Any, Any, Any]] = {"alone": (alone, alone, alone.FunctionCall)}
    if find_spec("autogen_core") is not None:
        import autogen_core
        from autogen_core import model_context, models

        from otel_assembly.instrumentation import autogen

        modules_of["inside AutoGen"] = autogen, models, autogen_core.FunctionCall
        modules_of["AutoGen's"] = model_context, models, autogen_core.FunctionCall
    return modules_of


async def report(size: Size) -> list[Table]:
    """A row for each context and home; beside ours the ratio to AutoGen's."""
    lengths, rounds = SIZES[size]
    columns = [f"{length:,}" for length in lengths]
    table = Table(
        "contexts",
        "contexts: a turn that added two messages: median (quartiles), ratio to AutoGen's",
        ["what", *columns],
    )
    modules_of = _modules_of()
    for length in lengths:
        given = {
            home: (
                _made(messages(length), types, call),
                [_made(pair, types, call) for pair in pairs(home, rounds + WARM_UP)],
            )
            for home, (_, types, call) in modules_of.items()
        }
        for shape in _shapes(alone, [], {}):
            runners: dict[str, Any] = {}
            for home, (module, _, _) in modules_of.items():
                if home == "AutoGen's" and shape.startswith("TokenLimited") and length > COUNTED_AGAIN:
                    continue
                runners[home] = _turn(_shapes(module, given[home][0], {})[shape]())
            found = await race(
                runners,
                rounds,
                floor="AutoGen's",
                before=lambda home, value: given[home][1][value],  # noqa: B023  # it runs in this round of the loop
                warm_up=WARM_UP if rounds > WARM_UP else 0,
            )
            for home in modules_of:
                table.put(f"{shape}, {home}", found.get(home))
    table.notes += [
        "Nobody records. Every context has the whole conversation; Unbounded gives all of it, so that its turn grows.",
        f"`–`: above {COUNTED_AGAIN} messages; AutoGen's token limit counts all that is left for each that goes.",
    ]
    return [table]


def _turn(context: Any) -> Callable[[Any], Any]:
    async def turn(new: Sequence[Any]) -> None:
        for message in new:
            await context.add_message(message)
        await context.get_messages()

    return turn
