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

#: If one thread forks while another imports a module, the child can never import that module.
_importing = new_lock(awaited=True)

#: Prefixes of model names that do not name a provider.
_ROUTES: Final = frozenset({"chat", "litellm_proxy", "responses"})


class Cost(NamedTuple):
    """The input cost of a prompt, in US dollars.

    Attributes:
        reusable: The cost of the prefix that the provider's cache can serve.
        uncached: The cost of the rest.
    """

    reusable: float
    uncached: float

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.reusable + self.uncached


#: Pairs of (threshold, US dollars per token). A rate applies to prompts above its threshold. Highest first.
_Rates = tuple[tuple[int, float], ...]


class InputPrice(NamedTuple):
    """The price of input tokens. Some models charge more per token for long prompts."""

    uncached: _Rates
    cached: _Rates

    def of_prompt(self, tokens: int, reusable: int) -> Cost:
        """Return the cost of a prompt of `tokens`, of which the provider's cache can serve `reusable`."""
        reusable = min(reusable, tokens)
        return Cost(reusable * _rate(self.cached, tokens), (tokens - reusable) * _rate(self.uncached, tokens))

    def of_left_out(self, left_out: int, prompt: int) -> float:
        """Return the cost that dropping `left_out` tokens saved, at the rate of a prompt of `prompt` tokens."""
        return left_out * _rate(self.uncached, prompt)


@lru_cache(_KEPT_MODELS)
def input_price(model: str) -> InputPrice | None:
    """Return the input price of a model; None if it is unknown or `genai-prices` is not installed.

    For ``provider/model`` this is the provider's price. A model of an unknown provider (such as your own server) has
    no price.
    """
    found = _listed(model)
    if found is None:
        return None
    try:
        uncached = _rates(found.model_price.input_mtok)
        cached = _rates(found.model_price.cache_read_mtok) or uncached
    except Exception as error:  # noqa: BLE001  # an unreadable price counts as unknown
        _logger.debug("the price of a model could not be read: %s", type(error).__name__)
        return None
    return InputPrice(uncached, cached) if uncached else None


class ListedWindow(int):
    """A context window from a package's built-in table, not from the user's configuration."""


def known_window(said: int | None, model: str) -> int | None:
    """Return a model's context window in tokens. A configured window takes precedence over listed windows.

    Of several listed windows the largest is returned. A window that is too small would report an overflow for prompts
    that the provider accepts. If it is too large, the provider rejects the prompt.
    """
    if said is not None and not isinstance(said, ListedWindow):
        return said
    return max(int(said or 0), context_window(model) or 0) or None


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
    """Return the list's entry of a model, or None. The likeliest reading of the name is tried first."""
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
    """Yield the readings of a name as (provider, model), the likeliest first."""
    yield None, model
    place = min((at for mark in "/:" if (at := model.find(mark)) > 0), default=0)
    if place:
        before, name = model[:place], model[place + 1 :]
        if before in _ROUTES:
            yield from _readings(name)
        else:
            yield before, name


def _rates(price: Any) -> _Rates:
    """Return the rates of a price: a number, or an object with tiers for long prompts. Empty for None."""
    if price is None:
        return ()
    tiers = [(tier.start, tier.price) for tier in getattr(price, "tiers", ())]
    rates = [(-1, getattr(price, "base", price)), *tiers]
    return tuple((above, float(rate) / _PER) for above, rate in reversed(rates))


def _rate(rates: _Rates, tokens: int) -> float:
    return next(rate for above, rate in rates if tokens > above)
