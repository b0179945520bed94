"""Made-up sentences with names: what a seed decides, how labels are formed, how rare names are, what misleads."""

from collections import Counter

import pytest

from structloss.losses.schemes import chunks
from structloss.tasks.tagging.made_up import TYPES, Sentence, made_up, with_missed

SENTENCES = made_up(2000, seed=1)


def names(sentences: list[Sentence]) -> int:
    return sum(label.startswith("B-") for sentence in sentences for label in sentence.labels)


def test_a_seed_decides_everything() -> None:
    assert made_up(2000, seed=1) == SENTENCES != made_up(2000, seed=2)
    assert made_up(100, seed=1) == SENTENCES[:100]
    assert with_missed(SENTENCES, 0.5, seed=3) == with_missed(SENTENCES, 0.5, seed=3) != with_missed(SENTENCES, 0.5, 4)


def test_labels_are_iob2_of_the_types() -> None:
    for words, labels in [*SENTENCES, *with_missed(SENTENCES, 0.5, seed=0)]:
        assert len(words) == len(labels) > 0
        assert set(labels) <= {"O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in TYPES)}
        for before, label in zip(("O", *labels), labels, strict=False):
            assert not label.startswith("I-") or before[1:] == label[1:]


def test_names_are_rare_and_most_of_them_are_seen_once_or_twice() -> None:
    labels = [label for sentence in SENTENCES for label in sentence.labels]
    assert 0.01 < sum(label != "O" for label in labels) / len(labels) < 0.05
    assert {label for label in labels if label != "O"} == {f"{prefix}-{kind}" for prefix in "BI" for kind in TYPES}
    seen = Counter(" ".join(w[begin:end]) for w, y in SENTENCES for _, begin, end in chunks(y))
    assert sum(count <= 2 for count in seen.values()) > 0.7 * len(seen)


def test_some_words_with_a_capital_are_names_only_sometimes() -> None:
    kinds: dict[str, set[bool]] = {}
    for words, labels in SENTENCES:
        for word, label in zip(words, labels, strict=True):
            kinds.setdefault(word, set()).add(label == "O")
    assert {word for word in ("May", "Reading", "Mark", "Hope", "Will") if len(kinds[word]) == 2}


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_an_annotator_misses_that_share_of_the_names_and_nothing_else(share: float) -> None:
    missed = with_missed(SENTENCES, share, seed=0)
    assert names(missed) == pytest.approx((1 - share) * names(SENTENCES), rel=0.05)
    for (words, labels), (same, fewer) in zip(SENTENCES, missed, strict=True):
        assert words == same
        assert chunks(fewer) <= chunks(labels)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="named: got 2"):
        made_up(1, seed=0, named=2)
    with pytest.raises(ValueError, match="share: got -1"):
        with_missed(SENTENCES, -1, seed=0)
