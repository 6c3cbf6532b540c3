"""Counters for models without a public tokenizer: one corrected by billed usage, and one that counts characters."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from otel_assembly._internal.fork_safety import new_lock
from otel_assembly.errors import ConfigurationError

if TYPE_CHECKING:
    from otel_assembly.tokens.meter import CountMethod, TokenCounter

_LOWEST, _HIGHEST = 0.2, 5.0
_TOLERANCE = 0.05
_SAMPLES = 9
_REMEMBERED_RATIOS = 64


class CalibratedCounter:
    """Counts with another model's tokenizer and corrects the count by the billed usage.

    The method is ``estimated`` until the first billed usage is observed, and ``calibrated`` afterwards. The learned
    ratio is the median of the last nine observations, so that a single outlier has little effect. The ratio in use
    changes only if the learned ratio differs by more than 5 %. Each change starts a new `generation`: all earlier
    counts become invalid, and the cached prefix of a prompt can change. Thread-safe.

    Args:
        model: The model's name, for messages and metrics.
        base: The counter before correction.
        initial_ratio: Billed ÷ base count before the first observation, from 0.2 to 5.

    Raises:
        ConfigurationError: `initial_ratio` is not a number from 0.2 to 5.
    """

    __slots__ = (
        "__weakref__",
        "_generation",
        "_learned",
        "_lock",
        "_ratios",
        "_samples",
        "base",
        "model",
        "name",
        "ratio",
    )

    def __init__(self, model: str, base: TokenCounter, initial_ratio: float = 1.0) -> None:
        if not _is_number(initial_ratio) or not _LOWEST <= initial_ratio <= _HIGHEST:
            raise ConfigurationError(
                f"initial_ratio of the counter for {model!r} is {initial_ratio!r}"
                f"; it must be a number from {_LOWEST} to {_HIGHEST}"
            )
        self.model = model
        self.base = base
        self.name = base.name
        self.ratio = float(initial_ratio)
        """The ratio in use: a text's count is its base count times this, rounded up."""
        self._learned = self.ratio
        self._generation = 0
        self._ratios = deque([(self.generation, self.ratio)], maxlen=_REMEMBERED_RATIOS)
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._lock = new_lock(self, CalibratedCounter._start_generation)

    @property
    def method(self) -> CountMethod:
        """``calibrated`` after the first observation of billed usage, ``estimated`` before."""
        return "calibrated" if self._samples else "estimated"

    @property
    def generation(self) -> int:
        """A number that changes when `ratio` changes, so that earlier counts are no longer valid."""
        return self._generation + self.base.generation

    @property
    def learned_ratio(self) -> float:
        """The observed ratio, billed ÷ base count. `ratio` is set to it if they differ by more than 5 %."""
        return self._learned

    def count(self, text: str) -> int:
        """Return the base count times the ratio in use, rounded up."""
        return _ceil(self.base.count(text) * self.ratio)

    def observe(self, counted: int, billed: int, *, generation: int | None = None) -> bool:
        """Adjust the ratio by the billed tokens of one model call.

        Args:
            counted: The prompt's tokens by this counter.
            billed: The input tokens that the provider billed, including cached tokens.
            generation: The value of `generation` when the prompt was counted. It can be an earlier one if several
                threads call this method. None: the current generation.

        Returns:
            False if the observation was ignored: a number not above 0, or a ratio outside 0.2 to 5.
        """
        if not (_is_number(counted) and _is_number(billed) and counted > 0 and billed > 0):
            return False
        with self._lock:
            sample = self._ratio_of(generation) * billed / counted
            if not _LOWEST <= sample <= _HIGHEST:
                return False
            self._samples.append(sample)
            self._learned = _median(self._samples, self.ratio)
            if abs(self._learned - self.ratio) > _TOLERANCE * min(self._learned, self.ratio):
                # Set the ratio first: a thread that reads the new generation must not count with the old ratio.
                self.ratio = self._learned
                self._start_generation()
            return True

    def _start_generation(self) -> None:
        """Increase the number `generation`, and remember the current ratio for it."""
        self._generation += 1
        self._ratios.append((self.generation, self.ratio))

    def _ratio_of(self, generation: int | None) -> float:
        """Return the ratio that was in use while `generation` had this value; None for the current ratio."""
        if generation is None:
            return self.ratio
        return next((ratio for since, ratio in reversed(self._ratios) if since <= generation), self._ratios[0][1])

    def __repr__(self) -> str:
        return f"CalibratedCounter({self.model!r}, {self.base!r}, ratio={self.ratio:.3f}, method={self.method!r})"


class CharacterCounter:
    """Estimates tokens as characters ÷ `chars_per_token`.

    The library never chooses this counter by itself. To use it, pass it as the argument `counter`.

    Args:
        chars_per_token: Characters per token, greater than 0.

    Raises:
        ConfigurationError: `chars_per_token` is not a finite number greater than 0.
    """

    __slots__ = ("chars_per_token", "name")

    method: CountMethod = "estimated"
    generation: int = 0

    def __init__(self, chars_per_token: float) -> None:
        if not _is_number(chars_per_token) or chars_per_token <= 0:
            raise ConfigurationError(f"chars_per_token is {chars_per_token!r}; it must be a number greater than 0")
        self.chars_per_token = chars_per_token
        self.name = f"characters/{chars_per_token:g}"

    def count(self, text: str) -> int:
        """Return characters ÷ `chars_per_token`, rounded up."""
        return math.ceil(len(text) / self.chars_per_token)

    def __repr__(self) -> str:
        return f"CharacterCounter({self.chars_per_token!r})"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _ceil(product: float) -> int:
    # 100 × 1.1 is 110.00000000000001 in floating point; the result must be 110, not 111.
    return math.ceil(product - 1e-9)


def _median(samples: deque[float], current: float) -> float:
    """Return the median; of two middle values, the one that is nearer to `current`."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return min(ordered[middle - 1 : middle + 1], key=lambda sample: abs(sample - current))
