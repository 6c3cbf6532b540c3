"""`ContextAssembler`: the CLEAR pass, from a task to the prompt that is sent.

CLEAR stands for Current task, Legal boundary, Evidence, Attention budget, Retention. The permitted scopes are
determined first, and limit all later steps. The gathered content is allocated and ordered by one ordinary assembly, so
each item has a reason in the ledger, the spans and the explanations. Memories are proposed after the answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import OnError, function, items_of_type, of_type, one_of, several
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
    """The prompt for one task, with the reasons for its content.

    Attributes:
        prompt: The blocks in the order in which they are sent.
        allocation: The decisions on blocks and items, in numbers.
        assembly: The assembly in its conversation: the changes since the last one.
        scopes: The permitted scopes.
        failures: The failed sources that were skipped.
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
        """The messages for a provider: texts as chat messages, events as they are."""
        return self.prompt.messages

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The changes of items' states since the conversation's previous assembly."""
        return self.assembly.decisions

    async def retain(self, answer: str, candidates: Sequence[Candidate]) -> list[Retained]:
        """Propose memories after the answer has been given; nothing is written before.

        Candidates outside the permitted scopes never reach the gate. A failure is logged and returned with the outcome
        ``failed``; it is not raised.

        Args:
            answer: The answer, for the gate's rule.
            candidates: The proposed memories, each with its scope and source.

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
    """Assembles the prompt for a task: permission, evidence, budget, order.

    The blocks ``system``, ``schema``, ``examples``, ``query`` and ``state`` are never cut. The blocks ``older``,
    ``recent``, ``summary``, ``memory`` and ``evidence`` may be cut, in this order.

    One assembler may serve any number of users, conversations and tasks concurrently.

    Args:
        system: Instructions and safety policy: one text, the same on every turn.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        scopes: ``scopes(user, task)``, async or not: returns the scopes that the user may see for the task. It is
            called first. If it returns none, nothing is retrieved, recalled or loaded.
        retrievers: Sources of evidence; all are called concurrently.
        recall: The source of memories.
        rerank: ``rerank(query, candidates)``, async or not: returns the evidence in a better order, best first.
        state: ``state(task, scopes)``, async or not: returns the application's state, as a text or a JSON-serializable
            object.
        gate: Decides which memories are stored after the answer.
        examples: Few-shot examples, the same on every turn: one text, or a sequence of texts or events.
        compact: Shortens a text, called as ``compact(text, target_tokens)``; or `Compactors`. None: the extractive
            compactor, which needs no model.
        floors: The tokens reserved for each block, by its name, before blocks of higher priority may take them.
        k: How many passages to request from each retriever.
        recall_k: How many memories to request.
        deadline: The most seconds of each source.
        order: ``attention``, in which evidence precedes turns; or ``cache``, in which content of the conversation
            precedes content that depends on the query, so that a provider caches it.
        step_tokens: In the order ``cache``, how far the cut through the turns moves at a time: it removes all turns
            that begin in one stretch of ``4 × step_tokens`` bytes. It needs room for two steps, better three; with less
            room, or with 0, the cut moves to any turn.
        on_retriever_error: ``raise``, or ``skip`` to continue without a failed retriever, recall or rerank. Scopes and
            state are never skipped.
        name: Distinguishes several assemblers of a program in telemetry.
        model: The model whose tokenizer counts; by default that of the context.
        counter: Counts instead of the model's tokenizer.
        framing: The tokens of a message in addition to its texts; None: the figures of the OpenAI cookbook.
        recorder: Receives the record of each assembly; by default OpenTelemetry, as configured globally.

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
        """Assemble the prompt for a task.

        Args:
            task: The task.
            user: The user, as `scopes` and `recall` know them.
            context: The conversation, as for any assembler: keep one context for all turns, or set a conversation id.

        Raises:
            HaltedError: The conversation is halted: no source is called, and nothing must be sent.
            SourceFailedError: A source failed and is not skipped; the message names it.
            ContextOverflowError: The content that cannot be cut does not fit; raised before anything is compacted.
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
        layout = self._layout(task, gathered, cache.events)
        session = BlockSession(layout, cache.compactions)
        token = block_session.set(session)
        try:
            assembly = await self._assembler.assemble([], layout.events, context)
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

    def observe_usage(self, counted: int, billed: int, *, model: str | None = None) -> None:
        """Pass on a prompt's billed tokens; see `Assembler.observe_usage`."""
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
            # One block for both, because moving the border between recent and older turns must not change the prompt.
            floor = min(self._floors.get("recent", 0) + self._floors.get("older", 0), self._budget)
            all_turns = [*older, *recent] if turns is None else turns.items
            grouped = in_steps(all_turns, self._step_tokens) if turns is None else all_turns
            blocks += _block("recent", 8, grouped, cuttable=True, min_tokens=floor)
            starts = {"recent": 0}
        return Layout(blocks, self._order, previous, (turns, starts) if turns is not None else None)

    def _cuttable(self, name: str, priority: int, content: Any) -> list[Block]:
        return _block(name, priority, content, cuttable=True, min_tokens=self._floors.get(name, 0))


def _block(name: str, priority: int, content: Any, *, cuttable: bool = False, **settings: Any) -> list[Block]:
    """Return a list with a block of items, or an empty list without content."""
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
