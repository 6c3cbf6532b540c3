"""Programs that call models, with the truth about which earlier call each call continues.

A scenario is a function of a `Program`. It calls `program.model(client, messages, …)` as a program would call a
provider's client: the messages are in the provider's form, without the system prompt. The truth is what the scenario
knows about itself: `line` names its line of conversation, `after` says whether the call continues an earlier one.
"""

from __future__ import annotations

import copy
import json
import random
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

from otel_assembly.instrumentation.provider_clients import (
    CallPosition,
    ParentCalls,
    ProviderAnswer,
    ProviderRequest,
    input_of,
    message_keys,
)

#: What a call continues, as far as the scenario knows: an earlier call of its line, nothing, or either is right.
EARLIER, NOTHING, EITHER = "earlier", "nothing", "either"

SYSTEM = "You are helpful."


class ModelError(Exception):
    """The provider refused a request."""


@dataclass
class Answer:
    messages: list[Any]
    text: str = ""
    call_ids: list[str] = field(default_factory=list)
    id: str = ""


@dataclass
class Row:
    """One call: the truth, and what was recorded."""

    line: Any
    after: str
    omits: int | None
    match: Any
    call: Any
    unsent: int


class OpenAIForm:
    def user(self, text):
        return {"role": "user", "content": text}

    def answer(self, text, calls):
        message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in calls
            ]
        return [message]

    def assistant(self, text):
        return self.answer(text, ())[0]

    def result(self, call_id, name, text):
        return {"role": "tool", "tool_call_id": call_id, "content": text}


class ResponsesForm(OpenAIForm):
    def answer(self, text, calls):
        items = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 40}]
        items += [
            {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": arguments}
            for call_id, name, arguments in calls
        ]
        if text:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            items.append({"type": "message", "id": "msg_1", "role": "assistant", "content": content})
        return items

    def assistant(self, text):
        return {"role": "assistant", "content": text}

    def result(self, call_id, name, text):
        return {"type": "function_call_output", "call_id": call_id, "output": text}


class AnthropicForm(OpenAIForm):
    def answer(self, text, calls):
        blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]
        blocks += [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool_use", "id": i, "name": name, "input": json.loads(a)} for i, name, a in calls]
        return [{"role": "assistant", "content": blocks}]

    def assistant(self, text):
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    def result(self, call_id, name, text):
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


class BedrockForm(OpenAIForm):
    def user(self, text):
        return {"role": "user", "content": [{"text": text}]}

    def answer(self, text, calls):
        blocks = [{"text": text}] if text else []
        blocks += [{"toolUse": {"toolUseId": i, "name": name, "input": json.loads(a)}} for i, name, a in calls]
        return [{"role": "assistant", "content": blocks}]

    def assistant(self, text):
        return self.answer(text, ())[0]

    def result(self, call_id, name, text):
        result = {"toolUseId": call_id, "content": [{"text": text}]}
        return {"role": "user", "content": [{"toolResult": result}]}


class GeminiForm(OpenAIForm):
    def user(self, text):
        return {"role": "user", "parts": [{"text": text}]}

    def answer(self, text, calls):
        parts = [{"text": text}] if text else []
        parts += [{"functionCall": {"name": name, "args": json.loads(a)}} for _, name, a in calls]
        return [{"role": "model", "parts": parts}]

    def result(self, call_id, name, text):
        return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"result": text}}}]}


#: The form of each client's messages.
FORMS = {
    "openai": OpenAIForm(),
    "responses": ResponsesForm(),
    "anthropic": AnthropicForm(),
    "bedrock": BedrockForm(),
    "gemini": GeminiForm(),
}


class Client:
    """Stands for a client object."""


class Program:
    """Runs the model calls of a scenario against `ParentCalls`, and a provider that answers by a rule.

    Attributes:
        rule: Returns the answer to a list of messages: a text, the names of tools to call, or an exception to raise.
            Without it, each answer is another text.
        recorded: The messages of the next answer, instead of the rule's.
        rows: One row per call.
    """

    def __init__(self):
        self.calls = ParentCalls()
        self.rows: list[Row] = []
        self.rule = None
        self.recorded = None
        self.clients = {name: Client() for name in FORMS}
        self.conversation = None
        self.trace_id = None
        self._numbers = count()

    def model(
        self,
        client,
        messages,
        line="a",
        after=EARLIER,
        *,
        omits=None,
        system=SYSTEM,
        tools=(),
        model="m-1",
        previous=None,
        stored=None,
        thread_id=1,
        choices=1,
        client_object=None,
    ):
        prompts = [system] if isinstance(system, str) else list(system or ())
        schemas = [{"type": "function", "function": {"name": name}} for name in tools]
        request = ProviderRequest(copy.deepcopy(list(messages)), prompts, schemas, model, previous, stored)
        position = CallPosition(self.conversation, self.trace_id, thread_id, client_object or self.clients[client])
        match = self.calls.find(request, position)
        call = self.calls.add(request, match, position)
        before, _ = input_of(match, request._replace(messages=call.messages))
        sent = set(map(id, call.messages))
        unsent = sum(id(message) not in sent for message in before)
        self.rows.append(Row(line, after, omits, match, call, unsent))
        try:
            answers = [self._answer(client, request) for _ in range(choices)]
        except ModelError:
            self.calls.record_failure(call)
            raise
        alternatives = tuple(answer.messages for answer in answers[1:])
        provider_answer = ProviderAnswer(answers[0].messages, answers[0].id)
        if alternatives and "alternatives" in ProviderAnswer._fields:
            provider_answer = provider_answer._replace(alternatives=alternatives)
        self.calls.record_answer(call, copy.deepcopy(provider_answer))
        return answers[0] if choices == 1 else answers

    def _answer(self, client, request):
        number = next(self._numbers)
        if self.recorded is not None:
            return Answer(self.recorded)
        reply = f"Answer number {number} to what was asked here." if self.rule is None else self.rule(request.messages)
        if isinstance(reply, Exception):
            raise reply
        text, names = ("", reply) if isinstance(reply, list) else (reply, [])
        # The generated ids of providers are long; a counter makes them different.
        calls = [(f"call_{number:x}Zq7Lw{place}kPd", name, '{"query": "x"}') for place, name in enumerate(names)]
        return Answer(FORMS[client].answer(text, calls), text, [call[0] for call in calls], f"resp_{number}")

    @contextmanager
    def named(self, conversation):
        self.conversation, outer = conversation, self.conversation
        yield
        self.conversation = outer

    @contextmanager
    def traced(self, trace_id):
        self.trace_id, outer = trace_id, self.trace_id
        yield
        self.trace_id = outer


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


SCENARIOS: dict[str, Any] = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def interleaved(lines, turns, seed):
    order = [line for line in range(lines) for _ in range(turns)]
    random.Random(seed).shuffle(order)
    return order


# Loops of one conversation.


@scenario
def loop_append(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        history += program.model("openai", history, omits=0).messages


@scenario
def loop_window_rebuilt(program):
    history = []
    for turn in range(10):
        history.append(user(f"question {turn}"))
        history += program.model("openai", [dict(m) for m in history[-5:]], omits=0 if turn < 3 else 2).messages


@scenario
def loop_sdk_objects_pinned(program):
    history = [user("The task: fix it")]
    for turn in range(9):
        answer = program.model("openai", history[:1] + history[1:][-4:])
        history += [{**answer.messages[0], "refusal": None, "annotations": []}, user(f"go on {turn}")]


@scenario
def retries(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        failures = iter([ModelError()] * (turn % 3))
        program.rule = lambda _, failures=failures, turn=turn: next(failures, f"Answer to question {turn} of these")
        for _ in range(4):
            try:
                answer = program.model("openai", history, omits=0)
                break
            except ModelError:
                pass
        history += answer.messages


@scenario
def first_call_retried(program):
    """The first call of a conversation fails twice, so that no answer links the calls."""
    for line in range(4):
        failures = iter([ModelError(), ModelError()])
        program.rule = lambda _, failures=failures: next(failures, "The answer in the end")
        for _ in range(3):
            with suppress(ModelError):
                program.model("openai", [user(f"question of {line}")], line, omits=0)


@scenario
def too_long_then_trimmed(program):
    history = []
    numbers = count()
    program.rule = lambda messages: ModelError() if len(messages) > 5 else f"Answer number {next(numbers)} of these"
    for turn in range(10):
        history.append(user(f"question {turn}"))
        while True:
            try:
                answer = program.model("openai", history)
                break
            except ModelError:
                history = history[2:]
        history += answer.messages


@scenario
def too_long_before_any_answer(program):
    """A resumed history is too long at once: the failed call is the only one that can be the parent."""
    history = [message for turn in range(6) for message in (user(f"old {turn}"), assistant(f"old answer {turn}"))]
    history.append(user("the new question"))
    program.rule = lambda messages: ModelError() if len(messages) > 7 else "An answer at last"
    while True:
        try:
            program.model("openai", history, omits=2 if program.rows else 0)
            break
        except ModelError:
            history = history[2:]


@scenario
def structured_reask(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        program.rule = lambda _, turn=turn: f"not json {turn}"
        bad = program.model("openai", history, omits=2 if turn else 0)
        program.rule = lambda _, turn=turn: json.dumps({"number": turn})
        good = program.model("openai", [*history, *bad.messages, user("Invalid JSON, try again")], omits=0)
        history += good.messages


@scenario
def resumed_process(program):
    history = []
    for turn in range(4):
        history.append(user(f"question {turn}"))
        history += program.model("openai", history, omits=0).messages
    program.calls.clear()
    for turn in range(4):
        history.append(user(f"more {turn}"))
        after = EARLIER if turn else NOTHING
        history += program.model("openai", history[-5:], "b", after, omits=2 if turn else 0).messages


@scenario
def tool_loop_cleared(program):
    history = [user("Do it")]
    program.rule = lambda _: ["look", "grep"]
    for turn in range(10):
        answer = program.model("openai", history)
        history += answer.messages
        for call_id in answer.call_ids:
            history.append(FORMS["openai"].result(call_id, "look", f"result {turn} " + "data " * 50))
        for result in [m for m in history if m["role"] == "tool"][:-4]:
            result["content"] = "[Old tool result content cleared]"


@scenario
def edited_answers(program):
    history = []
    numbers = count()
    program.rule = lambda _: f"<think>hm {next(numbers)}</think> The Answer {next(numbers)} "
    for turn in range(8):
        history.append(user(f"question {turn}"))
        text = program.model("openai", history, omits=0).text
        history.append(assistant(re.sub("<think>.*</think>", "", text).strip().lower()))


@scenario
def regenerate_and_edit(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        after = EARLIER if turn else EITHER
        program.model("openai", history, after=after, omits=0)
        program.model("openai", history, after=after, omits=0)
        edited = [*history[:-1], user(f"edited question {turn}")]
        history = edited + program.model("openai", edited, after=after, omits=0).messages


@scenario
def best_of_n(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        answers = [program.model("openai", history, after=EARLIER if turn else EITHER, omits=0) for _ in range(3)]
        history += answers[1].messages


@scenario
def choices_of_one_request(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        history += program.model("openai", history, omits=0, choices=3)[2].messages


@scenario
def window_of_last_answer(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        history += program.model("openai", history[-2:]).messages


@scenario
def window_of_last_answer_in_one_trace(program):
    with program.traced(7):
        window_of_last_answer(program)


@scenario
def streamed_in_pieces(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        text = program.model("openai", history, omits=0).text
        history += [assistant(text[:9]), assistant(text[9:20]), assistant(text[20:])]


@scenario
def answer_prefilled(program):
    """The request ends with the beginning of the answer, and the program joins both."""
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        prefill = f"Well, number {turn}:"
        text = program.model("anthropic", [*history, assistant(prefill)]).text
        history.append(assistant(prefill + text))


@scenario
def reminder_behind_the_question(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        history += program.model("openai", [*history, user("Remember: be brief.")], omits=0).messages


@scenario
def state_message_replaced_in_front(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        state = user(f"Current state: {turn} tasks are done")
        history += program.model("openai", [state, *history], omits=1 if turn else 0).messages


@scenario
def answer_stored_as_formatted_json(program):
    history = []
    program.rule = lambda messages: json.dumps({"step": len(messages), "done": False})
    for turn in range(6):
        history.append(user(f"question {turn}"))
        text = program.model("openai", history, omits=0).text
        history.append(assistant(json.dumps(json.loads(text), indent=2)))


@scenario
def reasoning_not_sent_back(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        answer = program.model("anthropic", history, omits=0)
        blocks = [block for block in answer.messages[0]["content"] if block["type"] != "thinking"]
        history.append({"role": "assistant", "content": blocks})


@scenario
def question_stored_without_its_context(program):
    """The program sends retrieved texts with each question, but keeps only the question in its history."""
    histories = {line: [] for line in range(10)}
    for turn, line in enumerate(interleaved(10, 6, seed=13)):
        question = f"How do I repair part {turn % 7} of the lamp?"
        context = f"Use these texts:\nThe text {turn % 5} on lamps.\n\nQuestion: {question}"
        answer = program.model("openai", [*histories[line], user(context)], line)
        histories[line] += [user(question), *answer.messages]


# Many conversations at the same time.


def fifty(program, first_answer=None, window=None):
    histories = {line: [user("Hello")] for line in range(50)}
    for line in interleaved(50, 6, seed=1):
        history = histories[line]
        program.rule = (lambda _: first_answer) if first_answer and len(history) == 1 else None
        answer = program.model("openai", history[-window:] if window else history, line)
        history += [*answer.messages, user(f"user {line} says thing {len(history)}")]


@scenario
def fifty_users(program):
    fifty(program)


@scenario
def fifty_users_with_a_window(program):
    fifty(program, window=4)


@scenario
def fifty_users_same_first_answer(program):
    fifty(program, "Hello! How can I help you today?")


@scenario
def fifty_users_identical_texts(program):
    histories = {line: [user("Hello")] for line in range(50)}
    program.rule = lambda messages: f"Fixed answer of turn {len(messages)}"
    for line in interleaved(50, 5, seed=2):
        histories[line] += [*program.model("openai", histories[line], line).messages, user("More")]


@scenario
def fifty_users_identical_texts_own_clients(program):
    """Each user has a client of their own, which says whose call it is."""
    histories = {line: [user("Hello")] for line in range(50)}
    clients = {line: Client() for line in range(50)}
    program.rule = lambda messages: f"Fixed answer of turn {len(messages)}"
    for line in interleaved(50, 5, seed=2):
        answer = program.model("openai", histories[line], line, client_object=clients[line])
        histories[line] += [*answer.messages, user("More")]


def short_answers(program, clients=None, named=False):
    def rule(messages):
        return random.Random(str(messages[-1])).choice(["OK", "Yes.", "No."])

    program.rule = rule
    histories = {line: [] for line in range(30)}
    for line in interleaved(30, 6, seed=3):
        history = histories[line]
        history.append(user(random.Random(len(history) * 7 + line).choice(["go", "next", "really?"])))
        with program.named(f"conversation {line}" if named else None):
            client = clients and clients[line % len(clients)]
            history += program.model("openai", history[-3:], line, client_object=client).messages


@scenario
def short_answers_in_a_window(program):
    short_answers(program)


@scenario
def short_answers_in_a_window_own_clients(program):
    short_answers(program, [Client() for _ in range(30)])


@scenario
def short_answers_in_a_window_named(program):
    short_answers(program, named=True)


@scenario
def clients_in_rotation(program):
    """Two clients take turns (two API keys), so that the client says nothing about the conversation."""
    program.rule = lambda messages: random.Random(str(messages[-1])).choice(["OK", "Yes.", "No."])
    rotation = [Client(), Client()]
    histories = {line: [user(f"I am {line}")] for line in range(20)}
    for turn, line in enumerate(interleaved(20, 6, seed=8)):
        history = histories[line]
        answer = program.model("openai", history[-5:], line, client_object=rotation[turn % 2])
        history += [*answer.messages, user(random.Random(turn).choice(["go", "next"]))]


@scenario
def mirrored_agents(program):
    one, other, text = [], [], "Begin"
    for _ in range(6):
        one.append(user(text))
        answer = program.model("openai", one, "one", omits=0, system="You debate.")
        one += answer.messages
        other.append(user(answer.text))
        answer = program.model("openai", other, "other", omits=0, system="You debate.")
        other += answer.messages
        text = answer.text


@scenario
def group_chat_by_name(program):
    log = [("host", "Discuss")]
    for turn in range(9):
        speaker = ["ann", "bob", "cy"][turn % 3]
        messages = [
            assistant(text) if name == speaker else {"role": "user", "name": name, "content": text}
            for name, text in log
        ]
        answer = program.model("openai", messages, speaker, omits=0, system=f"You are {speaker}.")
        log.append((speaker, answer.text))


@scenario
def group_chat_of_roles(program):
    """All speakers are assistants to each other; their system prompts differ."""
    prompts = {"writer": "You write stories about lamps, in short words.", "critic": "Find faults. Be harsh and exact."}
    log = [user("Write about a lamp")]
    for turn in range(8):
        speaker = ["writer", "critic"][turn % 2]
        log += program.model("openai", log, speaker, omits=0, system=prompts[speaker]).messages


@scenario
def agents_told_apart_by_tools(program):
    """Two agents with one prompt and the same short answers differ only in their tools."""
    program.rule = lambda _: "OK"
    histories = {"search": [user("start search")], "code": [user("start code")]}
    for turn in range(5):
        for name, history in histories.items():
            answer = program.model("openai", history[-3:], name, tools=[name, f"{name}_more"])
            history += [*answer.messages, user(f"next {turn}")]


@scenario
def asynchronous_agents(program):
    histories = {line: [] for line in range(20)}
    for turn in range(5):
        for history in histories.values():
            history.append(user(f"task {turn}"))
        for line, history in histories.items():
            history += program.model("openai", history, line, omits=0).messages


@scenario
def seeded_greeting(program):
    greeting = "Hello! How can I assist you today?"
    numbers = count()
    program.rule = lambda messages: (
        greeting if len(messages) == 1 else f"Answer number {next(numbers)} to what was asked"
    )
    program.model("openai", [user("hi")], "first", omits=0)
    for line in range(10):
        history = [assistant(greeting)]
        for turn in range(3):
            history.append(user(f"conversation {line} asks {turn}"))
            history += program.model("openai", history, line, omits=0).messages


@scenario
def canned_refusals_of_workers(program):
    """Three quarters of the calls are made by other processes; half of the answers are the same refusal."""
    numbers = count()
    refusal = "I'm sorry, but I can't help with that request."
    program.rule = lambda messages: (
        refusal
        if random.Random(str(messages[-1])).random() < 0.5
        else f"Answer number {next(numbers)} to what was asked"
    )
    rng = random.Random(5)
    histories = {line: [user("Hello")] for line in range(40)}
    for line in interleaved(40, 8, seed=5):
        history = histories[line]
        if rng.random() < 0.75:
            answers = [assistant(program.rule(history))]
        else:
            answers = program.model("openai", history, line, omits=0).messages
        history += [*answers, user(f"user {line} asks {len(history)}")]


@scenario
def long_refusals_of_workers(program):
    """As before, but the refusal is long, and each conversation begins with another question."""
    refusal = "I'm sorry, but I can't help with that request. Please ask me about the lamps that this shop sells."
    numbers = count()
    program.rule = lambda messages: (
        refusal
        if random.Random(str(messages[-1])).random() < 0.3
        else f"Answer number {next(numbers)} to what was asked"
    )
    rng = random.Random(7)
    histories = {line: [user(f"user {line} begins")] for line in range(40)}
    for line in interleaved(40, 8, seed=7):
        history = histories[line]
        if rng.random() < 0.75:
            answers = [assistant(program.rule(history))]
        else:
            answers = program.model("openai", history[-7:], line).messages
        history += [*answers, user(f"user {line} asks {len(history)}")]


@scenario
def short_exchanges_of_workers(program):
    """Other processes make most calls of a conversation, and exchanges such as "go", "OK" occur in all of them."""
    program.rule = lambda messages: random.Random(str(messages[-1])).choice(["OK", "Yes."])
    rng = random.Random(6)
    histories = {line: [user(f"I am number {line}")] for line in range(30)}
    for line in interleaved(30, 8, seed=6):
        history = histories[line]
        if rng.random() < 0.7:
            history += [assistant(program.rule(history)), user(rng.choice(["go", "next"]))]
        else:
            history += program.model("openai", history, line, omits=0).messages
            history.append(user(rng.choice(["go", "next"])))


@scenario
def prompts_with_the_time(program):
    """The system prompt changes each minute for everyone, so that equal prompts mean nothing."""
    histories = {line: [user(f"I am {line}")] for line in range(20)}
    program.rule = lambda _: "OK"
    for turn, line in enumerate(interleaved(20, 6, seed=9)):
        history = histories[line]
        prompt = f"You are a helpful assistant of a shop. It is 10:{turn // 4:02}."
        history += program.model("openai", history, line, omits=0, system=prompt).messages
        history.append(user("go"))


# Calls without a conversation, and calls beside one.


@scenario
def map_reduce(program):
    texts = [program.model("openai", [user("Write a haiku")], ("map", i), NOTHING, omits=0).text for i in range(24)]
    program.model("openai", [user("Pick the best:\n" + "\n".join(texts))], "reduce", NOTHING, omits=0)


@scenario
def one_shots(program):
    for number in range(300):
        program.model("openai", [user(f"text {number % 40}")], number, NOTHING, omits=0, system="Classify.")


@scenario
def few_shot(program):
    examples = [user("good"), assistant("positive"), user("bad"), assistant("negative")]
    program.rule = lambda messages: random.Random(str(messages[-1])).choice(["positive", "negative"])
    for number in range(100):
        messages = [*examples, user(f"text {'x' * (number % 9)}{number}")]
        program.model("openai", messages, number, NOTHING, omits=0, system="Classify.")


@scenario
def few_shot_with_tools(program):
    """The examples contain a tool call with a numbered id, which the answers repeat."""
    call = {"id": "call_1", "type": "function", "function": {"name": "classify", "arguments": '{"as": "good"}'}}
    examples = [
        user("fine"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        FORMS["openai"].result("call_1", "classify", "done"),
    ]
    for number in range(20):
        answer = program.model("openai", [*examples, user(f"text {number}")], number, NOTHING, omits=0)
        program.calls.record_answer(program.rows[-1].call, ProviderAnswer([examples[1]], answer.id))


@scenario
def examples_of_own_answers(program):
    """The examples in a request are similar earlier requests and their answers."""
    done = []
    rng = random.Random(12)
    program.rule = lambda messages: f"{messages[-1]['content'][:8]} is about lamps and their broken shades."
    for number in range(30):
        text = user(
            f"Text {number}: the lamp was delivered with a broken shade, and the customer wants a new one. " * 2
        )
        # A request with a single example looks like the second turn of a conversation.
        examples = [message for pair in rng.sample(done, 3 if number > 2 else 0) for message in pair]
        answer = program.model("openai", [*examples, text], number, NOTHING, omits=0)
        done.append([text, *answer.messages])


@scenario
def last_message_only(program):
    for number in range(10):
        program.model("openai", [user(f"question {number}")], number, NOTHING, omits=0)


@scenario
def growing_prompt(program):
    trajectory = ""
    for number in range(6):
        answer = program.model("openai", [user("Question: x\n" + trajectory)], number, NOTHING, omits=0)
        trajectory += f"Thought {number}: {answer.text}\n"


@scenario
def sub_agent_nested(program):
    history = []
    for turn in range(5):
        history.append(user(f"step {turn}"))
        answer = program.model("openai", history, "main", omits=0, system="main")
        sub = [user(answer.text)]
        for part in range(3):
            sub_answer = program.model("openai", sub, ("sub", turn), omits=0, system="sub")
            sub += [*sub_answer.messages, user(f"and {part}")]
        history += [*answer.messages, user("The sub-agent said: " + sub_answer.text)]


@scenario
def guard_and_title(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        program.rule = lambda _: "no"
        guard = "Is the last message unsafe? yes/no"
        program.model("openai", history, "guard", EITHER, system=guard)
        program.rule = None
        history += program.model("openai", history, "main", omits=0).messages


@scenario
def guard_in_one_trace(program):
    """Each request of a server is a trace, in which a guard sees the same messages as the main call."""
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        with program.traced(turn + 1):
            program.rule = lambda _: "OK"
            program.model("openai", history[-1:], "guard", EITHER, system="Is it unsafe? Say OK if it is not.")
            history += program.model("openai", history, "main", omits=0).messages


@scenario
def router_in_front(program):
    history = []
    for turn in range(8):
        history.append(user(f"question {turn}"))
        program.rule = lambda _: "billing"
        program.model(
            "openai", history[-1:], ("router", turn), NOTHING, omits=0, system="Which department?", model="small"
        )
        program.rule = None
        history += program.model("openai", history, "main", omits=0).messages


@scenario
def judge_of_answers(program):
    history = []
    for turn in range(6):
        history.append(user(f"question {turn}"))
        answer = program.model("openai", history, "main", omits=0)
        judged = [user(f"Question: question {turn}\nAnswer: {answer.text}\nIs the answer right?")]
        program.model("openai", judged, ("judge", turn), NOTHING, omits=0, system="You judge answers.")
        history += answer.messages


# Summaries.


@scenario
def summary_of_text(program):
    history = []
    for turn in range(14):
        history.append(user(f"question {turn} about the matter"))
        if len(history) > 6:
            text = "\n".join(f"{message['role']}: {message['content']}" for message in history[:-3])
            line = ("summary", turn)
            summary = program.model("openai", [user(text)], line, NOTHING, omits=0, system="Summarize.").text
            history = [user("Summary of earlier: " + summary), *history[-3:]]
        history += program.model("openai", history).messages


@scenario
def summary_by_instruction(program):
    history = []
    for turn in range(14):
        history.append(user(f"question {turn} about the matter"))
        if len(history) > 6:
            summary = program.model("openai", [*history[:-1], user("Summarize the above.")]).text
            history = [user("Summary so far: " + summary), *history[-3:]]
        history += program.model("openai", history).messages


@scenario
def summary_in_the_system_prompt(program):
    history, system = [], SYSTEM
    for turn in range(14):
        history.append(user(f"question {turn} about the matter"))
        if len(history) > 6:
            text = "\n".join(message["content"] for message in history[:-3])
            line = ("summary", turn)
            summary = program.model("openai", [user(text)], line, NOTHING, omits=0, system="Summarize.").text
            history, system = history[-3:], f"{SYSTEM}\nEarlier: {summary}"
        history += program.model("openai", history, "main", system=system).messages


# The forms of the providers.


def tool_agent(program, client, window=None):
    form = FORMS[client]
    histories = {line: [form.user(f"Task {line}: find it")] for line in range(4)}
    for line in interleaved(4, 6, seed=11):
        history = histories[line]
        program.rule = (
            (lambda _: ["search", "open"]) if len(history) % 2 else (lambda m: f"Found after {len(m)} messages")
        )
        cut = history if window is None else history[:1] + history[1:][-window:]
        answer = program.model(client, cut, line, omits=None if window else 0)
        history += answer.messages
        for call_id, name in zip(answer.call_ids, ("search", "open"), strict=False):
            history.append(form.result(call_id, name, f"{name} found {len(history)} things for {line}"))
        if not answer.call_ids:
            history.append(form.user(f"and more of {line}"))


@scenario
def tools_of_openai(program):
    tool_agent(program, "openai")


@scenario
def tools_of_responses(program):
    tool_agent(program, "responses")


@scenario
def tools_of_anthropic(program):
    tool_agent(program, "anthropic")


@scenario
def tools_of_bedrock(program):
    tool_agent(program, "bedrock")


@scenario
def tools_of_gemini(program):
    tool_agent(program, "gemini")


@scenario
def tools_of_gemini_in_a_window(program):
    tool_agent(program, "gemini", window=6)


@scenario
def responses_results_behind_their_calls(program):
    """The program puts each result directly behind its call, and leaves out the reasoning."""
    program.rule = lambda _: ["search", "open"]
    history = [user("find it")]
    for turn in range(6):
        answer = program.model("responses", history, omits=0)
        for item in answer.messages[1:]:
            history += [item, FORMS["responses"].result(item["call_id"], item["name"], f"result {turn}")]


@scenario
def responses_previous_id(program):
    previous = {}
    for turn in range(5):
        for line in range(5):
            messages = [user("Hello" if turn == 0 else f"go on {turn}")]
            answer = program.model("responses", messages, line, omits=0, previous=previous.get(line))
            previous[line] = answer.id


@scenario
def responses_stored_conversation(program):
    for line in range(3):
        program.model("responses", [user("Hello")], line, EITHER, stored=f"conv_{line}")
    for turn in range(4):
        for line in range(3):
            program.model("responses", [user(f"go on {turn}")], line, omits=0, stored=f"conv_{line}")


@scenario
def anthropic_cache_control_moves(program):
    history = []
    for turn in range(8):
        for message in history:
            for block in message["content"]:
                block.pop("cache_control", None)
        block = {"type": "text", "text": f"question {turn}", "cache_control": {"type": "ephemeral"}}
        history.append({"role": "user", "content": [block]})
        history += program.model("anthropic", history, omits=0).messages


@scenario
def provider_switched(program):
    texts = []
    for turn in range(8):
        client = ("openai", "anthropic", "gemini", "bedrock")[turn % 4]
        form = FORMS[client]
        texts.append(f"question {turn}")
        messages = [form.assistant(text) if place % 2 else form.user(text) for place, text in enumerate(texts)]
        texts.append(program.model(client, messages, omits=0).text)


@scenario
def images_with_the_same_question(program):
    """Conversations differ only in the image that they begin with."""
    program.rule = lambda messages: "It is a lamp." if len(messages) == 1 else f"It is lamp {messages[0]['content'][1]}"
    histories = {}
    for line in range(6):
        image = {"type": "image_url", "image_url": {"url": f"https://example.com/{line}.png"}}
        histories[line] = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    for line in interleaved(6, 3, seed=4):
        history = histories[line]
        history += [*program.model("openai", history, line, omits=0).messages, user("And which one?")]


# Named conversations.


def named(function):
    def run(program):
        with program.named(("c-1", "agent")):
            function(program)

    SCENARIOS[f"{function.__name__}_named"] = run


for _function in (
    loop_append,
    loop_window_rebuilt,
    summary_of_text,
    summary_by_instruction,
    guard_and_title,
    window_of_last_answer,
    sub_agent_nested,
    retries,
    structured_reask,
    best_of_n,
    few_shot,
    router_in_front,
    tool_loop_cleared,
    edited_answers,
):
    named(_function)


class Totals(SimpleNamespace):
    """The number of calls by verdict.

    right: as the scenario knows.
    split: no parent, although there is one.
    unknown: recorded as unknown.
    wrong_merge: the parent is another line's call.
    false_link: a parent, although there is none.
    twin: the parent is another line's call, but its messages and its answer are the same as the right one's, or the
        request begins with all of them, so that the same is recorded.
    miscounted: right, but with a wrong number of omitted messages.
    """


VERDICTS = ("right", "split", "unknown", "wrong_merge", "false_link", "twin", "miscounted")


def verdicts(rows: list[Row]) -> Totals:
    """Compare what was recorded with the truth."""
    totals = Totals(calls=len(rows), **dict.fromkeys(VERDICTS, 0))
    line_of = {id(row.call): row.line for row in rows}
    seen: dict[Any, list[Any]] = {}
    for row in rows:
        verdict = _verdict(row, seen.get(row.line, []), line_of)
        setattr(totals, verdict, getattr(totals, verdict) + 1)
        totals.miscounted += verdict == "right" and row.omits is not None and row.unsent != row.omits
        seen.setdefault(row.line, []).append(row.call)
    return totals


def _verdict(row: Row, seen: list[Any], line_of: dict[int, Any]) -> str:
    parent = row.match.parent
    if row.after == EITHER:
        return "right"
    if parent is not None and line_of[id(parent)] != row.line and _begins_with(row.call, parent):
        return "twin"
    if row.match.is_unknown:
        return "unknown"
    if row.after == NOTHING or not seen:
        return "right" if parent is None else "false_link"
    if parent is None:
        return "split"
    if line_of[id(parent)] == row.line:
        return "right"
    is_twin = any(
        call.fingerprints == parent.fingerprints and call.answer_hashes == parent.answer_hashes for call in seen
    )
    return "twin" if is_twin else "wrong_merge"


def _begins_with(call: Any, parent: Any) -> bool:
    """Return True if a call's messages begin with all messages of another call and its answer."""
    length = len(parent.messages)
    if call.fingerprints[:length] != parent.fingerprints or len(call.messages) == length:
        return False
    return bool(parent.answer_hashes & {key.hash for key in message_keys(call.messages[length]).answer_keys})


def run_scenario(name: str) -> Totals:
    program = Program()
    SCENARIOS[name](program)
    return verdicts(program.rows)


# Recorded conversations, replayed call by call.

_WISHES = ("Yes, please go on.", "Yes, please cancel it.", "Thank you for your help!")
_PHRASES = (
    "I can help you with that. Could you please give me your customer number, so that I can look up your orders?",
    "To assist you with your order, I need your customer number. Could you please tell it to me?",
    "It was a pleasure to help you! If you have any more questions about your orders, feel free to ask. Goodbye!",
)
_WORDS = """
order lamp shade bulb cable bracket delivery refund carrier depot invoice voucher customer address parcel warranty
green broken missing late heavy second first new old wrong cheap please today tomorrow Monday Friday never again still
check cancel change send return replace repair confirm pay wait explain offer transfer
""".split()  # noqa: SIM905  # easier to read


def recorded_conversation(number: int) -> list[dict[str, Any]]:
    """Return a conversation of a customer and a support agent with tools, as a program would have recorded it.

    Two conversations are with the same customer about the same orders. As in recorded conversations of GPT-4o with
    simulated customers (tau-bench), 6 % of the answers and 4 % of the customers' messages also occur in other
    conversations, half of the tool calls do, and few texts are short.
    """
    rng, customer = random.Random(number), random.Random(-1 - number // 2)

    def said(share, phrases, words):
        return rng.choice(phrases) if rng.random() < share else " ".join(rng.choices(_WORDS, k=words)) + "."

    def call(tool, argument):
        call_id = "call_" + "".join(rng.choices("abcdefghijkmnpqrstuvwxyzABCDEFGH23456789", k=24))
        function = {"name": tool, "arguments": json.dumps({"number": argument})}
        calls = [{"id": call_id, "type": "function", "function": function}]
        result = " ".join(random.Random(argument).choices(_WORDS, k=20))
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            OpenAIForm().result(call_id, tool, result),
        ]

    name = customer.randrange(10**6, 10**7)
    orders = [customer.randrange(10**4, 10**5) for _ in range(4)]
    messages = [
        user(said(0.01, _WISHES, 12)),
        assistant(said(0.2, _PHRASES, 20)),
        user(f"It is {name}, {said(0, (), 3)}"),
    ]
    messages += call("get_customer_details", name)
    for _ in range(rng.randrange(2, 8)):
        for _ in range(rng.choice((0, 1, 1, 2))):
            order = rng.choice(orders) if rng.random() < 0.7 else rng.randrange(10**4, 10**5)
            messages += call("get_order_details", order)
        messages += [assistant(said(0.03, _PHRASES, 25)), user(said(0.06, _WISHES, 12))]
    return [*messages, assistant(said(0.1, _PHRASES, 20))]


def replay(conversations, window=None, *, ids=True, named=False, unseen=0.0) -> Totals:
    """Call a model for each recorded answer, the conversations interleaved.

    Args:
        conversations: The conversations.
        window: The program sends only this many of the last messages.
        ids: Whether tool calls keep their ids; otherwise all have the same one, as if the server gave none.
        named: Whether the program names each conversation.
        unseen: The share of the calls that other processes make.
    """
    conversations = copy.deepcopy(conversations)
    for message in () if ids else [message for messages in conversations for message in messages]:
        for call in message.get("tool_calls", ()):
            call["id"] = "call_0"
        if "tool_call_id" in message:
            message["tool_call_id"] = "call_0"
    places = {
        line: [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        for line, messages in enumerate(conversations)
    }
    order = [line for line, answers in places.items() for _ in answers]
    rng = random.Random(4)
    rng.shuffle(order)
    program = Program()
    for line in order:
        place = places[line].pop(0)
        if rng.random() < unseen:
            continue
        messages = conversations[line][:place]
        program.recorded = [conversations[line][place]]
        with program.named(line if named else None):
            program.model("openai", messages if window is None else messages[-window:], line)
    return verdicts(program.rows)


def table(results: dict[str, Totals]) -> str:
    """Return the totals of scenarios as a table in Markdown."""
    columns = ("calls", *VERDICTS)
    lines = ["| scenario | " + " | ".join(columns).replace("_", " ") + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name.replace('_', ' ')} | " + " | ".join(str(getattr(totals, column)) for column in columns) + " |"
        for name, totals in results.items()
    ]
    total = [sum(getattr(totals, column) for totals in results.values()) for column in columns]
    return "\n".join([*lines, "| total | " + " | ".join(map(str, total)) + " |"])


if __name__ == "__main__":
    print(table({name: run_scenario(name) for name in SCENARIOS}))
