"""A server of OpenAI's Chat Completions for frameworks that call it by a client, and what is told of their runs."""

from __future__ import annotations

import json

from instrumentation.provider_clients.provider_server import ProviderServer


class ChatProvider(ProviderServer):
    """Answers each request with the next text or tool call."""

    def __init__(self):
        super().__init__()
        self._number = 0

    def says(self, *texts):
        """Answer the next requests with these texts."""
        for text in texts:
            self.answers(self._body("chat.completion", message={"role": "assistant", "content": text}))

    def calls(self, tool, **arguments):
        """Answer the next request with the call of a tool."""
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{len(self.requests) + len(self._answers):024d}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        self.answers(self._body("chat.completion", message=message))

    def refuses(self, message):
        """Answer the next request with an error of the program."""
        self.fails(400, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    def streams_text(self, text):
        """Answer the next request with a text in chunks, one a word."""
        deltas = [{"role": "assistant", "content": f"{word} "} for word in text.split()]
        self._number += 1
        chunks = [self._chunk(delta=delta, finish_reason=None) for delta in deltas]
        self.streams([*chunks, self._chunk(delta={}, finish_reason="stop")])

    def _body(self, kind, **choice):
        self._number += 1
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in str(choice) else "stop", **choice}
        return {**self._shape(kind), "choices": [choice], "usage": usage}

    def _chunk(self, **choice):
        return {**self._shape("chat.completion.chunk"), "choices": [{"index": 0, **choice}]}

    def _shape(self, kind):
        return {"id": f"chatcmpl-{self._number}", "object": kind, "created": 1, "model": "gpt-4o"}


def assemblies(telemetry):
    """The assemblies in the order of their turns."""
    return sorted(telemetry.spans_named("assemble_context"), key=lambda span: span.start_ns)


def one_assembly_for_each_request(telemetry, provider):
    """Whether each request has an assembly with the messages that were sent."""
    sent = [
        sum(message["role"] not in ("system", "developer") for message in body["messages"])
        for body in provider.requests
    ]
    return [span.attributes["assembly.events.out"] for span in assemblies(telemetry)] == sent


def agents_of_calls(telemetry):
    """The agent of each assembly; it is the name of the run in which it is told, too."""
    names = [span.attributes.get("gen_ai.agent.name") for span in assemblies(telemetry)]
    assert names == [span.parent.attributes.get("gen_ai.agent.name") for span in assemblies(telemetry)]
    return names


def runs(telemetry):
    """The name of the agent of each run, and of the run that contains it."""
    spans = [span for span in telemetry.spans if span.name.startswith("invoke_agent")]
    spans.sort(key=lambda span: span.start_ns)
    return [
        (
            span.attributes["gen_ai.agent.name"],
            span.parent.attributes["gen_ai.agent.name"] if span.parent is not None else None,
        )
        for span in spans
    ]


def steps(telemetry):
    """For each assembly the names of its steps."""
    return [
        [child.name.removeprefix("apply_policy ") for child in span.children if child.name.startswith("apply_policy")]
        for span in assemblies(telemetry)
    ]


def turns(telemetry):
    """For each assembly the index of its turn in its conversation."""
    return [span.attributes["assembly.turn"] for span in assemblies(telemetry)]
