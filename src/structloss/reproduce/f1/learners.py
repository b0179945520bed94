"""Two taggers that learn pass by pass: a linear chain over sparse features, and a BiLSTM under a chain."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from structloss.estimators.corpus import LinearTagger
from structloss.estimators.solvers import Adagrad
from structloss.objectives import Objective
from structloss.reproduce.f1.data import Numbers, TaggedSet
from structloss.structures import ChainLayer

Emissions = tuple[Tensor, Tensor]  # (B, T, K), and lengths (B,)


class Learner(ABC):
    """A tagger that is being trained."""

    layer: ChainLayer

    @abstractmethod
    def learn(self, objective: Objective) -> None:
        """One pass."""

    @abstractmethod
    def emissions(self, sentences: Numbers) -> Emissions:
        """What a chain is made of, for these sentences of the set."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """With the weights that answers are to be made with."""
        with torch.no_grad():
            yield

    def batches(self, sentences: Numbers, size: int = 256) -> Iterator[Emissions]:
        """The emissions of many sentences, in their order."""
        for i in range(0, len(sentences), size):
            yield self.emissions(sentences[i : i + size])


class Linear(Learner):
    """`ChainTagger`'s model and solver; answers are made with its mean of the weights after each pass."""

    def __init__(self, data: TaggedSet, train: Numbers, C: float, seed: int) -> None:
        self.data = data
        features = int(getattr(data.corpus.features, "ids").max(initial=0)) + 1  # noqa: B009
        self.model = LinearTagger(features, len(data.labels), 2, True, True)
        self.layer = self.model.layer
        size = min(64, max(8, len(train) // 50))
        self.solver = Adagrad(self.model, data.corpus.part(train), C, 1.0, size, seed)

    def learn(self, objective: Objective) -> None:
        self.solver.run(objective)
        self.solver.note()

    def emissions(self, sentences: Numbers) -> Emissions:
        batch = self.data.corpus.batch(sentences)
        return self.model.emissions(batch.features), batch.lengths

    @contextmanager
    def answering(self) -> Iterator[None]:
        with torch.no_grad():
            last = [p.clone() for p in self.solver.parameters]
            self.solver.finish()
            yield
            for p, before in zip(self.solver.parameters, last, strict=True):
                p.copy_(before)


class BiLSTM(Learner):
    """Words and their last three letters embedded, a bidirectional LSTM, and a chain; Adam, dropout, clipped."""

    def __init__(
        self, data: TaggedSet, train: Numbers, seed: int, width: int = 48, rate: float = 0.005, size: int = 32
    ) -> None:
        torch.manual_seed(seed)
        self.data, self.train, self.size = data, train, size
        self.generator = np.random.default_rng(seed)
        self.inputs = _numbered(data, train)  # (N, columns)
        rows = self.inputs.amax(0) + 1
        self.embed = nn.ModuleList([nn.Embedding(int(n), width) for n in rows])
        self.lstm = nn.LSTM(width * len(rows), width, batch_first=True, bidirectional=True)
        self.out, self.layer = nn.Linear(2 * width, len(data.labels)), ChainLayer(len(data.labels))
        self.network = nn.ModuleList([self.embed, self.lstm, self.out, self.layer])
        self.dropout = 0.4
        self.optimizer = torch.optim.Adam(self.network.parameters(), rate)

    def emissions(self, sentences: Numbers) -> Emissions:
        sizes, begin = self.data.corpus.sizes[sentences], self.data.corpus.begin[sentences]
        places = np.arange(sizes.max(initial=0))
        tokens = np.where(places < sizes[:, None], begin[:, None] + places, 0)
        words = self.inputs[torch.from_numpy(tokens)]  # (B, T, columns)
        x = torch.cat([embed(words[:, :, i]) for i, embed in enumerate(self.embed)], 2)
        lengths = torch.from_numpy(sizes)
        packed = nn.utils.rnn.pack_padded_sequence(self._drop(x), lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(self._drop(states)), lengths

    def _drop(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.dropout, training=torch.is_grad_enabled())

    def learn(self, objective: Objective) -> None:
        labels = torch.from_numpy(np.append(self.data.gold(np.arange(len(self.data.corpus))), -1))
        noise = 3 * self.generator.random(len(self.train))
        order = self.train[np.argsort(self.data.corpus.sizes[self.train] + noise)]
        batches = [order[i : i + self.size] for i in range(0, len(order), self.size)]
        for i in self.generator.permutation(len(batches)):
            emissions, lengths = self.emissions(batches[i])
            begin = torch.from_numpy(self.data.corpus.begin[batches[i]])
            places = torch.arange(emissions.shape[1])
            gold = labels[torch.where(places < lengths[:, None], begin[:, None] + places, -1)]
            self.optimizer.zero_grad()
            (objective(self.layer(emissions, lengths), gold) / len(lengths)).backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
            self.optimizer.step()


def _numbered(data: TaggedSet, train: Numbers) -> Tensor:
    """Each token's word in small letters, last three letters and other columns by number; 0: seen once or never."""
    rows = [[(t[0].lower(), t[0][-3:], *t[1:]) for t in sentence] for sentence in data.columns]
    tables: list[dict[str, int]] = []
    for i in range(len(rows[0][0])):
        count = Counter(row[i] for n in train.tolist() for row in rows[n])
        tables.append({token: k + 1 for k, token in enumerate(t for t, n in count.items() if n > 1)})
    return torch.tensor(
        [[table.get(token, 0) for table, token in zip(tables, row, strict=True)] for s in rows for row in s]
    )
