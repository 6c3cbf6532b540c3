"""Which counter a model gets."""

from __future__ import annotations

from collections import OrderedDict

import tiktoken.model

from otel_assembly._internal.arguments import of_type
from otel_assembly._internal.forks import new_lock
from otel_assembly.tokens.calibration import CalibratedCounter
from otel_assembly.tokens.meter import CountMethod, TiktokenCounter, TokenCounter

#: What stands before an OpenAI model's name where several providers are reached through one interface.
_OPENAI_PREFIXES = frozenset(
    {
        "azure",
        "azure_ai",
        "azure_openai",
        "azure_text",
        "bedrock",
        "chat",
        "github",
        "groq",
        "litellm_proxy",
        "openai",
        "openrouter",
        "responses",
        "text-completion-openai",
    }
)
_DEFAULT_ENCODING = "o200k_base"
_SAME_RANKS = {"o200k_harmony": "o200k_base"}
_KEPT_MODELS = 256


class _UnknownModelCounter(TiktokenCounter):
    """Counts exactly as some models do, where nobody knows which one will be called."""

    __slots__ = ()

    method: CountMethod = "estimated"


_unknown = _UnknownModelCounter(_DEFAULT_ENCODING)
_exact: dict[str, TiktokenCounter] = {}
_calibrated: OrderedDict[str, CalibratedCounter] = OrderedDict()
_lock = new_lock()


def counter_for(model: str | None = None) -> TokenCounter:
    """The counter for a model, the same object for every caller of the process.

    An OpenAI model, bare or behind a provider's prefix (``openai/gpt-4o``, ``azure/gpt-4o``), is counted exactly, by
    tiktoken's table of models. A model without a public tokenizer (Claude, Gemini, an unknown name) gets a
    `CalibratedCounter` of its own over ``o200k_base``: labelled ``estimated`` until it has observed billed usage, and
    shared by all who count for that model, as long as it is among the 256 used last.

    Args:
        model: The model's name. None: no model is known; ``o200k_base`` counts, labelled ``estimated``.

    Raises:
        TokenizerError: The model's vocabulary is public but neither bundled nor in ``TIKTOKEN_CACHE_DIR``.
    """
    if model is None:
        return _unknown
    of_type("model", model, str, "give the model's name")
    encoding = _encoding_name(model)
    with _lock:
        if encoding is not None:
            return _exact_counter(encoding)
        name = str(model)
        counter = _calibrated.get(name)
        if counter is None:
            counter = _calibrated[name] = CalibratedCounter(name, _exact_counter(_DEFAULT_ENCODING))
            while len(_calibrated) > _KEPT_MODELS:
                _calibrated.popitem(last=False)
        _calibrated.move_to_end(name)
        return counter


def prepare(counter: TokenCounter) -> None:
    """Begin to read, in a thread, the vocabulary that a counter will need; what is wrong is raised as it counts."""
    by_vocabulary = _by_vocabulary(counter)
    if by_vocabulary is not None:
        by_vocabulary.prepare()


def is_ready(counter: TokenCounter) -> bool:
    """Whether a counter can count at once; False where it has a vocabulary to read first."""
    by_vocabulary = _by_vocabulary(counter)
    return by_vocabulary is None or by_vocabulary.is_ready


async def ready(counter: TokenCounter) -> None:
    """Wait until a counter can count, without blocking the event loop."""
    by_vocabulary = _by_vocabulary(counter)
    if by_vocabulary is not None:
        await by_vocabulary.ready()


def _by_vocabulary(counter: TokenCounter) -> TiktokenCounter | None:
    while isinstance(counter, CalibratedCounter):
        counter = counter.base
    return counter if isinstance(counter, TiktokenCounter) else None


def _exact_counter(encoding: str) -> TiktokenCounter:
    if encoding not in _exact:
        _exact[encoding] = TiktokenCounter(encoding)
    return _exact[encoding]


def _encoding_name(model: str) -> str | None:
    """The encoding of an OpenAI model, or None."""
    name = model.strip().lower()
    while True:
        # By its bare prefixes tiktoken's table takes ft:gpt-4.1 for a gpt-4; the base model's own row knows better.
        base_model = name.split(":")[1] if name.startswith("ft:") else name
        encoding = _in_table(base_model) or _in_table(name)
        if encoding is not None:
            return _SAME_RANKS.get(encoding, encoding)
        cut = min((place for mark in "/:." if (place := name.find(mark)) > 0), default=0)
        if name[:cut] not in _OPENAI_PREFIXES:
            return None
        name = name[cut + 1 :]


def _in_table(name: str) -> str | None:
    try:
        return tiktoken.model.encoding_name_for_model(name)
    except KeyError:
        return None
