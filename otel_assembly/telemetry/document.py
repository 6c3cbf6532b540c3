"""Generate files from the registry: the page of semantic conventions, and the module of instruments.

``python -m otel_assembly.telemetry.document [--check] FILE...`` writes each FILE, or, with ``--check``, reports whether
it is up to date. A FILE that ends in ``.py`` is the module of instruments; any other FILE is the page. The template of
the page is ``document.md`` in this folder.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Final

from otel_assembly.telemetry import conventions
from otel_assembly.telemetry import conventions_registry as registry
from otel_assembly.telemetry.conventions_environment import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.telemetry.conventions_registry import Attribute, SpanType, Use

_TEMPLATE: Final = Path(__file__).with_name("document.md")
_PLACEHOLDER: Final = re.compile(r"\{\{(\w+)\}\}")
_INSTRUMENTS: Final = '''\
"""The instruments of all metrics, generated from ``registry/metrics.yaml``.

A process that exports reads this module and does not have to parse YAML. To change the module, change the YAML
file and run
``python -m otel_assembly.telemetry.document otel_assembly/telemetry/instruments.py``.
"""
# ruff: noqa: ISC004

from __future__ import annotations

from typing import Final

#: Name, instrument, unit, description, and the advised bucket boundaries of a histogram.
# fmt: off
INSTRUMENTS: Final[tuple[tuple[str, str, str, str, tuple[float, ...]], ...]] = \\
{}
'''


def render() -> str:
    """Return the page of semantic conventions as Markdown."""
    uses = (use for span in registry.spans() for use in span.attributes)
    parts = {
        **{name: value for name, value in vars(conventions).items() if name.isupper() and isinstance(value, str)},
        "scope": conventions.SCOPE,
        "shared": _list(metric.name for metric in registry.metrics() if metric.name in registry.attributes()),
        "spans": "\n\n".join(_span(span) for span in registry.spans()),
        "stamp": _uses(registry.model_call_stamp()),
        "traced": _uses(registry.traced()),
        "array_limit": f"{conventions.MAX_ARRAY_BYTES // 1024} KiB",
        "alert_limit": str(conventions.MAX_ALERT_MESSAGE),
        "span_events": next(v.default for v in ENVIRONMENT if v.name == "OTEL_SPAN_EVENT_COUNT_LIMIT"),
        "events": "\n\n".join(
            f"### `{event.name}`\n\n{event.brief}\n\n{_uses(event.attributes)}" for event in registry.events()
        ),
        "statuses": _list((f'"{phrase}"' for phrase in conventions.STATUS_DESCRIPTIONS), code=False),
        "attributes": _details(),
        "meanings": _meanings(),
        "metrics": _metrics(),
        "buckets": _buckets(),
        "labels": _labels(),
        "environment": _environment(),
        "content": _list(dict.fromkeys(use.name for use in uses if use.level is registry.Level.OPT_IN)),
    }
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _TEMPLATE.read_text(encoding="utf-8"))


def render_instruments() -> str:
    """Return the Python source of the module `instruments`, with the definition of each metric."""
    rows = tuple(
        (metric.name, metric.instrument, metric.unit, metric.brief, metric.buckets) for metric in registry.metrics()
    )
    return _INSTRUMENTS.format(pformat(rows, width=118, compact=True))


def _span(span: SpanType) -> str:
    events = _list(span.events) if span.events else "none"
    variable = span.name_pattern.removeprefix(span.verb).strip()
    name = f" `{variable}` is `{span.named_by}`." if span.named_by else ""
    intro = f"{span.brief}{name} Parent: {span.parent}. Events: {events}."
    return f"### `{span.name_pattern}`\n\n{intro}\n\n{_uses(span.attributes)}"


def _uses(uses: Iterable[Use]) -> str:
    known = registry.attributes()
    return _table(
        ("attribute", "type", "when", "meaning"),
        ((f"`{use.name}`", known[use.name].type, _when(use), known[use.name].brief) for use in uses),
    )


def _when(use: Use) -> str:
    if use.level is registry.Level.OPT_IN:
        return "opt-in"
    if use.given:
        return f"if `{use.given}` is " + ("true" if registry.attributes()[use.given].type == "boolean" else "set")
    if use.level is registry.Level.REQUIRED:
        return f"always, unless `{use.unless}`" if use.unless else "always"
    return use.when


def _details() -> str:
    return _table(
        ("attribute", "values", "note"),
        (
            (f"`{attribute.name}`", _values(attribute), _note(attribute))
            for attribute in registry.attributes().values()
            if attribute.values or attribute.note or attribute.parallel_to
        ),
    )


def _values(attribute: Attribute) -> str:
    shared = registry.attributes()[attribute.values_of].members if attribute.values_of else {}
    link = [f"[those of `{attribute.values_of}`](#meanings-of-the-values)"] if shared else []
    return ", ".join([*link, *(f"`{value}`" for value in attribute.values if value not in shared)])


def _note(attribute: Attribute) -> str:
    parallel = f"The array is parallel to `{attribute.parallel_to}`." if attribute.parallel_to else ""
    return " ".join(filter(None, (attribute.note, parallel)))


def _meanings() -> str:
    scalar = (attribute for attribute in registry.attributes().values() if not attribute.type.endswith("[]"))
    return _table(
        ("attribute", "value", "meaning"),
        (
            (f"`{attribute.name}`", f"`{value}`", meaning)
            for attribute in scalar
            for value, meaning in attribute.members.items()
            if meaning
        ),
    )


def _metrics() -> str:
    return _table(
        ("metric", "instrument", "unit", "attributes", "in Prometheus", "meaning"),
        (
            (
                f"`{metric.name}`",
                metric.instrument,
                f"`{metric.unit}`",
                ", ".join(f"`{use.name}`" for use in metric.attributes),
                f"`{metric.prometheus_name}`",
                metric.brief,
            )
            for metric in registry.metrics()
        ),
    )


def _buckets() -> str:
    sharing: dict[tuple[float, ...], list[str]] = {}
    for metric in registry.metrics():
        if metric.buckets:
            sharing.setdefault(metric.buckets, []).append(metric.name)
    return _table(
        ("metrics", "boundaries"),
        ((_list(names), ", ".join(_number(edge) for edge in buckets)) for buckets, names in sharing.items()),
    )


def _labels() -> str:
    used = dict.fromkeys(use.name for metric in registry.metrics() for use in metric.attributes)
    open_bound = (
        f"the first {conventions.MAX_METRIC_NAMES} different values in a process; any other is `{conventions.OTHER}`"
    )
    return _table(
        ("attribute", "bound"),
        (
            (f"`{name}`", f"{len(values)} values" if (values := registry.attributes()[name].values) else open_bound)
            for name in used
        ),
    )


def _environment() -> str:
    return _table(
        ("variable", "values", "default", "meaning"),
        (
            (
                f"`{variable.name}`" + (" (OpenTelemetry's)" if variable.standard else ""),
                ", ".join(f"`{value}`" for value in variable.values) or "as OpenTelemetry defines it",
                f"`{variable.default}`",
                variable.brief,
            )
            for variable in ENVIRONMENT
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _list(items: Iterable[str], *, code: bool = True) -> str:
    *most, last = (f"`{item}`" if code else item for item in items)
    return f"{', '.join(most)} and {last}" if most else last


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or check them with ``--check``; return the exit status.

    Args:
        arguments: The command-line arguments; None for those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m otel_assembly.telemetry.document",
        description="Generate from the registry the page of semantic conventions or, for a .py, the instruments.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a FILE is not up to date")
    options = parser.parse_args(arguments)
    stale = 0
    for file in options.files:
        text = render_instruments() if file.suffix == ".py" else render()
        if not options.check:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{file} does not match the registry. To regenerate it, run: {parser.prog} {file}\n")
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
