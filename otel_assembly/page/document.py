"""Write the page as one HTML file that contains its script, styles and data, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.whole_files import write_whole
from otel_assembly._version import __version__
from otel_assembly.errors import ConfigurationError
from otel_assembly.page.model import page_model

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from otel_assembly.telemetry.span_values import SpanLike

_SCRIPTS: Final = (
    "dom.js",
    "ledgers.js",
    "kinds.js",
    "rows.js",
    "chart.js",
    "turn.js",
    "items.js",
    "side.js",
    "find.js",
    "zoom.js",
    "live.js",
    "app.js",
)
_UNSAFE: Final = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def render_page(model: Mapping[str, Any]) -> str:
    """Return the HTML page of the data that `page_model` returned. The page needs no server and no network."""
    return _render(model, ())


def render_live_page(title: str) -> str:
    """Return the HTML page of `otel-assembly watch`, which loads its data as server-sent events from ``events``."""
    model = {"title": title, "live": True, "conversations": [], "problems": [], "texts": []}
    return _render(model, ("connect-src 'self'",))


def _render(model: Mapping[str, Any], sources: tuple[str, ...]) -> str:
    script = _embeddable(_script())
    style = _asset("page.css")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            *sources,
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {
        "policy": policy,
        "title": html.escape(str(model["title"]).encode("utf-8", "replace").decode()),
        "version": __version__,
        "style": style,
        "data": _json(model),
        "script": script,
    }
    # One pass, so that a placeholder inside a part is not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], _asset("page.html"))


def write_page(
    spans: Iterable[SpanLike], path: str | os.PathLike[str], *, title: str, trace_link: str | None = None
) -> dict[str, Any]:
    """Write an HTML page of these spans; an existing file is replaced only when the page is complete.

    Args:
        spans: Exported spans.
        path: The page's file.
        title: The page's heading.
        trace_link: The address of a Jaeger or another URL for links to traces, as in `page_model`; None: no links.

    Returns:
        The data of the page, as `page_model` returns it.

    Raises:
        ConfigurationError: The page cannot be written to `path`, or the link is not an http(s) URL.
    """
    model = page_model(spans, title=title, trace_link=trace_link)
    save_page(model, path)
    return model


def save_page(model: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the HTML page of the data that `page_model` returned.

    Raises:
        ConfigurationError: The page cannot be written to `path`.
    """
    page = render_page(model)
    target = Path(path)
    try:
        write_whole({target: page.encode()})
    except OSError as error:
        reason = (error.strerror or "failed").lower()
        raise ConfigurationError(f"{target}: the page cannot be written: {reason}; name another file") from error


def _json(model: Mapping[str, Any]) -> str:
    """Return the data as JSON that is safe inside a script element and can be encoded as UTF-8."""
    return _UNSAFE.sub(
        lambda found: f"\\u{ord(found[0]):04x}",
        json.dumps(model, ensure_ascii=False, separators=(",", ":"), allow_nan=False),
    )


@cache
def _script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();\n"


@cache
def _asset(name: str) -> str:
    return (resources.files("otel_assembly.page") / "assets" / name).read_text(encoding="utf-8")


def _embeddable(script: str) -> str:
    """Escape ``</script``, ``<!--`` and ``<script`` in a script, because they would end or nest the script element.

    The scripts contain them only in strings and regular expressions, where the escape sequence has the same meaning.
    """
    script = script.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"<(?=/script|!--|script)", r"\\x3c", script, flags=re.IGNORECASE)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
