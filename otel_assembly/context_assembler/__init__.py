"""`ContextAssembler`: builds prompts from retrievers, memories and turns, within scopes and a token budget."""

from otel_assembly.context_assembler.assembler import AssembledContext, ContextAssembler
from otel_assembly.context_assembler.candidates import Candidate, Recall, Retriever, Task
from otel_assembly.context_assembler.queued_gate import QueuedWriteGate
from otel_assembly.context_assembler.retention import (
    KnowledgeRecall,
    KnowledgeWriteGate,
    Proposal,
    Retained,
    RetentionOutcome,
    WriteGate,
)

__all__ = [
    "AssembledContext",
    "Candidate",
    "ContextAssembler",
    "KnowledgeRecall",
    "KnowledgeWriteGate",
    "Proposal",
    "QueuedWriteGate",
    "Recall",
    "Retained",
    "RetentionOutcome",
    "Retriever",
    "Task",
    "WriteGate",
]
