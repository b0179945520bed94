"""Damaged files of every kind are read or refused: a few; `python tests/fuzz.py --number 100000` reads many."""

import sys

import pytest

from fuzz import BAD, fuzz
from fuzz_files import available

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")


def test_damaged_files_are_read_or_refused_with_a_sentence() -> None:
    names = available()
    outcomes = list(fuzz(seed=0, number=30 * len(names), names=names))
    bad = [f"{outcome.kind}: {outcome.case}: {outcome.reason}" for outcome in outcomes if outcome.kind in BAD]
    assert not bad, "\n".join(bad)
    assert {outcome.case[0] for outcome in outcomes if outcome.kind == "refused"} == set(names)
    assert sum(outcome.kind == "read" for outcome in outcomes) > len(outcomes) / 10
