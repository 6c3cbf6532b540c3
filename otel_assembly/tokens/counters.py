"""``TokenCounter``, what the engine asks for tokens, and the exact counter for models with a public tokenizer."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from otel_assembly.errors import TokenizerError, UnknownNameError
from otel_assembly.tokens.long_runs import without_long_runs
from otel_assembly.tokens.vocabulary import (
    BUNDLED,
    CACHED,
    encoding_ready,
    prepare_encoding,
    read_encoding,
    shared_encoding,
)

if TYPE_CHECKING:
    from os import PathLike

    import tiktoken

CountMethod: TypeAlias = Literal["exact", "calibrated", "estimated"]


class TokenCounter(Protocol):
    """How many tokens a text is; anything with these four members can count for the engine."""

    @property
    def name(self) -> str:
        """The vocabulary or rule that counts, e.g. ``o200k_base``."""

    @property
    def method(self) -> CountMethod:
        """``exact``: the model's own tokenizer; ``calibrated``: corrected by billed usage; ``estimated``: neither."""

    @property
    def generation(self) -> int:
        """Changes when counts that were made earlier should be made anew."""

    def count(self, text: str) -> int:
        """The tokens of one text, at least 0; the same for the same text within a generation."""


class TiktokenCounter:
    """Counts as OpenAI's models do, offline; what looks like a special token (``<|endoftext|>``) is plain text.

    ``o200k_base`` and ``cl100k_base`` come with the package. ``r50k_base``, ``p50k_base``, ``p50k_edit`` and ``gpt2``
    are read from the directory that ``TIKTOKEN_CACHE_DIR`` names. Nothing is ever fetched. A vocabulary is read at the
    first count, or in a thread from `prepare` on, once for the process; instances share it, across threads.
    Counts are exact for texts of any length. A lone surrogate counts as the replacement character U+FFFD, for it has no
    UTF-8 form to be sent in.

    Args:
        encoding_name: The encoding.
        vocabulary: A ``.tiktoken.xz`` file to read instead of the bundled one. Its content must have the same hash.

    Raises:
        UnknownNameError: No such encoding.
        TokenizerError: At once for an encoding whose vocabulary is not in the cache; at the first count for a bundled
            one that is damaged.
    """

    __slots__ = ("_encoding", "_file", "name")

    method: CountMethod = "exact"
    generation: int = 0

    def __init__(self, encoding_name: str, *, vocabulary: str | PathLike[str] | None = None) -> None:
        if encoding_name not in BUNDLED and (vocabulary is not None or encoding_name not in CACHED):
            raise UnknownNameError("encoding", encoding_name, (*BUNDLED, *(CACHED if vocabulary is None else ())))
        self.name = encoding_name
        self._file = Path(vocabulary) if vocabulary is not None else None
        self._encoding: tiktoken.Encoding | None = None if encoding_name in BUNDLED else shared_encoding(encoding_name)

    def count(self, text: str) -> int:
        """The exact number of tokens.

        Raises:
            TokenizerError: The vocabulary is damaged, or tiktoken cannot split the text.
        """
        encoding = self._encoding or self._load()
        if len(text) < _LONG:
            return _count(encoding, text)
        text, lost = without_long_runs(encoding, text)
        return lost + self._count_long(encoding, text)

    def _count_long(self, encoding: tiktoken.Encoding, text: str) -> int:
        if len(text) >= _LONG_SPACE and (bundled := BUNDLED.get(self.name)) is not None and _has_long_space(text):
            return _count_around_long_space(encoding, text, bundled.splits_trailing_space)
        return _count(encoding, text)

    @property
    def is_ready(self) -> bool:
        """Whether it can count at once; False where the vocabulary is yet to be read."""
        return self._encoding is not None

    def prepare(self) -> None:
        """Begin to read the vocabulary in a thread, where nobody has; what is wrong with it is raised by `count`."""
        if self._encoding is None and self._file is None:
            prepare_encoding(self.name)

    async def ready(self) -> None:
        """Wait until the vocabulary was read, without blocking the event loop; what is wrong with it, the same."""
        if self._encoding is None and self._file is None:
            await encoding_ready(self.name)

    def _load(self) -> tiktoken.Encoding:
        encoding = shared_encoding(self.name) if self._file is None else read_encoding(self.name, self._file)
        self._encoding = encoding
        return encoding

    def __repr__(self) -> str:
        return f"TiktokenCounter({self.name!r})"


#: From so many characters on, counting takes more than asking how: a list of a text's tokens is never made, for that
#: keeps all other threads waiting.
_LONG = 16_384
_TOKEN_BYTES: Final = 4
_NO_SPECIAL: Final[frozenset[str]] = frozenset()


def _count(encoding: tiktoken.Encoding, text: str) -> int:
    try:
        if len(text) < _LONG:
            return len(encoding.encode_ordinary(text))
        with suppress(UnicodeEncodeError):  # a lone surrogate, which `encode_ordinary` replaces
            tokens = encoding._core_bpe.encode_to_tiktoken_buffer(text, _NO_SPECIAL)  # noqa: SLF001  # or numpy is needed
            return memoryview(tokens).nbytes // _TOKEN_BYTES
        return len(encoding.encode_ordinary(text))
    except BaseException as error:
        # A panic of the Rust core is no Exception, so no caller's handler would ever see it.
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"tiktoken cannot split a text of {len(text)} characters with {encoding.name}; shorten the text"
        ) from None


# tiktoken's pattern engine keeps a state for every character of a whitespace run that it may have to give back, and
# panics at a million of them. Such runs are cut where the pattern itself cuts, so the count stays exact: whitespace
# behind the last newline is one piece, except for its last character where a word or sign follows to take it up.
_LONG_SPACE = 500_000
_SPACES = "\t\x0b\x0c \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE_RUN = re.compile(f"[{_SPACES}]+")


def _has_long_space(text: str) -> bool:
    # A run of this length covers a whole half-length block, and a block that is not all space shows it at once.
    block = _LONG_SPACE // 2
    return any(text[start : start + block].isspace() for start in range(0, len(text) - block + 1, block))


def _count_around_long_space(encoding: tiktoken.Encoding, text: str, splits_trailing_space: bool) -> int:
    total = done = 0
    for run in _SPACE_RUN.finditer(text):
        start, end = run.span()
        if end - start < _LONG_SPACE:
            continue
        if end == len(text):
            if not splits_trailing_space:
                continue
        elif text[end] in "\r\n":
            continue
        else:
            end -= 1
        total += _count(encoding, text[done:start])
        total += len(encoding._encode_single_piece(text[start:end]))  # noqa: SLF001  # the one call without the pattern
        done = end
    return total + _count(encoding, text[done:])
