"""Letters to sounds: an encoder over letters, and a chain of one state a letter that writes no, one or more phones."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structloss.losses import EditDistance
from structloss.structures import Chain, ChainLayer
from structloss.tasks.g2p import pronunciations
from structloss.tasks.g2p.inventory import inventory
from structloss.training.task import DataError, Defaults, Example, FileTask, TaskModel, check_settings

MODELS = ("bilstm", "transformer")
_UNKNOWN, _EDGE, _FIRST_LETTER = 0, 1, 2
_HEADS = 4
_LONGEST_WORD = 256  # letters; the transformer numbers their places
_RANGES = {
    "order": (1, 3), "width": (8, 4096), "layers": (1, 16), "dropout": (0.0, 0.99), "longest": (1, 8),
    "min_count": (1, 1 << 30),
}  # fmt: skip


class LettersToSounds(TaskModel):
    """The letters in their context, scores for every string a letter may write, and a chain that emits those strings.

    Which letter wrote which phones nobody has said: references are phones, and objectives sum over, or choose among,
    all the paths that write them.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        width, dropout = config["width"], config["dropout"]
        self._letters = {letter: i + _FIRST_LETTER for i, letter in enumerate(config["letters"])}
        self.dropout = nn.Dropout(dropout)
        self.context: nn.Module
        if config["model"] == "bilstm":
            self.embed = nn.Embedding(len(self._letters) + _FIRST_LETTER, width // 2)
            between = dropout if config["layers"] > 1 else 0.0
            self.context = nn.LSTM(
                width // 2, width, config["layers"], batch_first=True, dropout=between, bidirectional=True
            )
            size = 2 * width
        else:
            self.embed = nn.Embedding(len(self._letters) + _FIRST_LETTER, width)
            self.places = nn.Embedding(_LONGEST_WORD + 2, width)
            layer = nn.TransformerEncoderLayer(width, _HEADS, 4 * width, dropout, batch_first=True, norm_first=True)
            self.context = nn.TransformerEncoder(layer, config["layers"], enable_nested_tensor=False)
            size = width
        emits = [[self._numbers[phone] for phone in string] for string in config["strings"]]
        self.emissions, self.chain = nn.Linear(size, len(emits)), ChainLayer(len(emits), config["order"], emits)

    @property
    def state_names(self) -> list[str]:
        return ["_".join(string) or "-" for string in self.config["strings"]]

    def encode(self, example: Example) -> Tensor:
        letters = [self._letters.get(letter, _UNKNOWN) for letter in example.x]
        return torch.tensor([_EDGE, *letters, _EDGE])

    def reference(self, example: Example) -> list[int] | list[float]:
        if not example.y:
            raise DataError(f"{example.where}: got a word without phones")
        return super().reference(example)

    def structure(self, encoded: Sequence[Tensor]) -> Chain:
        lengths = torch.tensor([len(x) for x in encoded])
        letters = nn.utils.rnn.pad_sequence(list(encoded), batch_first=True)
        inputs = self.embed(letters)
        if isinstance(self.context, nn.LSTM):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.dropout(inputs), lengths, batch_first=True, enforce_sorted=False
            )
            found, _ = nn.utils.rnn.pad_packed_sequence(self.context(packed)[0], batch_first=True)
        else:
            places = torch.arange(letters.shape[1])
            beyond = places >= lengths[:, None]
            found = self.context(self.dropout(inputs + self.places(places)), src_key_padding_mask=beyond)
        chain: Chain = self.chain(self.emissions(self.dropout(found[:, 1:-1])), lengths - 2)
        return chain

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.parameters(), lr, weight_decay=l2 / examples)]


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
        "order": 1,
        "width": 128,
        "layers": 2,
        "dropout": 0.3,
        "longest": 2,
        "min_count": 5,
    }

    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        examples = []
        for found in pronunciations.read(path):
            where = f"{path}, line {found.line}"
            if len(found.word) > _LONGEST_WORD:
                raise DataError(f"{where}: got a word of {len(found.word)} letters, but at most {_LONGEST_WORD} can be")
            examples.append(Example(tuple(found.word), found.phones, found.word, where))
        return examples

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        for example in examples:
            if not example.y:
                raise DataError(f"{example.where}: got a word without phones, but wanted some to train on")
        words = [(example.x, example.y) for example in examples]
        config: dict[str, Any] = {
            **settings,
            "labels": sorted({phone for example in examples for phone in example.y}),
            "letters": sorted({letter for example in examples for letter in example.x}),
        }
        check_settings(config, MODELS, _RANGES)
        config["strings"] = inventory(words, settings["longest"], settings["min_count"])
        return config

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        lr = 0.002 if settings["model"] == "bilstm" else 0.0005
        return Defaults(lr, l2=0.0, epochs=30, batch_size=32, patience=10, average=0.999, decays=True)

    def build(self, config: dict[str, Any]) -> TaskModel:
        check_settings(config, MODELS, _RANGES)
        if config["model"] == "transformer" and config["width"] % _HEADS:
            raise ValueError(
                f"width: got {config['width']}, but wanted a multiple of {_HEADS}, the transformer's heads"
            )
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
