"""Read the body of a request, with limits that also hold after decompression."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.requests import Request

#: The most bytes of a body, before and after decompression. 100 model calls of a conversation that ends at 415 kB took
#: 21 MB in one export, with captured content.
MAX_BODY: Final = 192 << 20
#: The most bytes of all bodies that are read at the same time.
MAX_BODIES: Final = 3 * MAX_BODY


class BodyError(Exception):
    """A body that is not read.

    Attributes:
        status: The HTTP status of the response.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Bodies:
    """Reads bodies, and limits the memory that all of them take together."""

    def __init__(self) -> None:
        self._bytes = 0

    async def read(self, request: Request) -> bytes:
        """Return the body of a request as it was sent.

        Raises:
            BodyError: The body is too large, or too many large bodies are read already.
        """
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                self._bytes += len(chunk)
                if size > MAX_BODY:
                    raise BodyError(
                        413, f"the body has more than {MAX_BODY >> 20} MiB; set OTEL_BSP_MAX_EXPORT_BATCH_SIZE=32"
                    )
                if self._bytes > MAX_BODIES:
                    raise BodyError(503, "too many large requests; send them again")
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            self._bytes -= size


def decompressed(body: bytes, encoding: str) -> bytes:
    """Return the contents of a body.

    Args:
        body: The body as it was sent.
        encoding: The header ``Content-Encoding``: ``gzip``, ``identity`` or empty.

    Raises:
        BodyError: The encoding is not supported, the body is not gzip, or its contents are too large.
    """
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise BodyError(415, f"Content-Encoding {encoding[:40]!r} is not supported; use gzip or none")
    reader = zlib.decompressobj(wbits=31)
    try:
        contents = reader.decompress(body, MAX_BODY + 1)
    except zlib.error as error:
        raise BodyError(400, "the body is not gzip") from error
    if len(contents) > MAX_BODY:
        raise BodyError(413, f"the decompressed body has more than {MAX_BODY >> 20} MiB")
    if not reader.eof:
        raise BodyError(400, "the gzip body is not complete")
    return contents
