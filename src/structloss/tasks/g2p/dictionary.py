"""The English pronunciation dictionary that the pocketsphinx wheel carries (CMUdict, BSD licence)."""

import re
from pathlib import Path

from structloss.text import numbered_lines
from structloss.training.task import Example

_PLAIN = re.compile(r"[a-z]{3,}")  # without alternatives, which are word(2), abbreviations and apostrophes


def path() -> Path:
    """Where it lies."""
    try:
        import pocketsphinx
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("The dictionary needs pocketsphinx: pip install 'structloss[speech]'") from missing
    return Path(pocketsphinx.get_model_path("en-us")) / "cmudict-en-us.dict"


def words() -> list[Example]:
    """Words of at least three plain letters with their first pronunciations, in alphabetic order."""
    file, examples = path(), []
    for number, line in numbered_lines(file):
        word, *phones = line.split()
        if _PLAIN.fullmatch(word):
            examples.append(Example(tuple(word), tuple(phones), word, f"{file}, line {number}"))
    return examples
