"""The errors of otel-assembly.

::

    AssemblyError
    ├── ConfigurationError (ValueError)      an invalid limit, chain or configuration
    │   └── UnknownNameError                 an unknown policy, parameter or model, with a suggestion
    ├── DescribeError (TypeError)            an event that describe() cannot read
    ├── RenderError (TypeError)              an event that cannot be rendered for a provider
    ├── TranscriptError (ValueError)         a recorded conversation that cannot be read, with file and line
    ├── SpanFormatError (ValueError)         spans that another version of this package wrote
    ├── TokenizerError                       no tokenizer, or a vocabulary with a wrong checksum
    ├── PolicyError                          the base class of policy errors
    │   ├── PolicyFailedError                the policy raised an exception
    │   └── PolicyContractError              the policy changed its input or returned a wrong type
    ├── ContextOverflowError                 the required content does not fit the budget
    ├── CompactionError                      every attempt to compact content failed
    ├── SourceFailedError                    a retriever, a recall or a loader failed
    ├── HaltedError                          the conversation was halted
    ├── MiddlewareError                      a middleware raised or returned no result
    ├── ToolError                            a tool call failed: arguments, time limit or result
    ├── SessionError                         a session refused an input or could not be loaded
    ├── StructuredOutputError                a model's answer does not match its schema
    ├── ModelCallError                       a call of a model provider failed
    │   └── ModelContextLengthError          the provider refused the prompt as too long
    ├── KnowledgeError                       the base class of knowledge store errors
    │   ├── KnowledgePathError (ValueError)  an invalid path, or one outside the store
    │   ├── KnowledgeStoreError              the storage failed
    │   └── KnowledgeConflictError           other writers kept changing the same entry
    └── NetworkError                         the base class of hub and session log errors
        ├── NotFoundError                    an unknown session, participant or adapter
        ├── AccessDeniedError                the caller is not a participant
        ├── ProtocolError                    the session's protocol refuses the envelope
        ├── InboxFull                        a participant has too many unconfirmed envelopes
        ├── AdapterError                     an adapter raised an exception
        └── SessionLogError                  the base class of session log errors
            ├── LogConflictError             another writer was first; nothing was written
            ├── LogUnsureError               it is unknown whether the write succeeded
            ├── LogUnavailableError          the log's storage does not respond
            ├── TurnClaimLostError           another server took over the turn; nothing was written
            ├── LogRegressed                 the log lost rows that were accepted
            └── LogDamagedError              a row is missing or was changed

A message names the problem, its place (file, line, block, policy) and the fix.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike


#: The values of ``error.type`` that are not class names.
ERROR_CONTEXT_OVERFLOW: Final = "context_overflow"
ERROR_ASSEMBLY_HALT: Final = "assembly_halt"
ERROR_CANCELLED: Final = "cancelled"


class AssemblyError(Exception):
    """The base class of all errors of this package."""


class ConfigurationError(AssemblyError, ValueError):
    """An invalid limit, order or configuration; raised before any policy or model call runs."""


class UnknownNameError(ConfigurationError):
    """A name that is not registered; the message suggests the most similar known name.

    Attributes:
        what: The kind of name, such as ``policy``.
        name: The unknown name.
        known: The known names, sorted.
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        nearest = difflib.get_close_matches(name, self.known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(self.known)}"
        super().__init__(f"unknown {what} {name!r}; {hint}")


class DescribeError(AssemblyError, TypeError):
    """An event that cannot be read: no reader function is registered for its type, or the reader failed.

    Attributes:
        event_type: The type of the event.
        problem: What is wrong with the event, without its content; empty if no reader is registered.
    """

    def __init__(self, event_type: type, problem: str = "") -> None:
        self.event_type = event_type
        self.problem = problem
        super().__init__(
            f"cannot describe an event of type {event_type.__module__}.{event_type.__qualname__}"
            + (f": {problem}; fix the event, or" if problem else ";")
            + " register a reader for the type: @otel_assembly.describe.register(TheType), returning EventFacts"
        )

    @classmethod
    def of_row(cls, event_type: type, error: Exception) -> DescribeError:
        """Return the error for a reader function that raised `error` for an event of `event_type`.

        The exception's message is not included, because it can quote the event.
        """
        if isinstance(error, AttributeError) and error.name:
            return cls(event_type, f"its {type(error.obj).__name__} has no {error.name!r}")
        if isinstance(error, RecursionError) or (isinstance(error, ValueError) and "ircular" in str(error)):
            return cls(event_type, "it contains itself, or is nested too deeply")
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        module = frame.tb_frame.f_globals.get("__name__", "?") if frame is not None else ""
        where = f" ({module}, line {frame.tb_lineno})" if frame is not None else ""
        return cls(event_type, f"its reader raised {type(error).__name__}{where}")


class RenderError(AssemblyError, TypeError):
    """An event that cannot be rendered as a message of a provider.

    Attributes:
        event_type: The type of the event.
        provider: The provider whose message form was requested.
        problem: The part that has no such form, without its content.
        index: The position of the event among the events.
    """

    def __init__(self, event_type: type, provider: str, problem: str, index: int, fix: str) -> None:
        self.event_type = event_type
        self.provider = provider
        self.problem = problem
        self.index = index
        super().__init__(
            f"cannot render event {index}, a {event_type.__module__}.{event_type.__qualname__}, "
            f"as {provider} messages: {problem}; {fix}"
        )


class TranscriptError(AssemblyError, ValueError):
    """A recorded conversation that cannot be read.

    Attributes:
        path: The file.
        line: The line, from 1; None if the problem concerns the whole file.
        problem: The content that was found and the content that was expected.
        recognized_as: The name of the conversation's format; None if no format was recognized.
    """

    def __init__(
        self, path: str | PathLike[str], line: int | None, problem: str, *, recognized_as: str | None = None
    ) -> None:
        self.path = str(path)
        self.line = line
        self.problem = problem
        self.recognized_as = recognized_as
        where = f"{self.path}:{line}" if line is not None else self.path
        super().__init__(f"{where}: {problem}")


class SpanFormatError(AssemblyError, ValueError):
    """Spans that another version of this package wrote, in a format that this version does not read.

    Attributes:
        trace_id: The trace of the first such span, as hexadecimal digits.
        version: The format's version on the span, None if it has none.
        expected: The version that is read.
    """

    def __init__(self, trace_id: str, version: object, expected: int) -> None:
        self.trace_id = trace_id
        self.version = version
        self.expected = expected
        written = "no format version" if version is None else f"format version {version!r}"
        super().__init__(
            f"trace {trace_id}: the assembly spans have {written}, and this version of otel-assembly reads version "
            f"{expected}; read them with the version that wrote them, or record them again"
        )


class TokenizerError(AssemblyError):
    """A missing tokenizer, or a vocabulary whose checksum is wrong."""


class PolicyError(AssemblyError):
    """A policy that could not be applied.

    Attributes:
        policy: The name of the policy.
        index: The policy's position in the chain, from 0.
    """

    def __init__(self, policy: str, index: int, problem: str) -> None:
        self.policy = policy
        self.index = index
        super().__init__(f"policy {policy!r} (index {index}) {problem}")


class PolicyFailedError(PolicyError):
    """A policy raised an exception, which is ``__cause__``."""


class PolicyContractError(PolicyError):
    """A policy changed its input in place, or did not return two sequences (prompts and events)."""


class ContextOverflowError(AssemblyError):
    """The content that must be in the prompt does not fit the budget.

    The fixed content is what a policy never drops, such as the system prompts and the newest user request. The newest
    atom is the newest tool call with its results, or the newest message.

    Attributes:
        budget: The budget, in tokens.
        needed: The tokens of the fixed content; if the cause is ``newest_atom``, also those of the newest atom.
        costs: The tokens of each fixed part, by its name, in prompt order.
        cause: ``fixed`` if the fixed content alone exceeds the budget, else ``newest_atom``.
        policy: The policy whose budget was exceeded; None outside a chain.
        fixed: The tokens of the fixed content alone; None if the parts are unknown.
        assembly: The failed `Assembly`, with its numbers; None outside a chain.
        report: The `BudgetReport` up to the failure, if the policy makes one; else None.
    """

    def __init__(
        self, budget: int, needed: int, costs: Mapping[str, int], *, cause: str = "fixed", policy: str | None = None
    ) -> None:
        self.budget = budget
        self.needed = needed
        self.costs = dict(costs)
        self.cause = cause
        self.policy = policy
        newest = 0 if cause == "fixed" else self.costs.get("newest_atom")
        self.fixed = None if newest is None else needed - newest
        self.assembly: Any = None
        self.report: Any = None
        parts = ", ".join(f"{name} {tokens}" for name, tokens in self.costs.items())
        content = (
            "content that must not be dropped"
            if cause == "fixed"
            else "content that must not be dropped together with the newest tool call or message"
        )
        prefix = f"policy {policy!r}: " if policy else ""
        super().__init__(
            f"{prefix}{content} takes {needed} tokens, {needed - budget} over the budget of {budget} ({parts}); "
            + (
                "raise the budget or shorten these parts"
                if cause == "fixed"
                else "raise the budget, shorten the tool's result, or choose on_overflow='drop'"
            )
        )


class CompactionError(AssemblyError):
    """Every attempt to compact content failed; the original content is unchanged.

    Attributes:
        target: The maximum tokens of the summary.
        attempts: The attempts, in order.
    """

    def __init__(self, turns: int, target: int, attempts: Sequence[Any]) -> None:
        self.target = target
        self.attempts = tuple(attempts)
        failures = ", ".join(
            f"{attempt.compactor} {attempt.outcome}" + (f" ({attempt.error_type})" if attempt.error_type else "")
            for attempt in attempts
        )
        super().__init__(
            f"compact_history: {turns} turns could not be summarized in {target} tokens: {failures}; keep the turns, "
            "fix the summarizer, or raise target_tokens"
        )


class SourceFailedError(AssemblyError):
    """A function that provides evidence, memories or state for a prompt failed; its exception is ``__cause__``.

    Attributes:
        source: The name of the source.
        role: ``scopes``, ``retriever``, ``recall``, ``rerank`` or ``state``.
        problem: What failed, without content of the source.
    """

    def __init__(self, source: str, role: str, problem: str, fix: str) -> None:
        self.source = source
        self.role = role
        self.problem = problem
        super().__init__(f"{role} {source!r} {problem}; {fix}")


class HaltedError(AssemblyError):
    """The conversation was halted, so no model call and no tool call may start in it.

    Attributes:
        reason: The reason of the ``HaltEvent``.
        source: The observer or caller that halted the conversation.
        assembly: The `Assembly` of the halted turn, with its numbers and its `halt`; None outside an assembly.
    """

    def __init__(self, reason: str, source: str) -> None:
        self.reason = reason
        self.source = source
        self.assembly: Any = None
        super().__init__(f"halted by {source}: {reason}")


class MiddlewareError(AssemblyError):
    """A middleware raised an exception, which is ``__cause__``, or returned no result.

    Attributes:
        middleware: The class name of the middleware.
        hook: The name of the hook.
    """

    def __init__(self, middleware: str, hook: str, problem: str) -> None:
        self.middleware = middleware
        self.hook = hook
        super().__init__(f"middleware {middleware}: {hook} {problem}")


class ToolError(AssemblyError):
    """A tool call failed; the model gets the text of this error as the result of the call.

    Attributes:
        tool: The name of the tool.
        problem: What went wrong, as a predicate after the tool's name: the error's text is ``tool '<tool>' <problem>``.
    """

    def __init__(self, tool: str, problem: str) -> None:
        self.tool = tool
        self.problem = problem
        super().__init__(f"tool {tool!r} {problem}")


class SessionError(AssemblyError):
    """A session cannot accept this input now, or the saved session is invalid."""


class StructuredOutputError(AssemblyError):
    """A model's answer does not match the requested schema.

    Attributes:
        schema: The name of the schema.
        problem: The place in the answer that is wrong, and the expected value.
    """

    def __init__(self, schema: str, problem: str) -> None:
        self.schema = schema
        self.problem = problem
        super().__init__(f"the answer does not match the schema {schema!r}: {problem}")


class ModelCallError(AssemblyError):
    """A call of a model provider failed or ended early; the client's exception is ``__cause__``.

    Attributes:
        provider: The provider, by its name in the GenAI conventions if it has one.
        model: The name of the model.
        status: The HTTP status; None without a complete response.
        retryable: Whether a repeated call may succeed.
        problem: What failed, without content of the prompt or the answer.
    """

    def __init__(
        self, problem: str, *, provider: str, model: str, status: int | None = None, retryable: bool = False
    ) -> None:
        self.problem = problem
        self.provider = provider
        self.model = model
        self.status = status
        self.retryable = retryable
        http = f" (HTTP {status})" if status is not None else ""
        super().__init__(f"{provider} did not answer for model {model!r}{http}: {problem}")


class ModelContextLengthError(ModelCallError):
    """The provider refused the prompt as too long for the model.

    Attributes:
        window: The model's context window, in tokens; None if the provider did not report it.
        tokens: The tokens of the prompt as the provider counted them; None if it did not report them.
    """

    def __init__(
        self,
        *,
        provider: str,
        model: str,
        status: int | None = None,
        window: int | None = None,
        tokens: int | None = None,
    ) -> None:
        self.window = window
        self.tokens = tokens
        counted = f" of {tokens:,} tokens" if tokens is not None else ""
        limit = f" of {window:,}" if window is not None else ""
        problem = f"the prompt{counted} is too long for the model's window{limit}; lower the budget of the assembly"
        super().__init__(problem, provider=provider, model=model, status=status)


class KnowledgeError(AssemblyError):
    """The base class of the errors of knowledge stores."""


class KnowledgePathError(KnowledgeError, ValueError):
    """An invalid path, or a path outside the store."""


class KnowledgeStoreError(KnowledgeError):
    """The storage failed; the original error is ``__cause__``."""


class KnowledgeConflictError(KnowledgeError):
    """Other writers kept changing the same entry, so nothing was written."""


class NetworkError(AssemblyError):
    """The base class of the errors of hubs and session logs."""


class NotFoundError(NetworkError):
    """The session, the participant or the adapter (the code of the session's protocol) does not exist."""


class AccessDeniedError(NetworkError):
    """The caller is not a participant of the session."""


class ProtocolError(NetworkError):
    """The session's protocol refused a message (envelope) or a new session; nothing was appended."""


class InboxFull(NetworkError):  # noqa: N818 - the name that AG2's networks gave it
    """A participant has too many messages (envelopes) that it has not confirmed; nothing was appended."""


class AdapterError(NetworkError):
    """An adapter (the code of a session's protocol) raised an exception, which is ``__cause__``; nothing was appended.

    Attributes:
        type: The name of the protocol.
        version: The version of the protocol.
        method: The adapter's method that raised.
    """

    def __init__(self, type: str, version: int, method: str, error: BaseException, where: str = "") -> None:  # noqa: A002 - the manifest's word
        self.type = type
        self.version = version
        self.method = method
        at = f" ({where})" if where else ""
        super().__init__(
            f"adapter {type!r} version {version} raised {error.__class__.__name__} in {method}(){at}; fix the adapter"
        )


class SessionLogError(NetworkError):
    """The base class of the errors of session logs."""


class LogConflictError(SessionLogError):
    """Another writer appended to the log first, so nothing was written."""


class LogUnsureError(SessionLogError):
    """It is unknown whether a write succeeded, because its response was lost; read the log to find out."""


class LogUnavailableError(SessionLogError):
    """The log's storage does not respond, so nothing was read or written."""


class TurnClaimLostError(SessionLogError):
    """This server's claim on a turn has ended, or another server took over the turn; nothing was written."""


class LogRegressed(SessionLogError):  # noqa: N818 - the name of AG2's networks
    """The log's storage lost rows that it had accepted; the session stops."""


class LogDamagedError(SessionLogError):
    """A row of the log is missing or was changed; the message names session and row."""


#: Exceptions by which the caller or the interpreter ends work; they are not failures.
_INTERRUPTIONS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


def is_failure(error: BaseException) -> bool:
    """Return True unless the exception is a cancellation or the end of the program."""
    return not isinstance(error, _INTERRUPTIONS)


def class_name(error: BaseException) -> str:
    """Return the qualified name of an exception's class, with its module unless the class is a builtin."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_type(error: BaseException) -> str:
    """Return the value of the attribute ``error.type`` for an exception.

    The value is ``context_overflow`` (also if the provider refused the prompt as too long), ``assembly_halt``,
    ``cancelled``, or the class name. For a `PolicyFailedError`, the policy's own exception counts. The exception's
    message is never used, because it could quote a conversation.
    """
    if isinstance(error, PolicyFailedError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ContextOverflowError | ModelContextLengthError):
        return ERROR_CONTEXT_OVERFLOW
    if isinstance(error, HaltedError):
        return ERROR_ASSEMBLY_HALT
    if isinstance(error, asyncio.CancelledError):
        return ERROR_CANCELLED
    return class_name(error)
