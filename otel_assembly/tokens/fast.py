"""`FastTiktokenCounter`: returns the same counts as tiktoken in less time, with the extra ``fast-tokens``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import TokenizerError, UnknownNameError
from otel_assembly.tokens.meter import TiktokenCounter
from otel_assembly.tokens.vocabulary import BUNDLED

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

logger = logging.getLogger("otel_assembly")

#: Texts that tokenizers often split differently: contractions, runs of spaces and signs, scripts, special tokens.
_PROBES: Final = (
    "",
    "I'LL say it's we'Re don't, o'clock",
    "a \n\n  b\t\t\r\n   c   \n  ",
    " " * 300 + "x" + "\n" * 40 + "=" * 200,
    "def f(x):\n    return x //  2\n\n\n\n#///\n//\n",
    '{"a": [1, 2.5, null], "b": {"c": "d\\n"}} 1234567890 3.14159e-10',
    "a<|endoftext|>b<|fim_prefix|><|endofprompt|><|start|>",
    "안녕하세요 뷁쉙 你好，世界 こんにちは Привет مرحبا हिन्दी ไทย",
    "👩‍👩‍👧‍👦 🇰🇷 e\u0301 ﬁ Ǆ ß İ \u00a0\u2003\u3000\ufeff",
    "camelCaseHTTPServerIDs snake_case_0 ALLCAPS aB1c2D3",
    "deadbeef" * 64 + "Zm9vYmFy" * 64,
)


class FastTiktokenCounter(TiktokenCounter):
    """A faster `TiktokenCounter`, which is used only if a program passes it as the counter.

    It needs the extra ``fast-tokens`` (``toktok-rs``, which has wheels for some platforms only). Once per process,
    before the first count, it compares the counts of ``toktok-rs`` and tiktoken for a set of texts. If a count differs,
    it logs a warning and uses tiktoken. It also uses tiktoken for texts with lone surrogates.

    Args:
        encoding_name: ``o200k_base`` or ``cl100k_base``.

    Raises:
        UnknownNameError: The encoding is not bundled.
        TokenizerError: The extra is not installed.
    """

    __slots__ = ("_count_fast", "_tokenizer")

    def __init__(self, encoding_name: str) -> None:
        if encoding_name not in BUNDLED:
            raise UnknownNameError("encoding", encoding_name, tuple(BUNDLED))
        super().__init__(encoding_name)
        try:
            import toktok  # type: ignore[import-untyped]  # an extra
        except ImportError as error:
            raise TokenizerError(
                "FastTiktokenCounter needs the extra fast-tokens (pip install 'otel-assembly[fast-tokens]'); where it "
                "has no wheel, use TiktokenCounter, which counts the same"
            ) from error
        self._tokenizer: ModuleType = toktok
        self._count_fast: Callable[[str], int] | None = None

    def count(self, text: str) -> int:
        """Return the exact number of tokens.

        Raises:
            TokenizerError: The vocabulary is damaged, or tiktoken cannot split the text.
        """
        count = self._count_fast or self._checked()
        try:
            return count(text)
        except UnicodeEncodeError:
            return super().count(text)

    def _checked(self) -> Callable[[str], int]:
        """Return the counting function: the fast tokenizer if it agrees with tiktoken, else tiktoken."""
        key = self._tokenizer, self.name
        count = _count_functions.get(key)
        if count is None:
            count = _count_functions[key] = _fast(*key, super().count)
        self._count_fast = count
        return count


#: The counting function of this process, by tokenizer and encoding.
_count_functions: Final[dict[tuple[ModuleType, str], Callable[[str], int]]] = {}


def _fast(tokenizer: Any, encoding: str, exact: Callable[[str], int]) -> Callable[[str], int]:
    """Return the tokenizer's counting function, or `exact` if it fails or counts differently."""
    try:
        count: Callable[[str], int] = tokenizer._encoding(encoding).count  # noqa: SLF001  # toktok's function for one text
        wrong = [text for text in _PROBES if count(text) != exact(text)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        logger.warning("toktok cannot count with %s (%s); tiktoken is used", encoding, type(error).__name__)
        return exact
    if wrong:
        logger.warning("toktok and tiktoken differ for %d texts with %s; tiktoken is used", len(wrong), encoding)
        return exact
    return count
