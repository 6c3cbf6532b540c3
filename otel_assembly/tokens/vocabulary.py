"""Vocabularies of tokenizers, loaded from the package or tiktoken's cache. Nothing is downloaded.

Each file is checked by its SHA-256. Loading a vocabulary takes a third of a second of CPU time, once per process.
`prepare_encoding` loads it in a thread ahead of time. `shared_encoding` waits for that thread, or loads it itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import lzma
import os
import threading
from binascii import a2b_base64
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import tiktoken

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly.errors import TokenizerError, UnknownNameError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@dataclass(frozen=True, slots=True)
class BundledVocabulary:
    """A vocabulary that is bundled with the package.

    Attributes:
        name: The encoding's name, also the stem of its file.
        sha256: The published hash of the uncompressed ``.tiktoken`` file.
        pat_str: The regular expression that splits a text into pieces before byte pairs are merged, as for tiktoken.
        end_of_text: The token number of ``<|endoftext|>``.
        splits_trailing_space: True if whitespace after the text's last newline is a separate piece.
    """

    name: str
    sha256: str
    pat_str: str
    end_of_text: int
    splits_trailing_space: bool


_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

BUNDLED = {
    vocabulary.name: vocabulary
    for vocabulary in (
        BundledVocabulary(
            "o200k_base",
            "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            "|".join(
                (
                    _WORD_START + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTION,
                    _WORD_START + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTION,
                    r"\p{N}{1,3}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                    r"\s*[\r\n]+",
                    r"\s+(?!\S)",
                    r"\s+",
                )
            ),
            199999,
            splits_trailing_space=True,
        ),
        BundledVocabulary(
            "cl100k_base",
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
            r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
            100257,
            splits_trailing_space=False,
        ),
    )
}

#: Files of the encodings that are not bundled: URL and SHA-256. tiktoken would download them.
_PUBLISHED = "https://openaipublic.blob.core.windows.net/"
_R50K = (
    _PUBLISHED + "encodings/r50k_base.tiktoken",
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
)
_P50K = (
    _PUBLISHED + "encodings/p50k_base.tiktoken",
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
)
_GPT2 = (
    (
        _PUBLISHED + "gpt-2/encodings/main/vocab.bpe",
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
    (
        _PUBLISHED + "gpt-2/encodings/main/encoder.json",
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    ),
)
CACHED = {"r50k_base": (_R50K,), "p50k_base": (_P50K,), "p50k_edit": (_P50K,), "gpt2": _GPT2}

#: The number of bytes that are parsed in one step. Other threads can run between two steps.
_PIECE = 32_768


class _Reading:
    """An encoding that is being loaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The file is looked up here and not in the loading thread, because the lookup imports modules. If the process
        #: forks while another thread imports a module, the child can never import that module.
        self.file = _bundled(name) if name in BUNDLED else None
        self.done = threading.Event()
        self.error: BaseException | None = None
        #: For each waiting task, its event loop and the event that it awaits.
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []


class _Encodings:
    """The encodings of this process, each of which is loaded once.

    A forked child process keeps the loaded encodings, and loads those again that were being loaded during the fork.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._read: dict[str, tiktoken.Encoding] = {}
        self._begin()
        after_fork_in_child(self._begin)

    def _begin(self) -> None:
        self._reading: dict[str, _Reading] = {}

    def get(self, name: str) -> tiktoken.Encoding:
        while (encoding := self._read.get(name)) is None:
            reading, is_ours = self._reading_of(name)
            if is_ours:
                self._do(reading)
            reading.done.wait()
            if reading.error is not None and (is_ours or isinstance(reading.error, Exception)):
                raise reading.error
        return encoding

    def prepare(self, name: str) -> None:
        if name in self._read:
            return
        reading, is_ours = self._reading_of(name)
        if is_ours:
            thread = threading.Thread(target=self._do, args=(reading,), name="otel-assembly-vocabulary", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be started, or the interpreter is shutting down
                self._ended(reading, None)

    async def ready(self, name: str) -> None:
        self.prepare(name)
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            reading = self._reading.get(name)
            if reading is None:
                return
            reading.waiting.append((loop, done))
        await done.wait()

    def _reading_of(self, name: str) -> tuple[_Reading, bool]:
        """Return the loading of an encoding, and True if the caller must perform it because none was in progress."""
        with self._lock:
            reading = self._reading.get(name)
            if reading is not None:
                return reading, False
            reading = _Reading(name)
            if name in self._read:  # loaded in the meantime
                reading.done.set()
                return reading, False
            self._reading[name] = reading
            return reading, True

    def _do(self, reading: _Reading) -> None:
        name = reading.name
        error: BaseException | None = None
        try:
            self._read[name] = _from_cache(name) if name in CACHED else read_encoding(name, reading.file)
        except BaseException as raised:  # noqa: BLE001  # `get` raises it
            error = raised
        self._ended(reading, error)

    def _ended(self, reading: _Reading, error: BaseException | None) -> None:
        with self._lock:
            if self._reading.get(reading.name) is reading:
                del self._reading[reading.name]
        reading.error = error
        reading.done.set()
        for loop, done in reading.waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)


_encodings = _Encodings()


def shared_encoding(name: str) -> tiktoken.Encoding:
    """Return the encoding with a name, which all callers share. The first call loads it (about a quarter of a second).

    Raises:
        UnknownNameError: The encoding does not exist.
        TokenizerError: The vocabulary is missing or has the wrong hash.
    """
    return _encodings.get(name)


def prepare_encoding(name: str) -> None:
    """Start to load an encoding in a thread, if necessary. If loading fails, `shared_encoding` raises the error."""
    _encodings.prepare(name)


async def encoding_ready(name: str) -> None:
    """Wait until an encoding is loaded. If loading fails, `shared_encoding` raises the error."""
    await _encodings.ready(name)


def read_encoding(name: str, file: Path | Traversable | None = None) -> tiktoken.Encoding:
    """Build a bundled encoding from its ``.tiktoken.xz`` file, by default the one in the package.

    Raises:
        UnknownNameError: The encoding is not bundled.
        TokenizerError: The file is missing, damaged, or its content has another hash than the published one.
    """
    if name not in BUNDLED:
        raise UnknownNameError("encoding", name, (*BUNDLED, *CACHED))
    vocabulary = BUNDLED[name]
    if file is None:
        file = _bundled(name)
    try:
        content = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise _damaged(file, f"cannot be read ({type(error).__name__})") from error
    actual = hashlib.sha256(content).hexdigest()
    if actual != vocabulary.sha256:
        raise _damaged(file, f"has the SHA-256 {actual}, published is {vocabulary.sha256}")
    ranks: dict[bytes, int] = {}
    lines = io.BytesIO(content)
    while piece := lines.read(_PIECE) + lines.readline():
        words = piece.split()
        ranks.update(zip(map(a2b_base64, words[::2]), map(int, words[1::2]), strict=True))
    return tiktoken.Encoding(
        name,
        pat_str=vocabulary.pat_str,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": vocabulary.end_of_text},
    )


def _bundled(name: str) -> Traversable:
    return resources.files("otel_assembly.tokens") / "vocabularies" / f"{name}.tiktoken.xz"


def _damaged(file: Path | Traversable, problem: str) -> TokenizerError:
    return TokenizerError(f"the vocabulary {file} {problem}; reinstall it: pip install --force-reinstall otel-assembly")


def _from_cache(name: str) -> tiktoken.Encoding:
    directory = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    for address, sha256 in CACHED[name]:
        # Check existence and hash here: tiktoken downloads a missing file, and replaces a file with a wrong hash.
        file = Path(directory, hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest())
        fix = (
            f"download {address} and store it as {file.name} in the directory that TIKTOKEN_CACHE_DIR names"
            ", or pass a counter of your own"
        )
        if not directory or not file.is_file():
            where = f"not in {directory}" if directory else "TIKTOKEN_CACHE_DIR is not set"
            raise TokenizerError(f"the vocabulary of {name!r} is not bundled, and {where}; {fix}")
        if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            raise TokenizerError(
                f"the vocabulary {file} of {name!r} does not have the published SHA-256 {sha256}; {fix}"
            )
    return tiktoken.get_encoding(name)
