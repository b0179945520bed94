"""Made-up sentences with names of persons, places and organisations, for a demo that needs no file."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

TYPES = ("LOC", "ORG", "PER")

_TEMPLATES = """\
who past the thing in where .|The person , who , said it was how .|who said that who past a thing .
They talked about any until day .|where was how in month .|The train to where was late on day .
From where to where it takes number hours .|firm said it sold number boats in where .|firm phones are how , who said .
where beat firm on day .|She past any and the how thing .|The folk person of firm past where .|Will who be late again ?
Nobody liked firm .|who past where on day .|A thing by who cost number pounds at firm .|May was how , said who .
Bill after bill came from firm in month .|Reading a thing , who past it .|Mark my words , who said .
Hope is all that who had .|Grace and hope , said who , are how .|Orange is how , like any .|number boats past where .
The how thing was how .|It was how in month , and who said so .|who will mark the thing on day .\
"""
_WORDS = {
    "person": "driver teacher farmer neighbour minister keeper singer nurse",
    "thing": "bill mark rose reading bath bridge letter train garden window cork boat song",
    "past": "saw found wanted sold left liked painted forgot",
    "said": "said thought hoped wrote denied",
    "how": "cold quiet late nice mobile frank old empty",
    "day": "Monday Tuesday Friday Sunday",
    "month": "March April May June winter",
    "folk": "German Danish Welsh Polish Dutch",
    "number": "two three 12 1998 40 seven",
    "spot": "town harbour north valley station river",
    "office": "bank press club council school",
}
# Names that are words too. Others are made of syllables, which all types and brands share, and of an end.
_GIVEN = "Rose Mark Will May Grace Hope Frank Bill June Jack Penny Art Ada Nils Clara Tomas Edith Oskar Leda Iris"
_TOWNS = "Bath Reading Nice Mobile Hope Cork Split Orange"
_SYLLABLES = "ba bre do fen gar hol ka lin mar nor pel ra sel tor ul ven wes zan"
_ENDS = {
    "PER": ("", "s", "sen", "er"),
    "LOC": ("", "ton", "ford", "by"),
    "ORG": ("", "co", "x"),
    "brand": ("", "co", "x"),
}
_COINED = 300  # words of each kind

Draw = Callable[[], str]


class Sentence(NamedTuple):
    """Words, and a label for each: IOB2, of the `TYPES`."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


def made_up(number: int, seed: int, named: float = 0.1) -> list[Sentence]:
    """So many sentences from a few templates, in which a name stands wherever a plain phrase could.

    Few names are frequent, most are rare. What misleads are words that are names here and none there ("Rose",
    "Reading", "May"), capitals at the beginning, weekdays and months, brands, which look like names and are
    none, towns that play football, and places that take any type.

    Args:
        number: of sentences.
        seed: of the names and of the sentences.
        named: how likely it is a name where there can be one.

    Example:
        >>> from structloss.tasks.tagging.made_up import made_up
        >>> sentence = made_up(10, seed=0)[7]
        >>> " ".join(sentence.words)
        'A mark by Rose Linbasen cost seven pounds at Brenorx .'
        >>> sentence.labels[:6]
        ('O', 'O', 'O', 'B-PER', 'I-PER', 'O')
    """
    if not 0 <= named <= 1:
        raise ValueError(f"named: got {named!r}, but wanted a probability")
    rng = random.Random(seed)
    templates = [template.split() for line in _TEMPLATES.split("\n") for template in line.split("|")]
    phrases, names = _phrases(rng), _names(rng)
    slots = {"who": ("PER",), "where": ("LOC",), "firm": ("ORG",), "any": TYPES}

    def filled(token: str) -> Iterator[tuple[str, str]]:
        if token in slots and rng.random() < named:
            kind = rng.choice(slots[token])
            for i, word in enumerate(names[kind]().split()):
                yield word, f"{'I' if i else 'B'}-{kind}"
        else:
            for word in phrases[token]().split() if token in phrases else [token]:
                yield word, "O"

    def sentence() -> Sentence:
        words, labels = zip(*(pair for token in rng.choice(templates) for pair in filled(token)), strict=True)
        return Sentence((words[0][0].upper() + words[0][1:], *words[1:]), labels)

    return [sentence() for _ in range(number)]


def with_missed(sentences: Sequence[Sentence], share: float, seed: int) -> list[Sentence]:
    """The same sentences as a hasty annotator labels them: each name is missed, and O, with probability `share`.

    Example:
        >>> from structloss.tasks.tagging.made_up import Sentence, with_missed
        >>> with_missed([Sentence(("Ada", "Benor", "left"), ("B-PER", "I-PER", "O"))], share=1.0, seed=0)
        [Sentence(words=('Ada', 'Benor', 'left'), labels=('O', 'O', 'O'))]
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share: got {share!r}, but wanted a probability")
    rng = random.Random(seed)

    def seen(labels: Sequence[str]) -> Iterator[str]:
        missed = False
        for label in labels:
            if label.startswith("B-"):
                missed = rng.random() < share
            yield "O" if missed else label

    return [Sentence(words, tuple(seen(labels))) for words, labels in sentences]


def _phrases(rng: random.Random) -> dict[str, Draw]:
    """What fills a template's slots where it is no name."""
    words = {kind: _any_of(rng, text.split()) for kind, text in _WORDS.items()}
    brand = _zipf(rng, _coined(rng, "brand"))
    more: dict[str, list[Draw]] = {
        "who": [
            lambda: f"the {words['person']()}",
            lambda: f"a {words['folk']()} {words['person']()}",
            lambda: "somebody",
        ],
        "where": [lambda: f"the {words['spot']()}", lambda: f"the {words['how']()} {words['spot']()}"],
        "firm": [lambda: f"the {words['office']()}", brand],
        "any": [lambda: f"the {words['thing']()}", words["month"], brand],
    }
    return {**words, **{slot: _one_of(rng, draws) for slot, draws in more.items()}}


def _names(rng: random.Random) -> dict[str, Draw]:
    """What fills them where it is a name, by its type."""
    made = {kind: _zipf(rng, _coined(rng, kind)) for kind in TYPES}
    given, town = _zipf(rng, _GIVEN.split()), _zipf(rng, _TOWNS.split())
    place = _one_of(rng, [town, made["LOC"], made["LOC"], lambda: f"New {made['LOC']()}"])
    club = _any_of(rng, ["Bank", "United", "Press"])
    person = _one_of(rng, [given, made["PER"], lambda: f"{given()} {made['PER']()}"])
    firm = _one_of(
        rng, [made["ORG"], made["ORG"], place, lambda: f"{place()} {club()}", lambda: f"{made['PER']()} and Sons"]
    )
    return {"PER": person, "LOC": place, "ORG": firm}


def _coined(rng: random.Random, kind: str) -> list[str]:
    return [
        "".join(rng.choices(_SYLLABLES.split(), k=2)).capitalize() + rng.choice(_ENDS[kind]) for _ in range(_COINED)
    ]


def _any_of(rng: random.Random, words: Sequence[str]) -> Draw:
    return lambda: rng.choice(words)


def _one_of(rng: random.Random, draws: Sequence[Draw]) -> Draw:
    return lambda: rng.choice(draws)()


def _zipf(rng: random.Random, words: Sequence[str]) -> Draw:
    """The first most often, the r-th in proportion to 1 / r."""
    weights = list(accumulate(1 / (r + 1) for r in range(len(words))))
    return lambda: rng.choices(words, cum_weights=weights)[0]
