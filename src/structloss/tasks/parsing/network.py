"""Scores of arcs and of their relations: a bidirectional LSTM and two biaffine forms (Dozat and Manning 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu

_UNSEEN = 0.2  # the part of words that are unknown while training, so that unknown words have a place


class Biaffine(nn.Module):
    r"""Scores (B, T, H, R) of words x (B, T, D) on heads h (B, H, D): :math:`[x, 1]^\top U_r [h, 1]`."""

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.weight = nn.Parameter(torch.zeros(width + 1, labels * (width + 1)))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        x, h = (nn.functional.pad(side, (0, 1), value=1.0) for side in (x, h))
        forms = (h @ self.weight).reshape(len(h), -1, h.shape[2])  # (B, H * R, D + 1)
        return (x @ forms.transpose(1, 2)).reshape(len(h), x.shape[1], h.shape[1], self.labels)


class BiLSTM(nn.Module):
    """Both ways along rows (B, T, D) that are padded behind: twice as fast as packed ones, which go step by step.

    The way back begins at a row's last word, so that no word sees what pads.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.there, self.back = (nn.LSTM(inputs, width, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        turned = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
        index = (turned + x.shape[1] * torch.arange(len(x))[:, None]).flatten()

        def turn(rows: Tensor) -> Tensor:
            return rows.flatten(0, 1).index_select(0, index).reshape(*x.shape[:2], -1)

        return torch.cat([self.there(x)[0], turn(self.back(turn(x))[0])], 2)


class Network(nn.Module):
    """Numbers of a word's features (T, F), 0 for unknown ones, to scores (B, T, T + 1, R)."""

    def __init__(self, sizes: Sequence[int], width: int, layers: int, rate: float, labels: int) -> None:
        super().__init__()
        self.rate = rate
        widths = [max(1, width // 2)] + [max(1, width // 8)] * (len(sizes) - 1)  # the word first
        self.embed = nn.ModuleList([nn.Embedding(n + 1, d) for n, d in zip(sizes, widths, strict=True)])
        inputs = [sum(widths), *[2 * width] * (layers - 1)]
        self.lstms = nn.ModuleList([BiLSTM(n, width) for n in inputs])
        self.root = nn.Parameter(torch.zeros(2 * width))
        narrow = max(1, width // 4)  # relations want less than arcs do
        self.roles = nn.ModuleList([nn.Linear(2 * width, n) for n in (width, width, narrow, narrow)])
        self.arcs, self.relations = Biaffine(width, 1), Biaffine(narrow, labels)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        lengths = torch.tensor([len(x) for x in features])
        padded = nn.utils.rnn.pad_sequence(list(features), batch_first=True)
        if self.training:
            seen = torch.rand(padded.shape[:2]) >= _UNSEEN
            padded = torch.cat([padded[:, :, :1] * seen[:, :, None], padded[:, :, 1:]], 2)
        x = torch.cat([self._dropped(embed(padded[:, :, i])) for i, embed in enumerate(self.embed)], 2)
        for lstm in self.lstms:
            x = self._dropped(lstm(x, lengths))
        nodes = torch.cat([self.root.expand(len(x), 1, -1), x], 1)
        sides = [leaky_relu(role(side), 0.1) for role, side in zip(self.roles, (x, nodes, x, nodes), strict=True)]
        word, head, named_word, named_head = (self._dropped(side) for side in sides)
        # Relations are a distribution given the arc: the likelihood of a tree is that of its arcs, times theirs.
        scores: Tensor = self.arcs(word, head) + self.relations(named_word, named_head).log_softmax(3)
        return scores

    def _dropped(self, x: Tensor) -> Tensor:
        """x (B, T, D) with the same entries dropped at all words of a sentence."""
        return x * dropout(x.new_ones(len(x), 1, x.shape[2]), self.rate, self.training)
