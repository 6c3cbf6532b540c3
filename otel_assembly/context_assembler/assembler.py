"""`ContextAssembler`: builds the prompt for a task in the steps of the CLEAR method.

CLEAR stands for Current task, Legal boundary, Evidence, Attention budget, Retention. First, the scopes that the user
may see are determined; they limit all later steps. Then the sources are called, and the allocator selects the content
that fits and orders it. The allocator runs as the policy of an ordinary assembly, so the spans record the reason why
each item was kept or dropped. After the answer, new memories may be stored.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import OnError, function, items_of_type, of_type, one_of, several
from otel_assembly._internal.sync_calls import run_blocking
from otel_assembly.budget.block import Block, BlockItem
from otel_assembly.budget.compacted_block import CompactedBlock
from otel_assembly.budget.compaction import compactors_of
from otel_assembly.budget.ordering import Order
from otel_assembly.context import Context
from otel_assembly.context_assembler.allocator_policy import (
    AllocatorPolicy,
    BlockAssembler,
    BlockSession,
    block_session,
)
from otel_assembly.context_assembler.candidates import Candidate, Task
from otel_assembly.context_assembler.gather import Sources, checked_source
from otel_assembly.context_assembler.layout import Layout, PreviousEvents
from otel_assembly.context_assembler.retention import Retained, WriteGate, offer_candidates
from otel_assembly.context_assembler.settings import check_numbers, checked_floors
from otel_assembly.context_assembler.turns import facts_of, in_steps, split_turns
from otel_assembly.errors import (
    AssemblyError,
    ConfigurationError,
    PolicyFailedError,
    SourceFailedError,
)
from otel_assembly.history.read_events import ReadEvents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.budget.allocation import Allocation
    from otel_assembly.budget.compaction import Compact, Compactors
    from otel_assembly.budget.ordering import OrderedPrompt
    from otel_assembly.context_assembler.candidates import LoadState, Recall, Rerank, Retriever, Scopes
    from otel_assembly.context_assembler.gather import Gathered
    from otel_assembly.decision import Decision
    from otel_assembly.recorder import Recorder
    from otel_assembly.tokens import MessageFraming, TokenCounter

#: The default floors of blocks, in tokens.
FLOORS: Final[Mapping[str, int]] = {"evidence": 200, "memory": 50, "summary": 80}


class AssembledContext:
    """The prompt for one task, with the decisions on its content.

    Attributes:
        prompt: The blocks in the order in which they are sent.
        allocation: The decision on each block and item, with token counts.
        assembly: The assembly that produced the prompt, with the changes since the conversation's previous one.
        scopes: The scopes that the user may see.
        failures: The errors of sources that were skipped because of ``on_retriever_error="skip"``.
    """

    def __init__(
        self,
        prompt: OrderedPrompt,
        allocation: Allocation,
        assembly: Assembly,
        gathered: Gathered,
        gate: WriteGate | None,
    ) -> None:
        self.prompt = prompt
        self.allocation = allocation
        self.assembly = assembly
        self.scopes = gathered.scopes
        self.failures: tuple[SourceFailedError, ...] = gathered.failures
        self._gate = gate

    @property
    def messages(self) -> list[Any]:
        """The messages for a provider: texts as dicts with ``role`` and ``content``, message objects as they are."""
        return self.prompt.messages

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions about items whose state changed since the conversation's previous assembly.

        The state is the outcome (kept, dropped, compacted, injected or reordered) with its reason. In the first
        assembly of a conversation, each item has at least one decision.
        """
        return self.assembly.decisions

    async def retain(self, answer: str, candidates: Sequence[Candidate]) -> list[Retained]:
        """Offer new memories to the write gate, which decides which of them are stored. Call it after the answer.

        Candidates outside the permitted scopes are not offered. If the gate fails, the error is logged, and the outcome
        is ``failed``; it is not raised.

        Args:
            answer: The model's answer, which the gate may read for its decision.
            candidates: The memories to store, each with its scope and source.

        Raises:
            ConfigurationError: The assembler has no gate, `answer` is not a text, or `candidates` is not a sequence of
                `Candidate`.
        """
        of_type("answer", answer, str)
        candidates = items_of_type("candidates", candidates, Candidate, "give a list of Candidate(id, content, scope)")
        if self._gate is None:
            raise ConfigurationError("this ContextAssembler has no write gate; give it one: gate=KnowledgeWriteGate(…)")
        return await offer_candidates(self._gate, answer, candidates, self.scopes, self.assembly.id)

    def __repr__(self) -> str:
        return f"AssembledContext({self.allocation!r}, {self.prompt!r})"

    def _repr_html_(self) -> str:
        return self.assembly._repr_html_()  # notebooks call a method of this name


class ContextAssembler:
    """Builds the prompt for a task from permitted content that fits in a token budget.

    The prompt consists of blocks. The blocks ``system``, ``schema``, ``examples``, ``query`` and ``state`` are never
    cut. If there is not enough room, content is dropped from the other blocks in this order: ``older`` (turns),
    ``recent`` (turns), ``summary``, ``memory``, ``evidence``.

    One assembler may serve any number of users, conversations and tasks concurrently.

    Args:
        system: The instructions: one text, equal on every turn.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        scopes: ``scopes(user, task)``, async or not: returns the names of the scopes that the user may see for the
            task, such as tenants or projects. This function is called first. If it returns none, no other source is
            called.
        retrievers: The sources of evidence (passages); all are called concurrently.
        recall: The source of memories; None: no memories.
        rerank: ``rerank(query, candidates)``, async or not: returns the evidence in a better order, best first. None:
            the order of the retrievers.
        state: ``state(task, scopes)``, async or not: returns the application's state, as a text or a JSON-serializable
            object. None: no state.
        gate: Decides which memories `AssembledContext.retain` stores. None: no memories can be stored, and `retain`
            raises an error.
        examples: Few-shot examples, equal on every turn: one text, or a sequence of texts or messages. None: no
            examples.
        compact: Shortens a text, called as ``compact(text, target_tokens)``; or `Compactors`. None: the extractive
            compactor, which needs no model.
        floors: The fewest tokens with which a block is useful, by the block's name. These tokens are reserved, so that
            blocks of higher priority cannot use them. None: no floors.
        k: How many passages to request from each retriever.
        recall_k: How many memories to request.
        deadline: The maximum duration of a call of a source, in seconds.
        order: ``attention``, in which evidence precedes turns; or ``cache``, in which the conversation precedes content
            that depends on the query, so that the provider can cache the conversation.
        step_tokens: With ``order="cache"``, turns are dropped in steps of about this many tokens (4 bytes per token).
            After a step, the oldest turn in the prompt stays the same for many turns, so that the provider's cache is
            used. This needs room for two steps, better three. 0: drop no more turns than necessary.
        on_retriever_error: ``raise``; or ``skip`` to continue without a retriever, recall or rerank that failed. An
            error of `scopes` or `state` is always raised.
        name: The assembler's name in spans and metrics.
        model: The name of the model whose tokenizer counts; None: the model of the context.
        counter: Counts the tokens; None: the model's tokenizer.
        framing: The tokens that a provider adds to each message. None: the numbers of the OpenAI cookbook.
        recorder: Receives a record of each assembly; None: OpenTelemetry's global providers record it.

    Raises:
        ConfigurationError: A number, a source or a setting is invalid.
    """

    def __init__(
        self,
        *,
        system: str,
        window: int,
        output_reserve: int,
        scopes: Scopes,
        retrievers: Sequence[Retriever] = (),
        recall: Recall | None = None,
        rerank: Rerank | None = None,
        state: LoadState | None = None,
        gate: WriteGate | None = None,
        examples: str | Sequence[Any] | None = None,
        compact: Compact | Compactors | None = None,
        floors: Mapping[str, int] = FLOORS,
        k: int = 12,
        recall_k: int = 12,
        deadline: float = 10.0,
        order: Order = "attention",
        step_tokens: int = 1_000,
        on_retriever_error: OnError = "raise",
        name: str | None = None,
        model: str | None = None,
        counter: TokenCounter | None = None,
        framing: MessageFraming | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        check_numbers(window, output_reserve, k=k, recall_k=recall_k, step_tokens=step_tokens, deadline=deadline)
        of_type("system", system, str)
        if model is not None:
            of_type("model", model, str, "give the model's name")
        if name is not None:
            of_type("name", name, str)
        one_of("on_retriever_error", on_retriever_error, OnError)
        one_of("order", order, Order)
        optional = [("rerank", rerank), ("state", state)]
        for role, source in [("scopes", scopes), *((role, option) for role, option in optional if option is not None)]:
            function(role, source)
        checked_retrievers = several("retrievers", retrievers)
        for index, retriever in enumerate(checked_retrievers):
            checked_source(f"retriever at index {index}", retriever, "search")
        if recall is not None:
            checked_source("recall", recall, "recall")
        if gate is not None:
            checked_source("gate", gate, "offer")
        self._budget = window - output_reserve
        self._floors = checked_floors(floors, self._budget)
        self._sources = Sources(
            scopes=scopes,
            retrievers=checked_retrievers,
            recall=recall,
            rerank=rerank,
            state=state,
            k=k,
            recall_k=recall_k,
            deadline=deadline,
            skips=on_retriever_error == "skip",
        )
        self._gate = gate
        self._stable = [
            *_block("system", 1, system),
            *_block("examples", 2, examples, rank=2),
        ]
        self._order = order
        self._step_tokens = step_tokens
        policy = AllocatorPolicy(window, output_reserve, compactors_of(compact), order)
        self._assembler = BlockAssembler(
            [policy],
            name=name,
            model=model,
            counter=counter,
            framing=framing,
            recorder=recorder,
            step_tokens=step_tokens if order == "cache" else 0,
        )

    async def assemble(self, task: Task, user: Any, context: Context | None = None) -> AssembledContext:
        """Call the sources, and build the prompt for a task.

        Args:
            task: The query, with the turns of the conversation.
            user: An object that identifies the user, which is passed to `scopes` and `recall`.
            context: The conversation. Use one context for all turns of a conversation, or contexts with the same
                conversation id. None: a conversation of this task only.

        Raises:
            HaltedError: The conversation was halted. No source is called, and no prompt must be sent.
            SourceFailedError: A source failed and is not skipped; the message names it.
            ContextOverflowError: The content that cannot be cut does not fit. It is raised before any compactor runs.
            ConfigurationError: Two versions of one candidate cannot be compared, `task` is not a `Task`, or `context`
                is not a `Context`.
            DescribeError: A turn has an unregistered type.
        """
        of_type("task", task, Task, "give Task(query)")
        if context is not None:
            of_type("context", context, Context, "give Context(conversation_id=…)")
        context = context if context is not None else Context()
        if context.guard.halted:
            await self._assembler.assemble([], ReadEvents(), context)  # records the halt, and raises
        try:
            gathered = await self._sources.gather(task, user)
        except SourceFailedError as failed:
            self._assembler.record_failures([failed], context)
            raise
        self._assembler.record_failures(gathered.failures, context)
        cache = self._assembler.cache_of(context)
        lay_out = partial(self._layout, task, gathered, cache.events)
        session = BlockSession(lay_out(), cache.compactions, lay_out)
        token = block_session.set(session)
        try:
            assembly = await self._assembler.assemble([], session.layout.events, context)
        except PolicyFailedError as failed:  # the policy's own error names the block and the fix
            if isinstance(failed.__cause__, AssemblyError):
                raise failed.__cause__ from None
            raise
        finally:
            block_session.reset(token)
        if session.result is None:
            raise AssertionError("an assembly of blocks ended without running AllocatorPolicy")
        allocation, prompt = session.result
        return AssembledContext(prompt, allocation, assembly, gathered, self._gate)

    def assemble_sync(self, task: Task, user: Any, context: Context | None = None) -> AssembledContext:
        """Build the prompt for a task as `assemble` does, for a program without ``await``.

        The sources and the allocator run on an event loop of their own, in a daemon thread if this thread runs an event
        loop already. The call blocks its thread until the prompt is built. An interrupt (Ctrl-C) cancels the sources.
        """
        return run_blocking(self.assemble(task, user, context))

    def observe_usage(self, counted: int, billed: int, *, model: str | None = None) -> None:
        """Calibrate the token counter with the tokens that a provider billed for a prompt.

        Args:
            counted: The prompt's tokens as the assembler counted them.
            billed: The input tokens that the provider billed, including cached ones.
            model: The model that was called; None: the assembler's.

        Raises:
            ConfigurationError: `counted` or `billed` is not a whole number, or is below 0.
        """
        self._assembler.observe_usage(counted, billed, model=model)

    def _layout(self, task: Task, gathered: Gathered, previous: PreviousEvents) -> Layout:
        evidence = [_item(candidate, rank) for rank, candidate in enumerate(gathered.evidence, start=1)]
        examples = [item for block in self._stable for item in block.items]
        turns = previous.turns.take([facts for item in examples if (facts := facts_of(item))], task.older, task.recent)
        older, recent = (
            split_turns(examples, task.older, task.recent)
            if turns is None
            else (turns.items[: turns.border], turns.items[turns.border :])
        )
        blocks = [
            *self._stable,
            *_block("schema", 2, _as_text(task.output_schema), rank=1),
            *_block("query", 3, task.query, restated=task.key_instruction),
            *_block("state", 4, _as_text(gathered.state)),
            *self._cuttable("evidence", 5, evidence),
            *self._cuttable("memory", 6, [_item(candidate) for candidate in gathered.memories]),
            *self._cuttable("summary", 7, task.summary),
        ]
        if self._order == "attention":
            blocks += [*self._cuttable("recent", 8, recent), *self._cuttable("older", 9, older)]
            starts = {"recent": len(older), "older": 0}
        else:
            # One block for both: otherwise, a turn that becomes an older turn would change the cached prompt.
            floor = min(self._floors.get("recent", 0) + self._floors.get("older", 0), self._budget)
            all_turns = [*older, *recent] if turns is None else turns.items
            grouped = in_steps(all_turns, self._step_tokens) if turns is None else all_turns
            blocks += _block("recent", 8, grouped, cuttable=True, min_tokens=floor)
            starts = {"recent": 0}
        return Layout(blocks, self._order, previous, (turns, starts) if turns is not None else None)

    def _cuttable(self, name: str, priority: int, content: Any) -> list[Block]:
        return _block(name, priority, content, cuttable=True, min_tokens=self._floors.get(name, 0))


def _block(name: str, priority: int, content: Any, *, cuttable: bool = False, **settings: Any) -> list[Block]:
    """Return a list with one block; an empty list if `content` is empty."""
    if not content:
        return []
    is_single = isinstance(content, str | CompactedBlock)
    return [Block(name, priority, [content] if is_single else content, cuttable, **settings)]


def _item(candidate: Candidate, rank: int | None = None) -> BlockItem:
    return BlockItem(
        candidate.content,
        id=candidate.id,
        source=candidate.source,
        rank=rank,
        score=candidate.score,
        version=candidate.version,
        profile=bool(candidate.profile),
        current=bool(candidate.current),
    )


def _as_text(value: Any) -> Any:
    """Return a text unchanged, and any other object as JSON with sorted keys.

    Raises:
        ConfigurationError: The object is not JSON-serializable; the message contains none of its content.
    """
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise ConfigurationError(
            f"a {type(value).__name__} cannot be sent to a model; give a text or a JSON-serializable object"
        ) from None
