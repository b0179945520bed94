"""Native, homolog and decoy sequences, made as Joachims et al. (2006) make them, or along a Markov chain."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.losses import SmithWaterman

Letters = NDArray[np.int64]
LENGTH = 50


class Examples(NamedTuple):
    """Natives (n, l), and of each the candidates (n, 1 + decoys, l), the homolog first."""

    native: Letters
    candidates: Letters


class Source(Protocol):
    """Where examples come from."""

    @property
    def letters(self) -> int:
        """How many there are."""

    def sample(self, count: int, generator: np.random.Generator) -> Examples:
        """So many examples."""


@dataclass(frozen=True)
class Joachims:
    """Natives and decoys of independent letters; a homolog has a mutated stretch of its native amid random letters.

    The stretch is made by `aligned` operations in a row, from a random place of the native on: match copies a letter,
    substitution writes the next letter of the alphabet instead (the first one after the last), insertion writes a
    random letter, deletion skips one. What is missing to the length is written at random places to both sides.

    Args:
        operations: how probable match, substitution, insertion and deletion are.
        letters: how many there are.
        rising: whether letter c = 1, 2, ... is drawn in proportion to c; otherwise all alike.
        decoys: how many an example has.
        length: of every sequence.
        aligned: how many operations there are, at most the length.
    """

    operations: tuple[float, float, float, float] = (0.6, 0.2, 0.1, 0.1)
    letters: int = 4
    rising: bool = False
    decoys: int = 10
    length: int = LENGTH
    aligned: int = 30

    def __post_init__(self) -> None:
        if min(self.operations) < 0 or abs(sum(self.operations) - 1) > 1e-9:
            raise ValueError(f"operations: got {self.operations}, but wanted probabilities that sum to 1")

    def __str__(self) -> str:
        drawn = "drawn by 1, 2, ..." if self.rising else "all alike"
        named = zip(("match", "substitution", "insertion", "deletion"), self.operations, strict=True)
        return f"{self.letters} letters, {drawn}; {', '.join(f'{name} {p:g}' for name, p in named)}"

    def sample(self, count: int, generator: np.random.Generator) -> Examples:
        """So many examples."""
        native = self._random(generator, count, self.length)
        homolog = np.stack([self.homolog(row, generator) for row in native])
        decoys = self._random(generator, count, self.decoys, self.length)
        return Examples(native, np.concatenate([homolog[:, None], decoys], 1))

    def homolog(self, native: Letters, generator: np.random.Generator) -> Letters:
        """A homolog of one sequence."""
        drawn = generator.choice(4, self.aligned, p=self.operations)
        place = int(generator.integers(0, self.length - np.count_nonzero(drawn != 2) + 1))
        found: list[int] = []
        for operation in drawn.tolist():
            if operation == 2:
                found.append(int(self._random(generator)))
                continue
            if operation < 2:
                found.append(int(native[place] + operation) % self.letters)
            place += 1
        missing = self._random(generator, self.length - len(found))
        left = int(generator.integers(0, len(missing) + 1))
        return np.concatenate([missing[:left], found, missing[left:]]).astype(np.int64)

    def _random(self, generator: np.random.Generator, *shape: int) -> Letters:
        weights = np.arange(1, self.letters + 1) if self.rising else np.ones(self.letters)
        return np.asarray(generator.choice(self.letters, shape, p=weights / weights.sum()), np.int64)


@dataclass(frozen=True)
class Markov:
    """Natives of one Markov chain of order 1 over four letters, and a noisy copy of each; no decoys.

    A copy has each letter replaced by another one with probability `substitution`, lost with probability `indel`, and
    preceded by a random letter with probability `indel`; then it is cut or filled up at random.

    Args:
        concentration: the chain's transitions are drawn from a Dirichlet distribution of this parameter, once.
        substitution, indel: of the copy.
        length: of every sequence.
    """

    concentration: float = 1.0
    substitution: float = 0.5
    indel: float = 0.0
    letters: int = field(default=4, init=False)
    length: int = LENGTH

    def __post_init__(self) -> None:
        for name in ("substitution", "indel"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: got {value!r}, but wanted a probability")

    def __str__(self) -> str:
        noise = f"substitution {self.substitution:g}, indel {self.indel:g}"
        return f"a Markov chain of concentration {self.concentration:g}; {noise}"

    def sample(self, count: int, generator: np.random.Generator) -> Examples:
        """So many examples."""
        native = np.empty((count, self.length), np.int64)
        native[:, 0] = generator.integers(0, self.letters, count)
        bounds = self.transitions().cumsum(1)[:, :-1]
        for t in range(1, self.length):
            native[:, t] = (generator.random((count, 1)) > bounds[native[:, t - 1]]).sum(1)
        return Examples(native, np.stack([self.copied(row, generator) for row in native])[:, None])

    def transitions(self) -> NDArray[np.float64]:
        """(K, K), the same for all examples."""
        return np.random.default_rng(0).dirichlet(np.full(self.letters, self.concentration), self.letters)

    def copied(self, native: Letters, generator: np.random.Generator) -> Letters:
        """A noisy copy of one sequence."""
        found: list[int] = []
        for letter in native.tolist():
            if generator.random() < self.indel:
                found.append(int(generator.integers(0, self.letters)))
            if generator.random() < self.indel:
                continue
            changed = generator.random() < self.substitution
            found.append((letter + int(generator.integers(1, self.letters))) % self.letters if changed else letter)
        missing = generator.integers(0, self.letters, max(0, self.length - len(found)))
        return np.array(found[: self.length] + missing.tolist(), np.int64)


def closeness(native: Letters, others: Letters) -> NDArray[np.float64]:
    """The Smith-Waterman score of each of `others` (n, k, l) with its native (n, l): minus the loss of Figure 3(b)."""
    rows = others.swapaxes(0, 1).reshape(-1, others.shape[2])
    losses = SmithWaterman()(torch.from_numpy(rows), torch.from_numpy(np.tile(native, (others.shape[1], 1))))
    return -losses.double().numpy().reshape(others.shape[1], len(native)).T
