"""Letters to sounds: an encoder over letters, and a chain of one state a letter that writes no, one or more phones."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structloss.losses import EditDistance
from structloss.structures import Chain, ChainLayer
from structloss.tasks.g2p import pronunciations
from structloss.tasks.g2p.inventory import Counts, Phones, inventory
from structloss.tasks.g2p.network import HEADS, Network
from structloss.tasks.g2p.spelling import LONGEST, SPELLINGS, choose, spelled
from structloss.training.task import DataError, Defaults, Example, FileTask, TaskModel, check_settings

MODELS = ("bilstm", "transformer")
_UNKNOWN, _EDGE, _FIRST_LETTER = 0, 1, 2
LONGEST_WORD = 256  # letters; the transformer numbers their places
PARTS = 4  # of a letter, at most
_NEVER = -5.0  # a letter's score for a string that it was not seen to write
_WORDS = 8000  # that the learning rate is for; half of them and more are many
_BATCH, _STEPS = 32, 1500  # words a step, and the steps that a model wants at least
_EPOCHS = (30, 200)
_RANGES = {
    "networks": (1, 64), "order": (1, 3), "width": (8, 4096), "layers": (1, 16), "dropout": (0.0, 0.99),
    "longest": (0, LONGEST), "min_count": (1, 1 << 30),
}  # fmt: skip


class LettersToSounds(TaskModel):
    """The letters in their context, scores for every string a letter may write, and a chain that emits those strings.

    Which letter wrote which phones nobody has said: references are phones, and objectives sum over, or choose among,
    all the paths that write them. Several networks read the letters; each is trained as if it were alone but for the
    chain's transitions, which they share, and what answers is the mean of their scores: a product of experts. That
    wants them to agree on who writes what: all begin with what each letter writes without context, its `habits`.
    """

    open_labels = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._letters = {letter: i + _FIRST_LETTER for i, letter in enumerate(config["letters"])}
        emits = [[self._numbers[phone] for phone in string] for string in config["strings"]]
        longest = LONGEST_WORD * (PARTS if config["spelling"] == "parts" else 1) + 2
        sizes = len(self._letters) + _FIRST_LETTER, longest, len(emits)
        self.networks = nn.ModuleList(Network(config, *sizes) for _ in range(config["networks"]))
        self.chain = ChainLayer(len(emits), config["order"], emits)
        habits = torch.full((sizes[0], len(emits)), _NEVER)
        for letter, string, score in config["habits"]:
            habits[self._letters[letter], string] = score
        self.habits = nn.Embedding.from_pretrained(habits, freeze=False)

    @property
    def state_names(self) -> list[str]:
        return ["_".join(string) or "-" for string in self.config["strings"]]

    def encode(self, example: Example) -> Tensor:
        letters = [self._letters.get(x, _UNKNOWN) for x in spelled(example.x, self.config["spelling"])]
        return torch.tensor([_EDGE, *letters, _EDGE])

    def reference(self, example: Example) -> list[int] | list[float]:
        if not example.y:
            raise DataError(f"{example.where}: got a word without phones")
        return super().reference(example)

    def structure(self, encoded: Sequence[Tensor]) -> Chain:
        scores, lengths = self._scores(encoded)
        chain: Chain = self.chain(scores.mean(0), lengths)
        return chain

    def structure_to_train(self, encoded: Sequence[Tensor]) -> Chain:
        """Of each network in turn: every example as many times as there are networks."""
        scores, lengths = self._scores(encoded)
        chain: Chain = self.chain(scores.flatten(0, 1), lengths.repeat(len(scores)))
        return chain

    def _scores(self, encoded: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Of each network (n, B, T, K), and the lengths (B,)."""
        lengths = torch.tensor([len(x) for x in encoded])
        letters = nn.utils.rnn.pad_sequence(list(encoded), batch_first=True)
        own = torch.stack([network(letters, lengths) for network in self.networks])
        return own + self.habits(letters[:, 1:-1]), lengths - 2


class G2P(FileTask):
    """Words and their phones between tabs. `wer` is the part of words with any phone wrong; `per` the edit distance.

    `per` is divided by the number of phones, all words together.
    """

    name = "g2p"
    metric = "wer"
    maximise = False
    loss = "edit:cap=3"
    settings: ClassVar[dict[str, Any]] = {
        "model": "bilstm",
        "networks": 0,
        "order": 1,
        "width": 0,
        "layers": 2,
        "dropout": 0.3,
        "spelling": "auto",
        "longest": 0,
        "min_count": 5,
    }

    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        examples = []
        for found in pronunciations.read(path):
            where = f"{path}, line {found.line}"
            if len(found.word) > LONGEST_WORD:
                raise DataError(f"{where}: got a word of {len(found.word)} letters, but at most {LONGEST_WORD} can be")
            examples.append(Example(tuple(found.word), found.phones, found.word, where))
        return examples

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        for example in examples:
            if not example.y:
                raise DataError(f"{example.where}: got a word without phones, but wanted some to train on")
        networks, width = (4, 64) if len(examples) < _WORDS / 2 else (1, 128)  # few words want several that agree
        settings = {**settings, "networks": settings["networks"] or networks, "width": settings["width"] or width}
        _check(settings)
        read = [(example.x, example.y) for example in examples]
        spelling, longest = choose(read, settings["spelling"], settings["longest"])
        words = [(spelled(letters, spelling), phones) for letters, phones in read]
        strings, counts = inventory(words, longest, settings["min_count"])
        return {
            **settings,
            "words": len(words),
            "spelling": spelling,
            "longest": longest,
            "labels": sorted({phone for _, phones in words for phone in phones}),
            "letters": sorted({letter for letters, _ in words for letter in letters}),
            "strings": strings,
            "habits": _habits(strings, counts),
        }

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        fewer = min(3.0, max(1.0, (_WORDS / settings["words"]) ** 0.5))  # few words want longer steps
        lr = fewer * (0.002 if settings["model"] == "bilstm" else 0.0005)
        epochs = min(_EPOCHS[1], max(_EPOCHS[0], -(-_STEPS * _BATCH // settings["words"])))
        patience = 2 * epochs // 3  # the rate decays, and the last epochs gain
        return Defaults(lr, l2=0.0, epochs=epochs, batch_size=_BATCH, patience=patience, average=0.999, decays=True)

    def build(self, config: dict[str, Any]) -> TaskModel:
        _check(config)
        return LettersToSounds(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        pairs = [(tuple(y), example.y) for example, y in zip(examples, predictions, strict=True)]
        names = {name: i for i, name in enumerate(sorted({name for pair in pairs for side in pair for name in side}))}
        y, r = ([[names[name] for name in pair[side]] for pair in pairs] for side in (0, 1))
        wrong, phones = EditDistance()(y, r).sum().item(), sum(map(len, r))
        return {
            "wer": sum(y != r for y, r in pairs) / len(pairs) if pairs else 0.0,
            "per": wrong / phones if phones else 0.0,
        }

    def write(
        self, example: Example, prediction: Sequence[str], marginals: Sequence[str] | None = None
    ) -> Iterable[str]:
        line = pronunciations.written(example.source, prediction)
        return [line if marginals is None else f"{line}\t{' '.join(marginals)}"]


def _habits(strings: Sequence[Phones], counts: Counts) -> list[tuple[str, int, float]]:
    """Of each letter, strings by their numbers, and the logarithm of how often it writes them."""
    numbers, totals = {string: i for i, string in enumerate(strings)}, defaultdict[str, float](float)
    for (letter, _), count in counts.items():
        totals[letter] += count
    found = [(x, numbers[string], math.log(max(count / totals[x], 1e-9))) for (x, string), count in counts.items()]
    return sorted((x, string, round(score, 4)) for x, string, score in found if score > _NEVER)


def _check(settings: dict[str, Any]) -> None:
    check_settings(settings, MODELS, _RANGES)
    if settings["spelling"] not in ("auto", *SPELLINGS):
        raise ValueError(f"spelling: got {settings['spelling']!r}, but wanted auto, {' or '.join(SPELLINGS)}")
    if settings["model"] == "transformer" and settings["width"] % HEADS:
        raise ValueError(f"width: got {settings['width']}, but wanted a multiple of {HEADS}, the transformer's heads")
