"""Check that text and names are plain technical English, against ceilings that only fall.

    python scripts/check_language.py              # as `make lint` does
    python scripts/check_language.py --list docs  # each sentence with a pattern: docs, code or names

A pattern is a phrase that readers who do not know the project stumbled over, such as "what it holds" or "told of".
Ordinary uses match too, so a good text is at a few percent, not at 0. `CEILINGS` has the share that each kind of text
may reach. If a change lowers a share by more than `SLACK`, lower its ceiling as well.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
#: The share of sentences, or of names, that may match a pattern, in percent.
CEILINGS = {"docs": 2.0, "code": 2.0, "names": 1.5}
#: A share this far below its ceiling, in points, means that the ceiling has to be lowered.
SLACK = 1.5

PHRASES = {
    "telling": r"told|tells?|telling",
    "saying": r"says?|said",
    "standing": r"stands?|stood|standing",
    "indefinite persons": r"whoever|whatever|whichever|somebody|nobody|anybody|someone|anyone",
    "headless clause": (
        r"what (?:is|was|are|were|came|comes|went|left|leaves|it|they|has|fits?|reduces?|holds?|stands?|fills?|needs?|"
        r"no|some|each|an?)"
    ),
    "unnamed actor": r"who (?:asks|has|is|wants|reads|installs?)",
    "pronoun as owner": r"of (?:ours|yours|theirs|its own)",
    "being seen": r"(?:is|are|be|was|were|not) seen",
    "location for position": r"beside|beneath|behind|anew|at once|all the same|by itself|by themselves",
    "phrasal verb": (
        r"goes? by|comes? to|came to|gives? way|takes? on|lets? out|let in|takes? in|puts? in|took in|puts? back|"
        r"(?:is|are|was|were) out"
    ),
    "repair": r"mend(?:s|ed|ing)?",
    "rate": r"(?:one|two|three|\d+) an? (?:item|turn|call|message|step|framework|span|agent|assembly|conversation)",
}
#: "where" for a condition and "for" for a reason can be told from ordinary uses only by their place in the sentence.
PLACED = (
    r"(?:^|[.;,:] )where (?:it|there|that|nobody|no|an?|the|one|some|several|they|none|nothing|what)\b",
    r", for (?:it|they|what|the|no|there|we|two|most|each|nobody|is|a)\b",
)
BRITISH = (
    r"\b\w*(?:behaviour|colour|favour|honour|neighbour|summaris|serialis|initialis|recognis|organis|normalis|"
    r"analys(?:ed|ing)\b)\w*"
)
PATTERN = re.compile("|".join((rf"\b(?:{'|'.join(PHRASES.values())})\b", *PLACED, BRITISH)), re.IGNORECASE)
#: Pronouns, participles and adverbs, which do not name a thing.
ODD_WORDS = frozenset(
    (  # noqa: SIM905  # a list of 59 lines hides the words
        "told tell tells said says came comes held gone given gave whose asker asks asked knows took taken takes "
        "leaves stays behind around beside beneath apart onwards another other theirs anew spared waits waiting heed "
        "meets met goes turned meant minds lasts reaches stood standing let stands"
    ).split()
)


@dataclass
class Found:
    """The sentences or names of one kind.

    Attributes:
        total: Their number.
        matches: Those that match a pattern, each with its place.
    """

    total: int = 0
    matches: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share that matches, in percent."""
        return 100 * len(self.matches) / max(self.total, 1)

    def add(self, place: str, text: str, *, matches: bool) -> None:
        """Count one sentence or name."""
        self.total += 1
        if matches:
            self.matches.append(f"{place}: {text}")


def main() -> int:
    """Compare each share with its ceiling; 1 if one is above it or far below it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=CEILINGS, help="print what matches a pattern")
    listed = parser.parse_args().list
    found = measured(ROOT)
    if listed:
        print("\n".join(found[listed].matches))
    failed = [message for kind, ceiling in CEILINGS.items() if (message := verdict(kind, found[kind], ceiling))]
    print("\n".join(failed), file=sys.stderr, end="\n" if failed else "")
    return bool(failed)


def verdict(kind: str, found: Found, ceiling: float) -> str | None:
    """Return what is wrong with a share; None if nothing is."""
    counts = f"{kind}: {found.share:.1f} % ({len(found.matches)} of {found.total}) match a pattern"
    if found.share > ceiling:
        return f"{counts}, more than {ceiling} %; see them with: python scripts/check_language.py --list {kind}"
    if found.share < ceiling - SLACK:
        return f"{counts}; lower its ceiling of {ceiling} % in scripts/check_language.py"
    return None


def measured(root: Path) -> dict[str, Found]:
    """Return the sentences of the docs, those of the code, and the code's names."""
    docs, code, names = Found(), Found(), Found()
    for path in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))):
        for sentence in sentences(path.read_text(encoding="utf-8")):
            docs.add(str(path.relative_to(root)), sentence, matches=bool(PATTERN.search(sentence)))
    first: dict[str, str] = {}
    for path in sorted((root / "otel_assembly").rglob("*.py")):
        place = str(path.relative_to(root))
        source = path.read_text(encoding="utf-8")
        for sentence in prose(source):
            code.add(place, sentence, matches=bool(PATTERN.search(sentence)))
        for name in names_in(source):
            first.setdefault(name, place)
    for name, place in first.items():
        names.add(place, name, matches=bool(words_of(name) & ODD_WORDS))
    return {"docs": docs, "code": code, "names": names}


def sentences(text: str) -> list[str]:
    """Split a text, without its code blocks, into sentences of more than three words."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"(?<=[.!?:])\s+", re.sub(r"\s+", " ", text))
    return [part for part in parts if len(part.split()) > 3]


def prose(source: str) -> Iterator[str]:
    """Yield the sentences of a module's docstrings, and its comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield from sentences(text) or [text]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:noqa|type:|pragma|!)", token.string):
            yield token.string


def names_in(source: str) -> Iterator[str]:
    """Yield the names of a module's functions, parameters, classes and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            yield from (argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words_of(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case."""
    return set(re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_"))


if __name__ == "__main__":
    sys.exit(main())
