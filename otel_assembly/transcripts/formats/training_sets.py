"""Records of training sets: Alpaca, LMSYS-Chat, preference pairs of OpenAI, and ToolBench."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.formats.conversations import conversation_of
from otel_assembly.transcripts.log_records import fields_of, objects_in
from otel_assembly.transcripts.messages import as_name
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_assembly.transcripts.conversation import Conversation
    from otel_assembly.transcripts.json_values import MalformedError
    from otel_assembly.transcripts.records import Record

__all__ = ["ALPACA", "LMSYS", "OPENAI_PREFERENCES", "TOOLBENCH"]

#: The id, the messages and the tools of a conversation.
_Parts = tuple[str | None, "Iterable[Any]", list[dict[str, Any]]]


def _reader(parts_of: Callable[[dict[str, Any]], Iterable[_Parts]]) -> Any:
    """Return the reader of records, each of which contains conversations."""

    def read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
        for record in records:
            for name, messages, tools in parts_of(record.value):
                yield conversation_of(name, messages, tools=tools)

    return read


def _alpaca(record: dict[str, Any]) -> Iterator[_Parts]:
    request = "\n\n".join(text for key in ("instruction", "input") if isinstance(text := record.get(key), str) and text)
    messages = [{"role": "user", "content": request}, {"role": "assistant", "content": record["output"]}]
    yield as_name(record.get("id")), messages, []


def _lmsys(record: dict[str, Any]) -> Iterator[_Parts]:
    yield as_name(record.get("conversation_id")), record["conversation"], []


def _preferences(record: dict[str, Any]) -> Iterator[_Parts]:
    request = record["input"]
    yield (
        as_name(record.get("id")),
        [*request["messages"], *record["preferred_output"]],
        objects_in(request.get("tools")),
    )


def _toolbench(record: dict[str, Any]) -> Iterator[_Parts]:
    for messages in record["train_messages"]:
        yield None, messages if isinstance(messages, list) else [messages], objects_in(record.get("available_tools"))


def _all(condition: Callable[[dict[str, Any]], bool]) -> Callable[[Sample], bool]:
    return lambda sample: all(isinstance(value, dict) and condition(value) for value in sample.values)


ALPACA = TranscriptFormat(
    "Alpaca",
    (
        Check("a text 'instruction'", _all(lambda value: isinstance(value.get("instruction"), str))),
        Check("a text 'output'", _all(lambda value: isinstance(value.get("output"), str))),
    ),
    _reader(_alpaca),
)
LMSYS = TranscriptFormat(
    "LMSYS-Chat",
    (Check("a list 'conversation'", _all(lambda value: isinstance(value.get("conversation"), list))),),
    _reader(_lmsys),
)
OPENAI_PREFERENCES = TranscriptFormat(
    "OpenAI preference pairs",
    (
        Check("a list 'preferred_output'", _all(lambda value: isinstance(value.get("preferred_output"), list))),
        Check(
            "'input' with 'messages'",
            _all(lambda value: isinstance(fields_of(value.get("input")).get("messages"), list)),
        ),
    ),
    _reader(_preferences),
)
TOOLBENCH = TranscriptFormat(
    "ToolBench",
    (Check("a list 'train_messages'", _all(lambda value: isinstance(value.get("train_messages"), list))),),
    _reader(_toolbench),
)
