"""Letters to sounds in miniature: a letter sounds as no phone, one or two, and nobody tells the model which."""

import argparse
import random
from pathlib import Path

import torch
from torch import nn

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw what the letters of a word may sound as into this file")
arguments = parser.parse_args()

VOWELS = {"a": "a", "e": "e", "ea": "i", "eau": "o", "i": "i", "o": "o", "oi": "oi", "u": "ju"}
CONSONANTS = {"c": "k", "ch": "tS", "ck": "k", "p": "p", "ph": "f", "s": "s", "sh": "S", "t": "t", "th": "T", "x": "ks"}
LETTERS, PHONES = "aceihkopstux", "aeioujkpstfST"
SOUNDS = ["", *PHONES, "ju", "ks"]  # what one letter may sound as: the states of the chain


def invent() -> tuple[str, str]:
    """A word, perhaps with a silent e at its end, and how it sounds."""
    parts = [random.choice(list(kind.items())) for kind in [CONSONANTS, VOWELS] * random.randint(1, 2) + [CONSONANTS]]
    return "".join(written for written, _ in parts) + random.choice(["", "e"]), "".join(sound for _, sound in parts)


class Reader(nn.Module):
    """Words to a chain over sounds; each letter is seen with the two before and the two after it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.window = nn.Embedding(len(LETTERS) + 1, width), nn.Conv1d(width, width, 5, padding=2)
        self.emissions = nn.Linear(width, len(SOUNDS))
        self.chain = sl.ChainLayer(len(SOUNDS), emits=[[PHONES.index(phone) for phone in sound] for sound in SOUNDS])

    def forward(self, words: tuple[str, ...]) -> sl.Chain:
        letters = [torch.tensor([1 + LETTERS.index(letter) for letter in word]) for word in words]
        seen = self.embed(nn.utils.rnn.pad_sequence(letters, batch_first=True))
        seen = self.window(seen.transpose(1, 2)).relu().transpose(1, 2)
        return self.chain(self.emissions(seen), [len(word) for word in words])


random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)  # a model as small as this one is slower with more
words, sounds = zip(*dict.fromkeys(invent() for _ in range(500)), strict=True)  # no word twice
phones, known = [[PHONES.index(phone) for phone in sound] for sound in sounds], 100
model = Reader()
for objective in (sl.NegativeLogLikelihood(), sl.SoftmaxMargin(sl.EditDistance(cap=3))):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(50):
        optimizer.zero_grad()
        objective(model(words[:known]), phones[:known]).backward()
        optimizer.step()
    errors = sl.EditDistance()(model(words[known:]).decode(), phones[known:]).sum() / sum(map(len, phones[known:]))
    print(f"after {type(objective).__name__:21}  phone error rate of words never seen {errors:.1%}")

for word, path in zip(words[known:][:8], model(words[known:]).argmax(), strict=False):
    print(f"{word:10}", " ".join(f"{letter}:{SOUNDS[state] or '-'}" for letter, state in zip(word, path, strict=False)))

if arguments.out:
    from matplotlib.figure import Figure

    with torch.no_grad():
        word = words[known:][model(words[known:]).entropy().argmax()]  # the one it is least sure of
        sounds_of = model((word,)).marginals()[0].sum(1)  # (letters, states): over the state before
    used = [state for state in range(len(SOUNDS)) if sounds_of[:, state].max() > 0.02]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(sounds_of[:, used].T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(word)), list(word))
    axes.set_yticks(range(len(used)), [SOUNDS[state] or "(silent)" for state in used])
    axes.set(xlabel="letter", ylabel="sounds as")
    figure.savefig(arguments.out, dpi=110)
