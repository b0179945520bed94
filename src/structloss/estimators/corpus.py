"""Sentences and their labels as numbers: all tokens in a row, from which batches are taken by index."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from structloss.structures import Chain, ChainLayer
from structloss.tasks.sparse import SparseLinear, SparseTokens


@dataclass(frozen=True)
class Batch:
    """Sentences of a corpus: what the model reads, and the labels (B, T), -1 beyond a length."""

    features: SparseTokens | Tensor  # (B, T), or (B, T, D)
    lengths: Tensor  # (B,)
    labels: Tensor  # (B, T); (B, 0) where they are not known
    weights: Tensor | None  # (B,)


@dataclass(frozen=True)
class Corpus:
    """All tokens of n sentences in a row: sentence i has those from begin[i] to begin[i] + sizes[i]."""

    features: SparseTokens | Tensor  # (N,), or (N, D)
    sizes: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64] | None = None  # (N,)
    weights: Tensor | None = None  # (n,), of sentences
    begin: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "begin", self.sizes.cumsum() - self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, sentences: NDArray[np.int64]) -> "Corpus":
        """Some of the sentences; nothing is copied."""
        weights = None if self.weights is None else self.weights[torch.from_numpy(sentences)]
        part = Corpus(self.features, self.sizes[sentences], self.labels, weights)
        object.__setattr__(part, "begin", self.begin[sentences])
        return part

    def batch(self, sentences: NDArray[np.int64]) -> Batch:
        """The batch of these sentences; no string is looked at again."""
        sizes = self.sizes[sentences]
        places = np.arange(sizes.max(initial=0))
        tokens = np.where(places < sizes[:, None], self.begin[sentences][:, None] + places, -1)
        if isinstance(self.features, SparseTokens):
            features: SparseTokens | Tensor = self.features.take(tokens)
        else:
            features = self.features[torch.from_numpy(tokens).clamp(min=0)]
        labels = np.zeros((len(sizes), 0), np.int64) if self.labels is None else np.append(self.labels, -1)[tokens]
        weights = None if self.weights is None else self.weights[torch.from_numpy(sentences)]
        return Batch(features, torch.from_numpy(sizes), torch.from_numpy(labels), weights)

    def in_order(self, size: int) -> Iterator[Batch]:
        """Batches of so many sentences, as they come."""
        for i in range(0, len(self), size):
            yield self.batch(np.arange(i, min(i + size, len(self))))

    def shuffled(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Batches of so many sentences of about one length, in a random order."""
        order = np.argsort(self.sizes + 3 * torch.rand(len(self), generator=generator).numpy(), kind="stable")
        for i in torch.randperm(-(-len(self) // size), generator=generator).tolist():
            yield self.batch(order[i * size : (i + 1) * size])


class LinearTagger(nn.Module):
    """A weight for each feature and label, and a chain over their sums; all 0 at first."""

    def __init__(self, num_features: int, num_labels: int, order: int, sparse: bool, sparse_gradient: bool) -> None:
        super().__init__()
        self.emissions: SparseLinear | nn.Linear
        if sparse:
            self.emissions = SparseLinear(max(1, num_features), num_labels, sparse_gradient)
        else:
            self.emissions = nn.Linear(num_features, num_labels)
        self.layer = ChainLayer(num_labels, order)
        for p in self.parameters():
            nn.init.zeros_(p)

    def forward(self, batch: Batch) -> Chain:
        chain: Chain = self.layer(self.emissions(batch.features), batch.lengths)
        return chain
