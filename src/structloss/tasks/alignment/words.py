"""From the words of a transcript to phones, through a dictionary: one's own, or the one that pocketsphinx carries."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from structloss.tasks.alignment.phones import ARPABET, SILENCE
from structloss.tasks.g2p import dictionary as english
from structloss.text import DataError, columns, numbered_lines

Pronunciations = Mapping[str, tuple[str, ...]]

_PAUSE = re.compile('[.,;:!?()"\u2013\u2014\u2026\u00ab\u00bb\u00a1\u00bf\u3001\u3002]|--')
_TOKEN = re.compile(f"a+(?:'a+)*'?|{_PAUSE.pattern}")  # where every letter is an a
_APOSTROPHE = "\u2019"
_ANOTHER = re.compile(r"(.+)\([0-9]{1,3}\)")  # CMU's form of another pronunciation of a word
_PROBABILITY = re.compile(r"[0-9]{1,3}\.[0-9]{1,30}")
_STRESS = re.compile(r"([A-Z]{1,3})[0-2]")
_SHOWN = 20  # phones in an error


def read_dictionary(path: Path) -> dict[str, tuple[str, ...]]:
    """Every word with its first pronunciation: lines of a word, a tab or spaces, and its phones.

    CMU's form is read too: `WORD(2)` is another pronunciation of WORD, and what follows ;;; at the start of a line, or
    a # after the phones, is a comment. Probabilities between a word and its phones, as the Montreal aligner has them,
    are passed over.
    """
    if not path.is_file():
        raise DataError(f"{path}: is not there, but wanted a dictionary")
    found: dict[str, tuple[str, ...]] = {}
    for number, line in numbered_lines(path):
        cut = columns(line)
        if not cut or cut[0].startswith(";;;"):
            continue
        word, *phones = cut[: cut.index("#", 1)] if "#" in cut[1:] else cut
        while phones and _PROBABILITY.fullmatch(phones[0]):
            del phones[0]
        if not phones:
            raise DataError(f"{path}, line {number}: got {line.strip()[:80]!r}, but wanted a word and its phones")
        another = _ANOTHER.fullmatch(word)
        found.setdefault(_spelled(another[1] if another else word), tuple(phones))
    if not found:
        raise DataError(f"{path}: got no word at all")
    return found


@lru_cache(maxsize=2)
def _kept(path: Path, changed: int) -> dict[str, tuple[str, ...]]:
    return read_dictionary(path)


def pronunciations(path: Path | None) -> Pronunciations:
    """Those of a dictionary, read once; of English words, with phones in lower case, where none is given."""
    if path is None:
        return _english()
    return _kept(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=1)
def _english() -> dict[str, tuple[str, ...]]:
    return {word: tuple(phone.lower() for phone in row) for word, row in read_dictionary(english.path()).items()}


def phones_of(text: str, where: str, known: Pronunciations | None = None) -> tuple[str, ...]:
    """The phones of a text, silence at both ends and where punctuation lets a speaker pause.

    Words that the dictionary lacks, and numbers in digits, are an error that names them all. A word with an apostrophe
    in it is looked up as it is, and else in two.

    Example:
        >>> phones_of("Hello, you.", "text")
        ('sil', 'hh', 'ah', 'l', 'ow', 'sil', 'y', 'uw', 'sil')
        >>> phones_of("L'ami", "text", {"l'": ("l",), "ami": ("a", "m", "i")})
        ('sil', 'l', 'a', 'm', 'i', 'sil')
    """
    known, unknown = _english() if known is None else known, []
    phones: list[str] = [SILENCE]
    for token in _tokens(text.replace(_APOSTROPHE, "'"), known):
        if _PAUSE.fullmatch(token):
            if phones[-1] != SILENCE:
                phones.append(SILENCE)
        elif _spelled(token) in known:
            phones.extend(known[_spelled(token)])
        else:
            unknown.append(token)
    if unknown:
        raise DataError(f"{where}: the dictionary lacks {', '.join(map(repr, dict.fromkeys(unknown)))}")
    if len(phones) == 1:
        raise DataError(f"{where}: got no word")
    return tuple(phones) if phones[-1] == SILENCE else (*phones, SILENCE)


def _spelled(word: str) -> str:
    """As dictionaries are searched: small letters, composed, with one kind of apostrophe."""
    return unicodedata.normalize("NFC", word.replace(_APOSTROPHE, "'")).lower()


def _tokens(text: str, known: Pronunciations) -> Iterator[str]:
    """Words and what lets a speaker pause. Digits, accents of their own and invisible joiners belong to words."""
    for piece in text.split():
        if _spelled(piece) in known and any(map(_is_spoken, piece)):  # "rendez-vous", where the dictionary has it
            yield piece
            continue
        for match in _TOKEN.finditer("".join("a" if _is_spoken(letter) else letter for letter in piece)):
            token = piece[slice(*match.span())]
            first, mark, rest = token.partition("'")
            if mark and _spelled(token) not in known and _spelled(first + mark) in known and _spelled(rest) in known:
                yield from (first + mark, rest)
            else:
                yield token


def _is_spoken(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category[0] in "LMN" or category == "Cf"


def phones_in(path: Path) -> tuple[str, ...]:
    """The phones of a text that has nothing else."""
    return tuple(phone for _, line in _written(path) for phone in columns(line))


def read(path: Path, phones: Collection[str] = (), dictionary: Path | None = None) -> tuple[str, ...]:
    """The phones of a transcript, a text file: of phones if all of it is phones, else of words.

    Args:
        path: the text.
        phones: those that a model knows: a text of them is one of phones, whatever they are called. What words are
            pronounced with is brought into their form, where they lack stress or capital letters.
        dictionary: what says how words are pronounced; pocketsphinx's, of English words, by default.
    """
    lines = _written(path)
    tokens = [token for _, line in lines for token in columns(line)]
    if phones and {*tokens} <= {*phones}:
        return tuple(tokens)
    if {token.lower() for token in tokens} <= {*(phones or ARPABET), SILENCE}:
        return tuple(token.lower() for token in tokens)
    known, found = pronunciations(dictionary), list[str]()
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            own = phones_of(line, where, known)
        except DataError as error:
            raise DataError(f"{error}{_way_out(phones, dictionary)}") from None
        own = tuple(
            _in_the_form_of(phones, phone) for phone in own if not phones or phone != SILENCE or phone in phones
        )
        unknown = [phone for phone in own if phones and phone not in phones]
        if unknown:
            raise DataError(
                f"{where}: its words are pronounced with {unknown[0]!r}, which the model's training data lack"
                f"{_way_out(phones, dictionary)}"
            )
        found.extend(own[1:] if found and found[-1] == own[0] == SILENCE else own)
    return tuple(found)


def _written(path: Path) -> list[tuple[int, str]]:
    """The numbers of the lines that have something in them, and the lines."""
    lines = [(number, line) for number, line in numbered_lines(path) if columns(line)]
    if not lines:
        raise DataError(f"{path}, line 1: got an empty transcript")
    return lines


def _in_the_form_of(phones: Collection[str], phone: str) -> str:
    """A phone as the model calls it: as it is, without CMU's stress, or in small letters."""
    plain = _STRESS.sub(r"\1", phone)
    return next((form for form in (phone, plain, phone.lower(), plain.lower()) if form in phones), phone)


def _way_out(phones: Collection[str], dictionary: Path | None) -> str:
    """What to do about a text that is neither of the model's phones nor of the dictionary's words."""
    more = "" if dictionary else "; --dictionary FILE says how the words of any language are pronounced"
    if not phones:
        return f"{more}; --phones, that texts are of phones"
    listed = sorted(phones)
    shown = " ".join(listed[:_SHOWN]) + (" ..." if len(listed) > _SHOWN else "")
    return f"{more}; a text of phones has none but the model's: {shown}"
