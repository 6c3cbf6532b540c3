"""`ContextAssembler`: the CLEAR pass as control flow, from a task to the prompt that is sent.

Current task, Legal boundary, Evidence, Attention budget, Retention: what is permitted is asked first, and everything
else only within it; what was found is allocated and put in order by one ordinary assembly, so that each item has a
reason in the same ledger, spans and explanations as any event; what should last is proposed after the answer.
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
from otel_assembly.context_assembler.layout import KnownEvents, Layout
from otel_assembly.context_assembler.retention import Retained, WriteGate, retained
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

#: The seed's floors, in tokens.
FLOORS: Final[Mapping[str, int]] = {"evidence": 200, "memory": 50, "summary": 80}


class AssembledContext:
    """What a model is sent for one task, with the reasons beside it.

    Attributes:
        prompt: The blocks in the order in which they are sent.
        allocation: What was decided of each block and item, and the numbers.
        assembly: The same as an assembly of its conversation: what changed since the last one.
        scopes: What was permitted.
        failures: The sources that were passed over.
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
        """What a provider is sent: texts as chat messages, events as the very objects."""
        return self.prompt.messages

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision for every change of an item's state since the assembly before in this conversation."""
        return self.assembly.decisions

    async def retain(self, answer: str, candidates: Sequence[Candidate]) -> list[Retained]:
        """Propose what should be remembered, once the answer has been given; until then nothing is written.

        What lies outside of the scopes that were permitted never reaches the gate. No failure comes through: it is
        logged, and told by the result's ``failed``.

        Args:
            answer: The answer, for the gate's rule.
            candidates: What might be remembered, each with its scope and source.

        Raises:
            ConfigurationError: The assembler has no gate, `answer` is no text, or `candidates` is no sequence of
                `Candidate`.
        """
        of_type("answer", answer, str)
        candidates = items_of_type("candidates", candidates, Candidate, "give a list of Candidate(id, content, scope)")
        if self._gate is None:
            raise ConfigurationError("this ContextAssembler has no write gate; give it one: gate=KnowledgeWriteGate(…)")
        return await retained(self._gate, answer, candidates, self.scopes, self.assembly.id)

    def __repr__(self) -> str:
        return f"AssembledContext({self.allocation!r}, {self.prompt!r})"

    def _repr_html_(self) -> str:
        return self.assembly._repr_html_()  # what notebooks call has to be called so


class ContextAssembler:
    """Assembles the prompt for a task: permission, evidence, budget, order.

    Blocks, by the seed's table: ``system``, ``schema``, ``examples``, ``query`` and ``state`` are never cut;
    ``evidence``, ``memory``, ``summary``, ``recent`` and ``older`` are, in that order from last to first.

    One assembler may serve any number of users, conversations and tasks at once.

    Args:
        system: Instructions and safety policy: one text, the same on every turn.
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        scopes: ``scopes(user, task)``, async or not: what this user may see for this task. It is asked first; where it
            permits nothing, nothing is retrieved, recalled or loaded.
        retrievers: Sources of evidence; all are asked at once.
        recall: The source of memories.
        rerank: ``rerank(query, candidates)``, async or not: the evidence in a better order, best first.
        state: ``state(task, scopes)``, async or not: the application's state, as a text or as what becomes JSON.
        gate: What decides what is remembered, after the answer.
        examples: Few-shot examples, the same on every turn: one text, or a sequence of texts or events.
        compact: ``compact(text, target_tokens)`` makes a text shorter; or `Compactors`. None: the extractive
            compactor, which needs no model.
        floors: Tokens that are reserved for a block before one of higher priority may take them, by its name.
        k: How many passages each retriever is asked for.
        recall_k: How many memories are asked for.
        deadline: Seconds that each source may take.
        order: ``attention``, the seed's order, in which evidence stands in front of turns; or ``cache``, in which all
            that a conversation keeps stands in front of all that a question brings, so that a provider's cache has it.
        step_tokens: In the order for the cache, how far the cut through the turns moves at a time: it takes all turns
            that begin in one stretch of ``4 × step_tokens`` bytes. It needs room for two steps, better three; where
            there is less, the cut moves to any turn, and so it does with 0.
        on_retriever_error: ``raise``, or ``skip`` to go on without a retriever, recall or rerank that failed. Scopes
            and state are never passed over.
        name: Tells several assemblers of a program apart in telemetry.
        model: The model whose tokenizer counts; else that of the context.
        counter: Counts instead of the model's tokenizer.
        framing: What a message costs beyond its texts; None: the OpenAI cookbook's figures.
        recorder: Where the record of each assembly goes; by default OpenTelemetry, as it is configured globally.

    Raises:
        ConfigurationError: A number, a source or a setting cannot work.
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
        for role, source in [("scopes", scopes), *((role, one) for role, one in optional if one is not None)]:
            function(role, source)
        given = several("retrievers", retrievers)
        for index, retriever in enumerate(given):
            checked_source(f"retriever at index {index}", retriever, "search")
        if recall is not None:
            checked_source("recall", recall, "recall")
        if gate is not None:
            checked_source("gate", gate, "offer")
        self._budget = window - output_reserve
        self._floors = checked_floors(floors, self._budget)
        self._sources = Sources(
            scopes=scopes,
            retrievers=given,
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
        """Work out what the model is sent for a task.

        Args:
            task: What is asked.
            user: Who asks, as `scopes` and `recall` know them.
            context: The conversation, as for any assembler: keep one for all its turns, or give it a conversation id.

        Raises:
            HaltedError: The conversation is halted: no source is asked any more, and nothing is to be sent.
            SourceFailedError: A source failed that is not passed over; the message names it.
            ContextOverflowError: What may not be cut does not fit; raised before anything is compacted.
            ConfigurationError: Two versions of one candidate cannot be compared; `task` is no `Task`, or `context` no
                `Context`.
            DescribeError: A turn cannot be read.
        """
        of_type("task", task, Task, "give Task(query)")
        if context is not None:
            of_type("context", context, Context, "give Context(conversation_id=…)")
        context = context if context is not None else Context()
        if context.guard.halted:
            await self._assembler.assemble([], ReadEvents(), context)  # which tells of it, and raises
        try:
            gathered = await self._sources.gather(task, user)
        except SourceFailedError as failed:
            self._assembler.tell_failures([failed], context)
            raise
        self._assembler.tell_failures(gathered.failures, context)
        kept = self._assembler.kept(context)
        layout = self._laid_out(task, gathered, kept.events)
        session = BlockSession(layout, kept.compactions)
        token = block_session.set(session)
        try:
            assembly = await self._assembler.assemble([], layout.events, context)
        except PolicyFailedError as failed:  # the policy is ours alone: what it has to say names the block and the mend
            if isinstance(failed.__cause__, AssemblyError):
                raise failed.__cause__ from None
            raise
        finally:
            block_session.reset(token)
        if session.result is None:
            raise AssertionError("an assembly came to its end without its only policy")
        allocation, prompt = session.result
        return AssembledContext(prompt, allocation, assembly, gathered, self._gate)

    def observe_usage(self, counted: int, billed: int, *, model: str | None = None) -> None:
        """Tell what the provider billed for a prompt of ours; see `Assembler.observe_usage`."""
        self._assembler.observe_usage(counted, billed, model=model)

    def _laid_out(self, task: Task, gathered: Gathered, known: KnownEvents) -> Layout:
        evidence = [_item(one, rank) for rank, one in enumerate(gathered.evidence, start=1)]
        examples = [item for block in self._stable for item in block.items]
        turns = known.turns.take([facts for item in examples if (facts := facts_of(item))], task.older, task.recent)
        older, recent = (
            split_turns(examples, task.older, task.recent)
            if turns is None
            else (turns.items[: turns.border], turns.items[turns.border :])
        )
        blocks = [
            *self._stable,
            *_block("schema", 2, _shown(task.output_schema), rank=1),
            *_block("query", 3, task.query, restated=task.key_instruction),
            *_block("state", 4, _shown(gathered.state)),
            *self._cuttable("evidence", 5, evidence),
            *self._cuttable("memory", 6, [_item(one) for one in gathered.memories]),
            *self._cuttable("summary", 7, task.summary),
        ]
        if self._order == "attention":
            blocks += [*self._cuttable("recent", 8, recent), *self._cuttable("older", 9, older)]
            starts = {"recent": len(older), "older": 0}
        else:
            # Side by side they are one conversation: where a caller draws the border must not move what stands there.
            floor = min(self._floors.get("recent", 0) + self._floors.get("older", 0), self._budget)
            all_turns = [*older, *recent] if turns is None else turns.items
            held = in_steps(all_turns, self._step_tokens) if turns is None else all_turns
            blocks += _block("recent", 8, held, cuttable=True, min_tokens=floor)
            starts = {"recent": 0}
        return Layout(blocks, self._order, known, (turns, starts) if turns is not None else None)

    def _cuttable(self, name: str, priority: int, content: Any) -> list[Block]:
        return _block(name, priority, content, cuttable=True, min_tokens=self._floors.get(name, 0))


def _block(name: str, priority: int, content: Any, *, cuttable: bool = False, **settings: Any) -> list[Block]:
    """A block of items, where there is anything to hold."""
    if not content:
        return []
    one = isinstance(content, str | CompactedBlock)
    return [Block(name, priority, [content] if one else content, cuttable, **settings)]


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


def _shown(value: Any) -> Any:
    """A text as it is; anything else as JSON, the same for equal objects, whatever order a dict is in.

    Raises:
        ConfigurationError: It is not JSON; the message says nothing of what is in it.
    """
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise ConfigurationError(
            f"a {type(value).__name__} cannot be shown to a model; give a text, or what JSON can say"
        ) from None
