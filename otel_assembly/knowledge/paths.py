"""The rules of paths and encodings that all knowledge stores share.

A path is absolute within its store and independent of the storage: ``/memory/working.md``. The rules are the strictest
of all stores, so that each file can be copied from any store to any other.
"""

from __future__ import annotations

import codecs
import re

from otel_assembly.errors import ConfigurationError, KnowledgePathError, KnowledgeStoreError

#: The longest path, in bytes of UTF-8.
MAX_PATH_BYTES = 1024

#: The longest segment of a path, in bytes of UTF-8: the limit of common file systems.
MAX_SEGMENT_BYTES = 255

#: The most segments of a path; a store on disk opens one descriptor for each segment.
MAX_SEGMENTS = 32

#: The prefix of the names that stores reserve for their own files.
RESERVED_PREFIX = ".otel-assembly."

_DRIVE = re.compile(r"[A-Za-z]:")
_MAX_CONTINUATION_BYTES = 3


def split_file_path(path: str) -> tuple[str, ...]:
    """Return the segments of a path that names a file.

    Raises:
        KnowledgePathError: The path is not absolute, would leave the store, is too long, or names a directory.
    """
    if path.endswith("/"):
        raise KnowledgePathError(
            f"path {path!r} names a directory; give the path of a file, such as '/memory/working.md'"
        )
    return _split(path)


def split_path(path: str) -> tuple[str, ...]:
    """Return the segments of the path of a file or a directory; an empty tuple for the root, ``/``.

    The path may end with one slash.

    Raises:
        KnowledgePathError: The path is not absolute, would leave the store, or is too long.
    """
    return () if path == "/" else _split(path.removesuffix("/") if len(path) > 1 else path)


def is_segment(name: str) -> bool:
    """Return True if `name` is a valid segment of a path."""
    return _segment_problem(name) is None


def encode(path: str, content: str) -> bytes:
    """Return the content of a file as UTF-8; the path is for the error message.

    Raises:
        KnowledgeStoreError: The content has a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise KnowledgeStoreError(
            f"cannot write {path!r}: its content is no Unicode text, {error.reason} at character {error.start}; "
            "remove that character"
        ) from error


def decode(data: bytes) -> str:
    """Decode stored bytes as UTF-8, without an incomplete last character.

    A crash during an append can leave an incomplete character.

    Raises:
        UnicodeDecodeError: The bytes are not UTF-8, so another program wrote them.
    """
    return codecs.utf_8_decode(data, "strict", False)[0]


def torn_bytes(tail: bytes) -> int:
    """Return the number of bytes of an incomplete UTF-8 character at the end of `tail`; 0 if there is none.

    `tail` is the end of a file; its last three bytes are enough.
    """
    for back, byte in enumerate(reversed(tail[-_MAX_CONTINUATION_BYTES:]), 1):
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < needed else 0
    return 0


def byte_range(start: int, end: int | None) -> tuple[int, int | None]:
    """Return the first and the last offset (exclusive) to read for the text of ``[start, end)``.

    The range has up to three more bytes than requested, so that `range_text` can complete the last character.

    Raises:
        ConfigurationError: An offset is negative.
    """
    if start < 0 or (end is not None and end < 0):
        raise ConfigurationError(f"read_range takes offsets from 0, not start={start}, end={end}")
    return start, None if end is None else max(start, end) + _MAX_CONTINUATION_BYTES


def range_text(data: bytes, start: int, end: int | None) -> str:
    """Return the characters whose first byte is in ``[start, end)``; `data` are the bytes of `byte_range`."""
    first = 0
    while first < len(data) and _is_continuation(data[first]):
        first += 1
    last = len(data) if end is None else min(len(data), max(0, end - start))
    while last < len(data) and _is_continuation(data[last]):
        last += 1
    return decode(data[first:last])


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _split(path: str) -> tuple[str, ...]:
    if not path.startswith("/"):
        raise KnowledgePathError(f"path {path!r} is not absolute within the store; begin it with '/'")
    if len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        raise KnowledgePathError(f"path {path[:80]!r}… is longer than {MAX_PATH_BYTES} bytes; shorten it")
    names = tuple(path[1:].split("/"))
    for name in names:
        if problem := _segment_problem(name):
            raise KnowledgePathError(f"path {path!r} {problem}")
    if len(names) > MAX_SEGMENTS:
        raise KnowledgePathError(f"path {path!r} has {len(names)} segments; at most {MAX_SEGMENTS} are allowed")
    return names


def _segment_problem(name: str) -> str | None:
    problem = None
    if not name:
        problem = "has an empty segment; write one '/' between segments"
    elif name in {".", ".."}:
        problem = f"has the segment {name!r}; write the path without it"
    elif "\0" in name:
        problem = "has a NUL character; leave it out"
    elif "\\" in name:
        problem = "has a backslash; separate segments with '/'"
    elif _DRIVE.match(name):
        problem = f"has a drive letter in {name!r}; paths are absolute within the store"
    elif name.startswith(RESERVED_PREFIX):
        problem = f"has the segment {name!r}; names that begin with {RESERVED_PREFIX!r} are the store's own"
    elif any("\ud800" <= character <= "\udfff" for character in name):
        problem = "is no Unicode text; leave out lone surrogates"
    elif len(name.encode()) > MAX_SEGMENT_BYTES:
        problem = f"has a segment of more than {MAX_SEGMENT_BYTES} bytes; shorten it"
    return problem
