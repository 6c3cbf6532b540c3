"""What a model's input costs, and how much of it there may be, as `genai-prices` knows it; nothing is fetched.

What that package brings along is read when the first model is asked for, once in a process.
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.forks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_logger = logging.getLogger("otel_assembly")

_PER: Final = 1_000_000
_KEPT_MODELS: Final = 256

#: A module that one thread imports while another one forks can never be imported in the child.
_importing = new_lock(awaited=True)

#: What stands before a model's name and names no provider.
_ROUTES: Final = frozenset({"chat", "litellm_proxy", "responses"})


class Cost(NamedTuple):
    """What a prompt costs as input, in US dollars.

    Attributes:
        reusable: Its beginning that the provider's cache can serve.
        uncached: The rest.
    """

    reusable: float
    uncached: float

    @property
    def total(self) -> float:
        """Both."""
        return self.reusable + self.uncached


#: US dollars a token, by the tokens of the prompt that a rate begins above; the largest first.
_Rates = tuple[tuple[int, float], ...]


class InputPrice(NamedTuple):
    """What a token of input costs; with some models it is more where the prompt is long."""

    uncached: _Rates
    cached: _Rates

    def of_prompt(self, tokens: int, reusable: int) -> Cost:
        """What a prompt costs, of which so many tokens can come from the provider's cache."""
        reusable = min(reusable, tokens)
        return Cost(reusable * _rate(self.cached, tokens), (tokens - reusable) * _rate(self.uncached, tokens))

    def of_left_out(self, left_out: int, prompt: int) -> float:
        """What so many tokens more would have cost, at the rate of the prompt that they left."""
        return left_out * _rate(self.uncached, prompt)


@lru_cache(_KEPT_MODELS)
def input_price(model: str) -> InputPrice | None:
    """What input of a model costs; None where nobody knows, or `genai-prices` is not installed.

    Of ``provider/model`` the provider's price counts. A name behind a provider that is unknown has none: what a server
    of one's own costs, no list says.
    """
    found = _listed(model)
    if found is None:
        return None
    try:
        uncached = _rates(found.model_price.input_mtok)
        cached = _rates(found.model_price.cache_read_mtok) or uncached
    except Exception as error:  # noqa: BLE001  # a price that cannot be read is a price that is not known
        _logger.debug("the price of a model could not be read: %s", type(error).__name__)
        return None
    return InputPrice(uncached, cached) if uncached else None


class ListedWindow(int):
    """A model's window as a table has it that a package brought along, and nobody can set: one list beside others."""


def known_window(said: int | None, model: str) -> int | None:
    """A model's window, of which this is said already: what somebody has set holds, of lists the one that says most.

    A window that is too small would call prompts too long that are sent and answered; of those over one that is too
    large, the provider says so itself.
    """
    if said is not None and not isinstance(said, ListedWindow):
        return said
    return max(int(said or 0), context_window(model) or 0) or None


@lru_cache(_KEPT_MODELS)
def context_window(model: str) -> int | None:
    """How many tokens a model takes at most; None where nobody knows, or `genai-prices` is not installed.

    The name is read as `input_price` reads it. Some windows in the list are round numbers, and of some models the reply
    has to fit in as well: whoever knows better says so, with ``model_window``.
    """
    window = getattr(getattr(_listed(model), "model", None), "context_window", None)
    return window if isinstance(window, int) and window > 0 else None


@lru_cache(_KEPT_MODELS)
def _listed(model: str) -> Any:
    """What the list says of a model, by the likeliest meaning of its name that it knows; None where it knows none."""
    find = _finder()
    if find is None:
        return None
    for provider, name in _readings(model.strip()):
        try:
            return find(name, provider)
        except LookupError:
            continue
        except Exception as error:  # noqa: BLE001  # what cannot be read is not known
            _logger.debug("a model could not be looked up: %s", type(error).__name__)
            return None
    return None


@cache
def _finder() -> Callable[[str, str | None], Any] | None:
    """Finds a provider's model in the list; None without the package that brings it."""
    try:
        with _importing:
            from genai_prices import Usage, calc_price
    except Exception as error:  # noqa: BLE001  # it is not there, or cannot be loaded: no price is known
        _logger.debug("no prices are known: %s", type(error).__name__)
        return None
    nothing = Usage(input_tokens=0, output_tokens=0)
    return lambda name, provider: calc_price(nothing, name, provider_id=provider)


def _readings(model: str) -> Iterator[tuple[str | None, str]]:
    """What a name may mean, the likeliest first: a model, or a provider and its model."""
    yield None, model
    place = min((at for mark in "/:" if (at := model.find(mark)) > 0), default=0)
    if place:
        before, name = model[:place], model[place + 1 :]
        if before in _ROUTES:
            yield from _readings(name)
        else:
            yield before, name


def _rates(price: Any) -> _Rates:
    """The rates of a price, which is a number, or one with higher rates for long prompts; empty where it is none."""
    if price is None:
        return ()
    tiers = [(tier.start, tier.price) for tier in getattr(price, "tiers", ())]
    rates = [(-1, getattr(price, "base", price)), *tiers]
    return tuple((above, float(rate) / _PER) for above, rate in reversed(rates))


def _rate(rates: _Rates, tokens: int) -> float:
    return next(rate for above, rate in rates if tokens > above)
