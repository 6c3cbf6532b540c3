"""What is sent, decided and exported for thousands of seeded conversations stays, byte for byte, what it was.

`digests.json` beside this file holds two digests for every fifty of them: of what was sent and decided, which no way of
telling it changes, and of all that was exported and answered. Where one differs, compare the texts of the two versions
of the package: ``PYTHONPATH=tests python tests/oracle/test_payloads.py FAMILY SEED`` prints one, and with ``--sent`` at
its end what was sent and decided. A change that is meant is written with ``--write`` in the place of those, and its
reason is in this list:

* ``observed`` 601, 1233, 1888, 2334, 2600, 2674, 2816: `assembly.pairs.broken` of an observed filter that removes many
  single messages. Its pairs were found anew in its output; now they are those of the whole conversation, as for all
  other steps. It matters only if the ids of calls repeat.
* ``gathered`` and ``gathered_long``: the item ids of turns without an id. If a retrieved passage moved in front of a
  turn, the turn was a new item, and was counted as dropped again; now it keeps its id while the list of turns grows.
* ``assembled`` 2193: another conversation replaces the list of messages. Which of its messages keep the id of a message
  with equal content has changed, because the lists are compared from each difference on.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from payload import digest, payloads
from seeded import FAMILIES, TRANSCRIPTS, transcripts

DIGESTS = Path(__file__).parent / "digests.json"
#: Seeds of each family: those that every run compares, and all.
SEEDS = {
    "assembled": (50, 3_000),
    "observed": (50, 3_000),
    "allocated": (100, 4_000),
    "gathered": (50, 500),
    "gathered_long": (0, 300),
}
GROUP = 50


def groups(slow):
    """Each family and its first seeds."""
    return [
        (family, first)
        for family, (soon, all_of_them) in SEEDS.items()
        for first in range(soon if slow else 0, all_of_them if slow else soon, GROUP)
    ]


def digest_of(family, first, count=GROUP):
    sent, whole = zip(*(payloads(FAMILIES[family], seed) for seed in range(first, first + count)), strict=True)
    return {"sent": digest(sent), "whole": digest(whole)}


def held():
    return json.loads(DIGESTS.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize(("family", "first"), groups(slow=False))
def test_the_payload_is_what_it_was(family, first):
    assert digest_of(family, first) == held()[f"{family} {first}"]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "first"), groups(slow=True))
def test_the_payload_of_thousands_more_is_what_it_was(family, first):
    assert digest_of(family, first) == held()[f"{family} {first}"]


@pytest.mark.parametrize("first", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (10, 20))])
def test_the_payload_of_a_recorded_conversation_is_what_it_was(first):
    if not TRANSCRIPTS.exists():
        pytest.skip("the recorded transcripts are not beside this checkout")
    count = 10 if first < 20 else len(transcripts()) - first
    assert digest_of("recorded", first, count) == held()[f"recorded {first}"]


def _write():
    found = {f"{family} {first}": digest_of(family, first) for slow in (False, True) for family, first in groups(slow)}
    recorded = {
        f"recorded {first}": digest_of("recorded", first, count) for first, count in ((0, 10), (10, 10), (20, 80))
    }
    DIGESTS.write_text(json.dumps(dict(sorted((found | recorded).items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if sys.argv[1:] == ["--write"]:
        _write()
    else:
        sent, whole = payloads(FAMILIES[sys.argv[1]], int(sys.argv[2]))
        print(sent if sys.argv[3:] == ["--sent"] else whole)
