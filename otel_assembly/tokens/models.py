"""Selection of the token counter for a model."""

from __future__ import annotations

from collections import OrderedDict

import tiktoken.model

from otel_assembly._internal.arguments import of_type
from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.tokens.calibration import CalibratedCounter
from otel_assembly.tokens.meter import CountMethod, TiktokenCounter, TokenCounter

#: Prefixes of OpenAI model names in interfaces to several providers, such as LiteLLM.
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
#: Encodings whose vocabulary is that of another encoding, apart from special tokens.
_SAME_RANKS = {"o200k_harmony": "o200k_base"}
_KEPT_MODELS = 256


class _UnknownModelCounter(TiktokenCounter):
    """Counts with an OpenAI tokenizer for an unknown model, so its method is ``estimated``."""

    __slots__ = ()

    method: CountMethod = "estimated"


_unknown = _UnknownModelCounter(_DEFAULT_ENCODING)
_exact: dict[str, TiktokenCounter] = {}
_calibrated: OrderedDict[str, CalibratedCounter] = OrderedDict()
_lock = new_lock()


def counter_for(model: str | None = None) -> TokenCounter:
    """Return the token counter for a model. All callers in a process share it.

    OpenAI models are counted exactly, with or without a provider's prefix (``openai/gpt-4o``, ``azure/gpt-4o``). The
    encoding comes from tiktoken's table of models. Other models (Claude, Gemini, unknown names) have no public
    tokenizer: each has a `CalibratedCounter` over ``o200k_base``, labeled ``estimated`` until it has observed billed
    usage. The 256 most recently used of these counters are kept.

    Args:
        model: The model's name. None: the model is unknown; the tokens are counted with ``o200k_base``, labeled
            ``estimated``.

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
    """Start to load a counter's vocabulary in a thread. If loading fails, `count` raises the error."""
    tiktoken_counter = _tiktoken_counter(counter)
    if tiktoken_counter is not None:
        tiktoken_counter.prepare()


def is_ready(counter: TokenCounter) -> bool:
    """Return True if a counter can count immediately: it needs no vocabulary, or the vocabulary is loaded."""
    tiktoken_counter = _tiktoken_counter(counter)
    return tiktoken_counter is None or tiktoken_counter.is_ready


async def ready(counter: TokenCounter) -> None:
    """Wait until a counter's vocabulary is loaded, without blocking the event loop."""
    tiktoken_counter = _tiktoken_counter(counter)
    if tiktoken_counter is not None:
        await tiktoken_counter.ready()


def _tiktoken_counter(counter: TokenCounter) -> TiktokenCounter | None:
    """Return the counter with a vocabulary that a counter uses, or None."""
    while isinstance(counter, CalibratedCounter):
        counter = counter.base
    return counter if isinstance(counter, TiktokenCounter) else None


def _exact_counter(encoding: str) -> TiktokenCounter:
    if encoding not in _exact:
        _exact[encoding] = TiktokenCounter(encoding)
    return _exact[encoding]


def _encoding_name(model: str) -> str | None:
    """Return the name of an OpenAI model's encoding; None for other models."""
    name = model.strip().lower()
    while True:
        # tiktoken's table of prefixes maps ft:gpt-4.1 to gpt-4, so the base model is looked up first.
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
