"""Every error that otel-assembly raises on purpose.

::

    AssemblyError
    ├── ConfigurationError (ValueError)      a limit, a chain or a config that cannot work
    │   └── UnknownNameError                 a policy, parameter or model nobody knows; names the nearest one
    ├── DescribeError (TypeError)            an event that no describe() row covers, or that its row cannot read
    ├── RenderError (TypeError)              an event that a provider's messages have no form for
    ├── TranscriptError (ValueError)         a recorded conversation that cannot be read; names file and line
    ├── SpanFormatError (ValueError)         spans in a format of another version of this package
    ├── TokenizerError                       no tokenizer to count with, or a vocabulary that is not what it claims
    ├── PolicyError                          names the policy
    │   ├── PolicyFailedError                the policy raised
    │   └── PolicyContractError              the policy changed its input, or did not return two sequences
    ├── ContextOverflowError                 what must be in the prompt does not fit the budget
    ├── CompactionError                      no attempt to make something shorter came to anything
    ├── SourceFailedError                    a retriever, a recall or a loader failed; names it
    ├── HaltedError                          the loop was halted: no model call and no tool call may start
    ├── MiddlewareError                      a middleware raised, or gave no result; names its class and hook
    ├── ToolError                            a tool cannot take its arguments, was late, or returned no JSON; names it
    ├── SessionError                         an agent's session cannot take this input now, or cannot be loaded
    ├── StructuredOutputError                a model's answer is not of the form that was asked for; names it
    ├── ModelCallError                       a model's provider did not answer; names provider and model
    │   └── ModelContextLengthError          it refused the prompt as too long
    ├── KnowledgeError
    │   ├── KnowledgePathError (ValueError)  a path that would leave the store
    │   ├── KnowledgeStoreError              the store could not do what was asked
    │   └── KnowledgeConflictError           others kept changing what was to be changed
    └── NetworkError                         what agents share between them; a hub or its log raised
        ├── NotFoundError                    no such session, participant or adapter
        ├── AccessDeniedError                a stranger to the session
        ├── ProtocolError                    an envelope that the session's protocol refuses
        ├── InboxFull                        a participant has too much to read; nothing was appended
        ├── AdapterError                     an adapter raised; names it and its method
        └── SessionLogError                  the log did not do what was asked
            ├── LogConflictError             somebody was first; nothing was written
            ├── LogUnsureError               the answer was lost; whether it was written is not known
            ├── LogUnavailableError          the place of the log does not answer
            ├── TurnClaimLostError           another server has taken over the turn; nothing was written
            ├── LogRegressed                 the log is behind what was read of it before
            └── LogDamagedError              a row is missing, or is not what was written

A message names what was wrong, where (file, line, block, policy), and the mend.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike


#: What ``error.type`` says in telemetry where it says no class.
ERROR_CONTEXT_OVERFLOW: Final = "context_overflow"
ERROR_ASSEMBLY_HALT: Final = "assembly_halt"
ERROR_CANCELLED: Final = "cancelled"


class AssemblyError(Exception):
    """The root of the tree: catch it to catch all of ours."""


class ConfigurationError(AssemblyError, ValueError):
    """A limit, an order or a configuration that cannot work, found before anything ran."""


class UnknownNameError(ConfigurationError):
    """A name that is not in its registry; the message suggests the nearest one that is."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        nearest = difflib.get_close_matches(name, self.known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(self.known)}"
        super().__init__(f"unknown {what} {name!r}; {hint}")


class DescribeError(AssemblyError, TypeError):
    """An event that the engine cannot read: its type has no ``describe()`` row, or it is not of the form its row reads.

    Attributes:
        event_type: Its type.
        problem: What is wrong with it; empty where no row covers the type. Nothing that the event says is in it.
    """

    def __init__(self, event_type: type, problem: str = "") -> None:
        self.event_type = event_type
        self.problem = problem
        super().__init__(
            f"cannot describe an event of type {event_type.__module__}.{event_type.__qualname__}"
            + (f": {problem}; mend the event, or" if problem else ";")
            + " register a row for the type: @otel_assembly.describe.register(TheType), returning EventFacts"
        )

    @classmethod
    def of_row(cls, event_type: type, error: Exception) -> DescribeError:
        """What went wrong inside a row, without a word of the event: messages of errors quote what they were given."""
        if isinstance(error, AttributeError) and error.name:
            return cls(event_type, f"its {type(error.obj).__name__} has no {error.name!r}")
        if isinstance(error, RecursionError) or (isinstance(error, ValueError) and "ircular" in str(error)):
            return cls(event_type, "it contains itself, or is nested too deeply")
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f" ({at.tb_frame.f_globals.get('__name__', '?')}, line {at.tb_lineno})" if at is not None else ""
        return cls(event_type, f"its row raised {type(error).__name__}{where}")


class RenderError(AssemblyError, TypeError):
    """An event that cannot be rendered as a message of a provider.

    Attributes:
        event_type: Its type.
        provider: The provider's form.
        problem: What has no form there. Nothing that the event says is in it.
        index: Where it stands among the events.
    """

    def __init__(self, event_type: type, provider: str, problem: str, index: int, mend: str) -> None:
        self.event_type = event_type
        self.provider = provider
        self.problem = problem
        self.index = index
        super().__init__(
            f"cannot render event {index}, a {event_type.__module__}.{event_type.__qualname__}, "
            f"as {provider} messages: {problem}; {mend}"
        )


class TranscriptError(AssemblyError, ValueError):
    """A recorded conversation that cannot be read.

    Attributes:
        path: The file.
        line: Its line, from 1; None where the whole file is meant.
        problem: What was found and what was expected.
    """

    def __init__(self, path: str | PathLike[str], line: int | None, problem: str) -> None:
        self.path = str(path)
        self.line = line
        self.problem = problem
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
    """No tokenizer to count with, or a vocabulary that is not what it claims to be."""


class PolicyError(AssemblyError):
    """A policy that could not be applied.

    Attributes:
        policy: The policy's name.
        index: Its place in the chain, from 0.
    """

    def __init__(self, policy: str, index: int, problem: str) -> None:
        self.policy = policy
        self.index = index
        super().__init__(f"policy {policy!r} (index {index}) {problem}")


class PolicyFailedError(PolicyError):
    """A policy raised; the original error is ``__cause__``."""


class PolicyContractError(PolicyError):
    """A policy changed its input in place, or returned something else than two sequences."""


class ContextOverflowError(AssemblyError):
    """What must be in the prompt does not fit the budget.

    Attributes:
        budget: The tokens there are.
        needed: The tokens that the fixed content (and, for ``newest_atom``, the newest atom) takes.
        costs: Tokens of each fixed part, by its name, in prompt order.
        cause: ``fixed`` or ``newest_atom``.
        policy: The policy that could not keep its budget; None outside a chain.
        fixed: Of `needed`, the tokens of the fixed content; None if the parts are unknown.
        assembly: The `Assembly` that came to nothing, for its numbers; None outside a chain.
        report: How far the budget was given out; None where no allocator held it.
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
        what = (
            "content that may not be dropped"
            if cause == "fixed"
            else "content that may not be dropped together with the newest tool call or message"
        )
        by = f"policy {policy!r}: " if policy else ""
        super().__init__(
            f"{by}{what} takes {needed} tokens, {needed - budget} over the budget of {budget} ({parts}); "
            + (
                "raise the budget or shorten these parts"
                if cause == "fixed"
                else "raise the budget, shorten the tool's result, or choose on_overflow='drop'"
            )
        )


class CompactionError(AssemblyError):
    """No attempt to compact came to anything; what was to be compacted is as it was.

    Attributes:
        target: The tokens that the summary was allowed.
        attempts: Every attempt, in order.
    """

    def __init__(self, turns: int, target: int, attempts: Sequence[Any]) -> None:
        self.target = target
        self.attempts = tuple(attempts)
        tried = ", ".join(
            f"{one.compactor} {one.outcome}" + (f" ({one.error_type})" if one.error_type else "") for one in attempts
        )
        super().__init__(
            f"compact_history: {turns} turns could not be summarised in {target} tokens: {tried}; keep the turns, mend "
            "the summariser, or raise target_tokens"
        )


class SourceFailedError(AssemblyError):
    """A source of evidence, memories or state raised, was late, or returned something else; its error is the cause.

    Attributes:
        source: Its name.
        role: What it is: ``scopes``, ``retriever``, ``recall``, ``rerank`` or ``state``.
        problem: What went wrong; never what the source said.
    """

    def __init__(self, source: str, role: str, problem: str, mend: str) -> None:
        self.source = source
        self.role = role
        self.problem = problem
        super().__init__(f"{role} {source!r} {problem}; {mend}")


class HaltedError(AssemblyError):
    """The conversation was halted, so nothing more may be called in it.

    Attributes:
        reason: The ``HaltEvent``'s reason.
        source: Who halted.
        assembly: The `Assembly` that nothing is sent of, for its numbers and its `halt`; None where the guard was asked
            outside of an assembly.
    """

    def __init__(self, reason: str, source: str) -> None:
        self.reason = reason
        self.source = source
        self.assembly: Any = None
        super().__init__(f"halted by {source}: {reason}")


class MiddlewareError(AssemblyError):
    """A middleware raised, or gave no result; what it raised is ``__cause__``.

    Attributes:
        middleware: Its class's name.
        hook: The hook's name.
    """

    def __init__(self, middleware: str, hook: str, problem: str) -> None:
        self.middleware = middleware
        self.hook = hook
        super().__init__(f"middleware {middleware}: {hook} {problem}")


class ToolError(AssemblyError):
    """A tool cannot be run as it was asked to; the model reads it as the call's result.

    Attributes:
        tool: Its name.
        problem: What went wrong.
    """

    def __init__(self, tool: str, problem: str) -> None:
        self.tool = tool
        self.problem = problem
        super().__init__(f"tool {tool!r} {problem}")


class SessionError(AssemblyError):
    """An agent's session cannot take this input now, or cannot be loaded from what was given."""


class StructuredOutputError(AssemblyError):
    """A model gave no answer of the form that was asked for.

    Attributes:
        schema: The form's name.
        problem: What was wrong with the answer: where, and what was expected there.
    """

    def __init__(self, schema: str, problem: str) -> None:
        self.schema = schema
        self.problem = problem
        super().__init__(f"no answer of the form {schema!r}: {problem}")


class ModelCallError(AssemblyError):
    """A model's provider did not answer, or not to the end; what the client raised is ``__cause__``.

    Attributes:
        provider: The provider, as GenAI's conventions name it where they do.
        model: The model's name.
        status: The HTTP status; None where no answer came, or none that was whole.
        retryable: Whether the same call may succeed when it is made again.
        problem: What went wrong; never what the prompt or the answer said.
    """

    def __init__(
        self, problem: str, *, provider: str, model: str, status: int | None = None, retryable: bool = False
    ) -> None:
        self.problem = problem
        self.provider = provider
        self.model = model
        self.status = status
        self.retryable = retryable
        said = f" (HTTP {status})" if status is not None else ""
        super().__init__(f"{provider} did not answer for model {model!r}{said}: {problem}")


class ModelContextLengthError(ModelCallError):
    """The provider refused the prompt as too long for the model.

    Attributes:
        window: The tokens that the model takes; None where the provider did not say.
        tokens: The tokens that the provider counted, as it counts them; None where it did not say.
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
        taken = f" of {window:,}" if window is not None else ""
        problem = f"the prompt{counted} is too long for the model's window{taken}; lower the budget of the assembly"
        super().__init__(problem, provider=provider, model=model, status=status)


class KnowledgeError(AssemblyError):
    """The root of what a knowledge store raises."""


class KnowledgePathError(KnowledgeError, ValueError):
    """A path that would leave the store, or that is no path of it."""


class KnowledgeStoreError(KnowledgeError):
    """The store could not do what was asked; the original error is ``__cause__``."""


class KnowledgeConflictError(KnowledgeError):
    """Others kept changing what was to be changed, so that nothing was written."""


class NetworkError(AssemblyError):
    """The root of what a hub and its log raise."""


class NotFoundError(NetworkError):
    """There is no such session, no such participant in it, or no adapter for its protocol."""


class AccessDeniedError(NetworkError):
    """Who asked takes no part in the session."""


class ProtocolError(NetworkError):
    """An envelope, or a session to be made, that the protocol refuses; nothing was appended."""


class InboxFull(NetworkError):  # noqa: N818 - the name that AG2's networks gave it
    """A participant has not confirmed enough of what was addressed to it; nothing was appended."""


class AdapterError(NetworkError):
    """An adapter raised where it was to decide or to fold; nothing was appended, and its error is ``__cause__``.

    Attributes:
        type: The protocol's name.
        version: Its version.
        method: The method that raised.
    """

    def __init__(self, type: str, version: int, method: str, error: BaseException, where: str = "") -> None:  # noqa: A002 - the manifest's word
        self.type = type
        self.version = version
        self.method = method
        at = f" ({where})" if where else ""
        super().__init__(
            f"adapter {type!r} version {version} raised {error.__class__.__name__} in {method}(){at}; mend the adapter"
        )


class SessionLogError(NetworkError):
    """The root of what goes wrong with a log of sessions."""


class LogConflictError(SessionLogError):
    """Somebody else was first, so that nothing was written."""


class LogUnsureError(SessionLogError):
    """The answer of a write was lost: whether it was written is to be looked up."""


class LogUnavailableError(SessionLogError):
    """The place where the log is kept does not answer, so that nothing was read or written."""


class TurnClaimLostError(SessionLogError):
    """Another server has taken over the turn of this claim, or the claim was ended; nothing was written."""


class LogRegressed(SessionLogError):  # noqa: N818 - said as it is: the log went back
    """The log is behind what was read of it before: rows that were accepted are gone, and the session stops."""


class LogDamagedError(SessionLogError):
    """A row is missing, or is not what was written; the message names session and row."""


#: What is no failure of whoever raises it: somebody ended the work from outside.
_ENDED: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


def is_failure(error: BaseException) -> bool:
    """Whether something went wrong; a task that was cancelled, or a program that is stopped, did not fail."""
    return not isinstance(error, _ENDED)


def class_name(error: BaseException) -> str:
    """The class of an exception, with its module unless it is a built-in one."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_type(error: BaseException) -> str:
    """What ``error.type`` says of an exception, wherever it stands; its message could quote a conversation.

    ``context_overflow`` (a provider's refusal too), ``assembly_halt``, ``cancelled``, else its class; of a policy that
    raised, of what it raised.
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
