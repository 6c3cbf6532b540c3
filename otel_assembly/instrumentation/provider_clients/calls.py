"""Records each request of a provider's client as one assembly.

The program prepares its messages itself, and the instrumentation sees only the request. So the assembly is derived from
the request and from earlier calls:

1. The input is the messages of the parent (the call that this call continues, see `parent_calls`), the parent's answer
   and the new messages.
2. Reductions that the agent's framework or the program reports are steps with their own names (see `agent_runs` and
   `program_reductions`).
3. Other differences between the input and the request are one step named ``caller``: it drops the messages that the
   request lacks.
4. The request is the output.

Three kinds of requests are not recorded here, because they already belong to an assembly: a request inside a
framework's call of its model, a request with the prompt of an `Assembler` of this library, and the request of a reducer
or policy that makes a summary.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.budget.attempt import Attempt
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.clients import ClientCall, count_tokens
from otel_assembly.instrumentation.context_variables import CALL, CLIENT_CALL
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.provider_clients.agent_runs import current_agent_run
from otel_assembly.instrumentation.provider_clients.call_inputs import input_of
from otel_assembly.instrumentation.provider_clients.conversations import current_conversation
from otel_assembly.instrumentation.provider_clients.own_prompts import OWN_PROMPTS
from otel_assembly.instrumentation.provider_clients.parent_calls import ParentCalls
from otel_assembly.instrumentation.provider_clients.program_reductions import (
    PROGRAM_REDUCTIONS,
    take_program_reductions,
)
from otel_assembly.instrumentation.provider_clients.recorded_calls import CallPosition, ParentMatch
from otel_assembly.instrumentation.provider_clients.requests import plain, split_prompts
from otel_assembly.instrumentation.provider_clients.stored_conversations import STORED_CONVERSATIONS, UnreadItems
from otel_assembly.messages.event_facts import describe
from otel_assembly.observe.step_report import StepReport, SummarizerAttempt
from otel_assembly.recorder import ProviderEdit
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.provider_clients.apis import ProviderAPI
    from otel_assembly.instrumentation.provider_clients.conversations import NamedConversation
    from otel_assembly.instrumentation.provider_clients.own_prompts import OwnPrompt
    from otel_assembly.instrumentation.provider_clients.recorded_calls import RecordedCall
    from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer, ProviderRequest
    from otel_assembly.observe.assembly import ObservedAssembly

#: The calls of all provider clients: a program may send one conversation to several providers.
PARENT_CALLS: Final = ParentCalls()
#: The name of the step with what the calling program omitted.
CALLER: Final = "caller"
#: The counts in an edit of Anthropic's context management, and the fields of `ProviderEdit`.
_COUNTS: Final = {
    "cleared_input_tokens": "cleared_tokens",
    "cleared_tool_uses": "cleared_tool_uses",
    "cleared_thinking_turns": "cleared_thinking_turns",
}


class ProviderCall(ClientCall):
    """One request of a provider's client, whose body is the final prompt of a model call.

    Args:
        client: The client object; None if the client has none.
    """

    def __init__(
        self, instrumentation: Instrumentation, api: ProviderAPI, request: ProviderRequest, client: object
    ) -> None:
        super().__init__(
            instrumentation,
            lambda: ClientRequest(
                request.messages,
                request.prompts,
                request.tools,
                request.model,
                client=api.client_rules,
                allowed_edits=request.edits,
            ),
            lambda answer: _text_of(api.read_answer(answer)),
        )
        self._api = api
        self._request_body = request
        self._client = client
        self._answer_collector = api.collector()
        self._recorded_call: RecordedCall | None = None
        self._assembly: ObservedAssembly | None = None
        self._edits: list[ProviderEdit] = []
        #: The key of the assembly's prompt that the request sends; None if there is none.
        self._own_prompt: OwnPrompt | None = None

    def _begin(self) -> None:
        """Record the request, unless it already belongs to an assembly; the module's docstring lists these cases."""
        self._own_prompt = OWN_PROMPTS.claim(self._request_body)
        makes_summary = getattr(trace.get_current_span(), "name", "") == names.SPAN_COMPACT_BLOCK
        if self._own_prompt is None and not makes_summary and not _is_inside_recorded_call():
            super()._begin()

    @contextmanager
    def current(self) -> Iterator[None]:
        if self._began and self._is_stream:  # the steps of a stream call no other client
            yield
            return
        with super().current():
            if self._own_prompt is None:
                yield
                return
            with context_value(CLIENT_CALL, (self, CALL.get())):  # a client that this client calls is no other call
                yield

    def _record_request(self, request: ClientRequest) -> ModelCall:
        """Record the assembly: its input, the steps of the framework and the program, and the request."""
        conversation, run = current_conversation(), current_agent_run()
        body, match, recorded = self._find_parent(conversation)
        # With these ids, the request has only the new messages. The model also reads those that the provider stores.
        is_stored_by_provider = body.previous_response_id is not None or body.conversation_id is not None
        parent_input, has_omissions = input_of(match, body)
        model_messages = parent_input if is_stored_by_provider else body.messages
        # The framework's reducers, or else the program, can report what the input was before they reduced it.
        call_input, program_reports = parent_input, list[StepReport]()
        unreduced, reports = (parent_input, []) if run is None else run.take_framework_reductions(body.messages)
        if reports:  # the framework's reducers got these messages, so the program has no others
            call_input, has_omissions = unreduced, False
        elif PROGRAM_REDUCTIONS.get():
            call_input, program_reports = take_program_reductions(
                model_messages,
                conversation.id,
                call_input=parent_input,
                # The program may report SDK objects and system prompts; a request has dicts, and separate prompts.
                read=lambda reported: split_prompts([plain(message) for message in reported])[1],
            )
        prompts = body.prompts if match.parent is None else list(match.parent.prompts)
        with context_value(PROGRAM_REDUCTIONS, ()):  # `ModelCall` takes no reports, because they are taken already
            call = ModelCall(
                self._instrumentation if run is None else run.instrumentation,
                InvokingAgent(recorded.thread, "", conversation.agent, conversation.id),
                messages=call_input,
                prompts=prompts,
                tools=body.tools,
                model=body.model,
            )
        for report in program_reports:
            summarizers = _summarizers(_added(report.before, report.after or ()), recorded)
            reports.append(replace(report, attempts=_attempts(summarizers)))
        for report in reports:
            call.replay_deferred(report)
        # `call.out` is the output of the last report. Its differences from the request are the step `caller`.
        if program_reports:
            has_omissions = not same_objects(call.out, model_messages)
        elif is_stored_by_provider:  # the provider has the other messages, so the model reads what the steps left
            model_messages = call.out
        if has_omissions or prompts != body.prompts:
            self._record_omissions(call, before=call.out, after=model_messages, body=body, recorded=recorded)
        is_unknown = (match.is_unknown and not program_reports) or recorded.is_incomplete
        stored_count = len(model_messages) - len(self._request_body.messages)
        call.client_called(
            request._replace(
                messages=model_messages,
                unknown=is_unknown,
                held_events=stored_count if is_stored_by_provider and not is_unknown else None,
            )
        )
        self._assembly = call.assembly
        return call

    def _find_parent(self, conversation: NamedConversation) -> tuple[ProviderRequest, ParentMatch, RecordedCall]:
        """Record the request among the calls of all clients, and return it with its parent and its record.

        The returned request also has the items that the provider stores and no call has read yet. Its messages that the
        parent sent are the parent's objects, so that they compare by identity.
        """
        body, unread = self._request_body, UnreadItems([], is_all=False)
        if body.conversation_id is not None:
            unread = STORED_CONVERSATIONS.take_unread(body.conversation_id)
            body = body._replace(messages=[*unread.items, *body.messages])
        position = CallPosition(
            conversation=None if conversation.id is None else conversation,
            trace_id=trace.get_current_span().get_span_context().trace_id or None,
            thread_id=threading.get_ident(),
            client=self._client,
        )
        match, recorded = PARENT_CALLS.record(body, position)
        self._recorded_call = recorded
        if unread.is_all:  # this is the first call of the stored conversation
            match, recorded.is_incomplete = ParentMatch(), False
        return body._replace(messages=recorded.messages), match, recorded

    def _record_omissions(
        self,
        call: ModelCall,
        *,
        before: Sequence[Any],
        after: Sequence[Any],
        body: ProviderRequest,
        recorded: RecordedCall,
    ) -> None:
        """Record the step ``caller``: the program changed the messages of a call without a report."""
        summarizers = _summarizers(_added(before, after), recorded)
        report = StepReport(
            CALLER,
            before,
            after,
            kind="reduction",
            reason=DecisionReason.NOT_SENT,
            prompts=body.prompts,
            verdicts=omission_verdicts(before, after, {key for key, calls in summarizers.items() if calls}),
            attempts=_attempts(summarizers),
            stands_in=False,
        )
        call.replay_deferred(report)

    def on_chunk(self, chunk: Any) -> None:
        with self._instrumentation.suppress_errors():
            self._answer_collector.add(chunk)

    def on_result(self, answer: Any) -> None:
        super().on_result(answer)
        if self._recorded_call is not None:
            with self._instrumentation.suppress_errors():
                provider_answer = self._api.read_answer(answer)
                if provider_answer is not None:
                    self._remember_answer(provider_answer)

    def _remember_answer(self, answer: ProviderAnswer) -> None:
        self._edits = provider_edits(answer)
        if self._recorded_call is not None:
            PARENT_CALLS.record_answer(self._recorded_call, answer)

    def end(self, error: BaseException | None = None) -> None:
        # Streams may call this again: that of LiteLLM when it is deleted after its last chunk, and the body of
        # Bedrock's `InvokeModel` at each further read.
        if not self.over:
            with self._instrumentation.suppress_errors():
                self._finish(error)
            if self._assembly is not None:
                self._assembly.provider_answered(self._edits)
        super().end(error)

    def _finish(self, error: BaseException | None) -> None:
        """Remember the answer of a stream, as far as it was received, or that the call failed."""
        streamed_answer = self._answer_collector.answer() if self._is_stream else None
        if self._is_stream and self._compaction is not None:  # the answer is a summary
            self._chunks = [_text_of(streamed_answer) or ""]  # `ClientCall.end` records the chunks as the summary
        if streamed_answer is not None:
            self._remember_answer(streamed_answer)
        if error is None:
            return
        if streamed_answer is None and self._recorded_call is not None:
            PARENT_CALLS.record_failure(self._recorded_call)
        if self._own_prompt is not None:
            OWN_PROMPTS.give_back(self._own_prompt)


def _is_inside_recorded_call() -> bool:
    """Return True inside a framework's call of its model whose prompt was recorded already.

    A framework's stream may enter the contexts of its wrappers in another order than the first call did, so that
    another model call is current; it was sent, too.
    """
    outer, call = CLIENT_CALL.get(), CALL.get()
    return outer is not None and not outer[0].over and call is not None and call.ended


def _added(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    before_ids = set(map(id, before))
    return [message for message in after if id(message) not in before_ids]


def _summarizers(added: Sequence[Any], recorded: RecordedCall) -> dict[int, list[RecordedCall]]:
    """Return the earlier calls whose answers each of these messages quotes, by the `id` of the message."""
    return {id(message): PARENT_CALLS.quoted_calls([message], besides=recorded) for message in added}


def _attempts(summarizers: Mapping[int, Sequence[RecordedCall]]) -> list[SummarizerAttempt]:
    """Return the earlier calls whose answers are quoted as summaries, for the report of the step with the summaries."""
    return [
        SummarizerAttempt(
            Attempt(summarizer.model or "model", number=1, target=0, tokens_in=0),
            partial(count_tokens, messages=summarizer.messages),  # counted when the step is recorded
            "\n".join(summarizer.answer_texts),
        )
        for calls in summarizers.values()
        for summarizer in calls
    ]


def _text_of(answer: ProviderAnswer | None) -> str | None:
    if answer is None:
        return None
    return "".join(text for message in answer.messages for text in describe(message).texts)


def omission_verdicts(before: Sequence[Any], after: Sequence[Any], summaries: Collection[int]) -> list[Verdict]:
    """Return the verdicts on the messages that a program replaced; what is omitted without a replacement has none.

    A new message stands for the omitted messages between the same two neighbors: for one of them if it is an edit of it
    (the result of the same tool call, or the message at the same place), for all of them if it is a summary. Messages
    that the program kept are the identical objects. `summaries` has the `id` of each new message that quotes an earlier
    answer.
    """
    position_of = {id(message): position for position, message in enumerate(before)}
    sent = set(map(id, after))
    verdicts = []
    start = 0  # the position in `before` after the last kept message
    added: list[Any] = []  # the new messages after the last kept message
    for message in after:
        position = position_of.get(id(message))
        if position is None:
            added.append(message)
            continue
        if added:
            omitted = [message for message in before[start:position] if id(message) not in sent]
            verdicts += _replacements(omitted, added, summaries)
        start, added = position + 1, []
    omitted = [message for message in before[start:] if id(message) not in sent]
    return verdicts + _replacements(omitted, added, summaries)


def _replacements(omitted: list[Any], added: list[Any], summaries: Collection[int]) -> list[Verdict]:
    """Return the verdicts on messages that a program omitted between two kept messages, where it added others."""
    verdicts = []
    # Tool results, by the ids of their calls.
    omitted_results = {tuple(describe(message).closes): message for message in omitted if describe(message).closes}
    same_count = len(omitted) == len(added)
    for place, message in enumerate(added):
        if id(message) in summaries:
            continue
        facts = describe(message)
        original = omitted_results.pop(tuple(facts.closes), None) if facts.closes else None
        if original is None and same_count and describe(omitted[place]).kind == facts.kind:
            original = omitted[place]
        if original is not None:
            verdicts.append(_compacted([original], message))
    edited_ids = {id(event) for verdict in verdicts for event in verdict.events}
    remaining = [message for message in omitted if id(message) not in edited_ids]
    summary = next((message for message in added if id(message) in summaries), None)
    if summary is not None and remaining:
        verdicts.append(_compacted(remaining, summary))
    return verdicts


def _compacted(messages: list[Any], into: Any) -> Verdict:
    return Verdict(messages, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, into)


def provider_edits(answer: ProviderAnswer) -> list[ProviderEdit]:
    """Return the edits that an answer reports; removed blocks with the same type and reason become one edit."""
    edits: list[ProviderEdit] = []
    removed: Counter[tuple[str, str | None]] = Counter()
    for edit in answer.applied_edits:
        edit_type, reason = edit.get("type"), edit.get("reason")
        counts = {field: edit[name] for name, field in _COUNTS.items() if isinstance(edit.get(name), int)}
        has_summary = edit.get("content") is not None or edit.get("encrypted_content") is not None
        if not isinstance(edit_type, str) or (edit_type == "compaction" and not has_summary):
            continue  # the API ignores a compaction without a summary
        if counts or edit_type == "compaction":
            edits.append(ProviderEdit(edit_type, **counts))
            continue
        if edit.get("action") == "removed":  # an item of OpenAI's, whose type is `reasoning`
            edit_type = f"{edit_type}_removed"
        removed[edit_type, reason if isinstance(reason, str) else None] += 1
    edits += [
        ProviderEdit(edit_type, cleared_blocks=count, reason=reason) for (edit_type, reason), count in removed.items()
    ]
    return edits
