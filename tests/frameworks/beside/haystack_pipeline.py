"""A pipeline of Haystack with generators: OpenInference sees generators that a pipeline has run."""

from __future__ import annotations

import os

os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")  # read as Haystack is imported

from typing import Any

from haystack import Pipeline, component
from haystack.components.builders import ChatPromptBuilder
from haystack.dataclasses import ChatMessage


@component
class CountingGenerator:
    """Says how much it was sent."""

    model = "gpt-4o"

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, list[Any]]:
        """Answer."""
        return {"replies": [ChatMessage.from_assistant(f"That were {len(messages)} messages.")]}


def main() -> None:
    """Ask twice, the second time what the first answer was."""
    template = [ChatMessage.from_system("You count."), ChatMessage.from_user("Count {{ what }}.")]
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder(template, required_variables="*"))
    pipeline.add_component("first", CountingGenerator())
    pipeline.add_component("second", CountingGenerator())
    pipeline.connect("prompt.prompt", "first.messages")
    pipeline.connect("first.replies", "second.messages")
    for what in ("these", "those"):
        answer = pipeline.run({"prompt": {"what": what}}, include_outputs_from={"first"})
        print(answer["first"]["replies"][0].text, answer["second"]["replies"][0].text)


if __name__ == "__main__":
    main()
