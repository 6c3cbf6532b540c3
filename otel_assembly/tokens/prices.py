"""Input prices and context windows of models, from the optional package `genai-prices`. Nothing is downloaded.

The package's list is loaded once per process, at the first lookup.
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.fork_safety import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_logger = logging.getLogger("otel_assembly")

_PER: Final = 1_000_000
_KEPT_MODELS: Final = 256

#: Held during the import: if the process forks while another thread imports a module, the child can never import it.
_importing = new_lock(awaited=True)

#: Prefixes of model names (``prefix/model``) that are not the name of a provider.
_ROUTES: Final = frozenset({"chat", "litellm_proxy", "responses"})


class Cost(NamedTuple):
    """The input cost of a prompt, in US dollars.

    Attributes:
        reusable: The cost of the beginning of the prompt that the provider's cache can serve.
        uncached: The cost of the rest of the prompt.
    """

    reusable: float
    uncached: float

    @property
    def total(self) -> float:
        """The cost of the whole prompt: `reusable` + `uncached`."""
        return self.reusable + self.uncached


#: Pairs of (threshold, US dollars per token). A rate applies to prompts above its threshold. Highest first.
_Rates = tuple[tuple[int, float], ...]


class InputPrice(NamedTuple):
    """The price of a model's input tokens. For some models, tokens of long prompts cost more.

    Attributes:
        uncached: The rates of tokens that the provider's cache does not serve.
        cached: The rates of tokens that the cache serves.
    """

    uncached: _Rates
    cached: _Rates

    def of_prompt(self, tokens: int, reusable: int) -> Cost:
        """Return the cost of a prompt with `tokens` tokens, of which the provider's cache serves `reusable`."""
        reusable = min(reusable, tokens)
        return Cost(reusable * _rate(self.cached, tokens), (tokens - reusable) * _rate(self.uncached, tokens))

    def of_left_out(self, left_out: int, prompt: int) -> float:
        """Return the cost in US dollars that was saved by dropping `left_out` tokens from the input.

        The rate is that of uncached tokens in a prompt of `prompt` tokens, which some models price by length.
        """
        return left_out * _rate(self.uncached, prompt)


@lru_cache(_KEPT_MODELS)
def input_price(model: str) -> InputPrice | None:
    """Return the input price of a model; None if it is unknown or `genai-prices` is not installed.

    For a name such as ``provider/model``, it is the provider's price. A model of an unknown provider, such as your own
    server, has no price.
    """
    entry = _listed(model)
    if entry is None:
        return None
    try:
        uncached = _rates(entry.model_price.input_mtok)
        cached = _rates(entry.model_price.cache_read_mtok) or uncached
    except Exception as error:  # noqa: BLE001  # an unreadable price counts as unknown
        _logger.debug("the price of a model could not be read: %s", type(error).__name__)
        return None
    return InputPrice(uncached, cached) if uncached else None


class ListedWindow(int):
    """A context window that comes from a framework's built-in table and not from the user's configuration."""


def known_window(window: int | None, model: str) -> int | None:
    """Return a model's context window in tokens; None if it is unknown.

    A configured window takes precedence. Otherwise the larger of the listed windows is returned, because a window that
    is too small would report an overflow for prompts that the provider accepts.

    Args:
        window: The configured window, or a `ListedWindow` of a framework, or None.
        model: The model's name, to look up its window in `genai-prices`.
    """
    if window is not None and not isinstance(window, ListedWindow):
        return window
    return max(int(window or 0), context_window(model) or 0) or None


@lru_cache(_KEPT_MODELS)
def context_window(model: str) -> int | None:
    """Return a model's context window in tokens; None if it is unknown or `genai-prices` is not installed.

    The name is interpreted as by `input_price`. Some windows in the list are rounded, and for some models the window
    includes the reply. Set ``model_window`` to override it.
    """
    window = getattr(getattr(_listed(model), "model", None), "context_window", None)
    return window if isinstance(window, int) and window > 0 else None


@lru_cache(_KEPT_MODELS)
def _listed(model: str) -> Any:
    """Return the entry of a model in `genai-prices`; None if there is none or the package is not installed."""
    find = _finder()
    if find is None:
        return None
    for provider, name in _readings(model.strip()):
        try:
            return find(name, provider)
        except LookupError:
            continue
        except Exception as error:  # noqa: BLE001  # an unreadable entry counts as unknown
            _logger.debug("a model could not be looked up: %s", type(error).__name__)
            return None
    return None


@cache
def _finder() -> Callable[[str, str | None], Any] | None:
    """Return a function that looks up a provider's model; None if `genai-prices` is not installed."""
    try:
        with _importing:
            from genai_prices import Usage, calc_price
    except Exception as error:  # noqa: BLE001  # not installed or broken: all prices are unknown
        _logger.debug("no prices are known: %s", type(error).__name__)
        return None
    nothing = Usage(input_tokens=0, output_tokens=0)
    return lambda name, provider: calc_price(nothing, name, provider_id=provider)


def _readings(model: str) -> Iterator[tuple[str | None, str]]:
    """Yield the pairs (provider or None, model) that a model's name can mean, the most likely first."""
    yield None, model
    place = min((at for mark in "/:" if (at := model.find(mark)) > 0), default=0)
    if place:
        before, name = model[:place], model[place + 1 :]
        if before in _ROUTES:
            yield from _readings(name)
        else:
            yield before, name


def _rates(price: Any) -> _Rates:
    """Return the rates of a price in `genai-prices`, which is a number or an object with tiers; empty for None."""
    if price is None:
        return ()
    tiers = [(tier.start, tier.price) for tier in getattr(price, "tiers", ())]
    rates = [(-1, getattr(price, "base", price)), *tiers]
    return tuple((above, float(rate) / _PER) for above, rate in reversed(rates))


def _rate(rates: _Rates, tokens: int) -> float:
    """Return the US dollars per token in a prompt of this many tokens."""
    for above, rate in rates:
        if tokens > above:
            return rate
    return rates[-1][1]
