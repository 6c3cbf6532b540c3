"""Vocabularies: read from the package or from tiktoken's cache, checked by hash, never fetched."""

from __future__ import annotations

import base64
import hashlib
import lzma
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import tiktoken

from otel_assembly.errors import TokenizerError, UnknownNameError
from otel_assembly.forks import new_lock

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@dataclass(frozen=True, slots=True)
class BundledVocabulary:
    """A vocabulary that the package carries.

    Attributes:
        name: The encoding's name, also the stem of its file.
        sha256: The published hash of the uncompressed ``.tiktoken`` file.
        pat_str: The pattern that splits a text into pieces before merging, as tiktoken's constructor has it.
        end_of_text: The rank of ``<|endoftext|>``.
        splits_trailing_space: Whether whitespace that ends the text is a piece of its own behind the last newline.
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

#: What tiktoken fetches for the encodings that are not bundled: address and SHA-256, by encoding.
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

_shared: dict[str, tiktoken.Encoding] = {}
_lock = new_lock()


def shared_encoding(name: str) -> tiktoken.Encoding:
    """The process's one encoding of that name, read when it is first asked for (about a quarter of a second).

    Raises:
        UnknownNameError: No such encoding.
        TokenizerError: Its vocabulary is missing or not what it claims to be.
    """
    with _lock:
        if name not in _shared:
            _shared[name] = _from_cache(name) if name in CACHED else read_encoding(name)
        return _shared[name]


def read_encoding(name: str, file: Path | Traversable | None = None) -> tiktoken.Encoding:
    """Build a bundled encoding from its ``.tiktoken.xz`` file, by default the one in the package.

    Raises:
        UnknownNameError: The package bundles no such encoding.
        TokenizerError: The file is missing, damaged, or its content has another hash than the published one.
    """
    if name not in BUNDLED:
        raise UnknownNameError("encoding", name, (*BUNDLED, *CACHED))
    vocabulary = BUNDLED[name]
    if file is None:
        file = resources.files("otel_assembly.tokens") / "vocabularies" / f"{name}.tiktoken.xz"
    try:
        content = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise _damaged(file, f"cannot be read ({type(error).__name__})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != vocabulary.sha256:
        raise _damaged(file, f"has the SHA-256 {found}, published is {vocabulary.sha256}")
    ranks: dict[bytes, int] = {}
    for line in content.splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding(
        name,
        pat_str=vocabulary.pat_str,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": vocabulary.end_of_text},
    )


def _damaged(file: Path | Traversable, problem: str) -> TokenizerError:
    return TokenizerError(f"the vocabulary {file} {problem}; reinstall it: pip install --force-reinstall otel-assembly")


def _from_cache(name: str) -> tiktoken.Encoding:
    directory = os.environ.get("TIKTOKEN_CACHE_DIR", "")
    for address, sha256 in CACHED[name]:
        # tiktoken would fetch what is missing, and delete and fetch what has another hash: so both are checked here.
        file = Path(directory, hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest())
        mend = (
            f"download {address} and store it as {file.name} in the directory that TIKTOKEN_CACHE_DIR names"
            ", or pass a counter of your own"
        )
        if not directory or not file.is_file():
            where = f"not in {directory}" if directory else "TIKTOKEN_CACHE_DIR is not set"
            raise TokenizerError(f"the vocabulary of {name!r} is not bundled, and {where}; {mend}")
        if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            raise TokenizerError(f"the vocabulary {file} of {name!r} has not the published SHA-256 {sha256}; {mend}")
    return tiktoken.get_encoding(name)
