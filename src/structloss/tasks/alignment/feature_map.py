r"""The seven features of an alignment (Keshet et al. 2007, as McAllester 2010 uses them), and their scores.

Of a recording with frames :math:`s_1 \ldots s_T`, phones :math:`p_1 \ldots p_N` and start frames :math:`y`:

1. to 4. the distances across each boundary, :math:`\sum_{n>1} |s_{y_n + j} - s_{y_n - j}|` for j = 1, 2, 3, 4;
5. the frame classifier's confidence, :math:`\sum_n \sum_{t=y_n}^{y_{n+1}-1} g(p_n, s_t)`;
6. the durations' log-likelihood, :math:`\sum_n \log \mathcal{N}(y_{n+1} - y_n; \mu_{p_n}, \sigma_{p_n})`;
7. the change of the speaking rate, :math:`\sum_{n>1} (r_n - r_{n-1})^2` with :math:`r_n = (y_{n+1} - y_n) / \mu_{p_n}`.

Each is divided by the number of phones, as the losses are, and by how much it differs between rough alignments and
their references, so that a step of training is about as long as the weights are large.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from structloss.structures import Segmentation
from structloss.tasks.alignment.utterance import Utterance

NAMES = ("distance 1", "distance 2", "distance 3", "distance 4", "confidence", "duration", "speaking rate")
_WIDTHS = (1, 2, 3, 4)
_LEAST_DEVIATION = 1.0  # of durations, in frames
_LONGER = 1.5  # a phone may last so many times longer than any seen, or more where a recording is so slow


@dataclass(frozen=True)
class Durations:
    """What is known of each phone's duration, in frames."""

    mean: dict[str, float]
    deviation: dict[str, float]
    longest: dict[str, float]

    @classmethod
    def of(cls, utterances: Sequence[Utterance]) -> Self:
        """From alignments. A phone seen once or never has the mean and the deviation of all phones."""
        lengths: dict[str, list[float]] = {}
        for utterance in utterances:
            for phone, length in zip(utterance.phones, utterance.durations(), strict=True):
                lengths.setdefault(phone, []).append(float(length))
        everything = torch.tensor([length for row in lengths.values() for length in row])
        rows = {phone: torch.tensor(row) for phone, row in lengths.items() if len(row) > 1} | {"": everything}
        return cls(
            {phone: row.mean().item() for phone, row in rows.items()},
            {phone: max(_LEAST_DEVIATION, row.std(correction=0).item()) for phone, row in rows.items()},
            {phone: row.max().item() for phone, row in rows.items()},
        )

    def of_phones(self, phones: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, deviation and longest of each phone, (N,)."""
        tables = (self.mean, self.deviation, self.longest)
        mean, deviation, longest = (torch.tensor([t.get(phone, t[""]) for phone in phones]) for t in tables)
        return mean, deviation, longest

    def to_json(self) -> dict[str, Any]:
        """As a model's config holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Features:
    """The features of every choice of one recording: what a segmentation is scored by.

    boundary (4, T): of a boundary before frame t; confidence (N, T): of phone n in frame t; duration (N, D): of
    durations 1 to D; mean (N,): of the durations of each phone.
    """

    boundary: Tensor
    confidence: Tensor
    duration: Tensor
    mean: Tensor

    @classmethod
    def of(cls, x: Tensor, confidence: Tensor, phones: Sequence[str], durations: Durations) -> Self:
        """Of frames x (T, d), each phone's confidence in each frame (N, T), and what is known of durations."""
        T, places = len(x), torch.arange(len(x))
        boundary = torch.stack([(x[(places + j).clamp(max=T - 1)] - x[(places - j).clamp(min=0)]).norm(dim=1)
                                for j in _WIDTHS])  # fmt: skip
        boundary[:, 0] = 0
        mean, deviation, longest = durations.of_phones(phones)
        most = _LONGER * longest * max(1.0, T / (_LONGER * longest.sum().item()))
        d = torch.arange(1, min(T, math.ceil(most.max().item())) + 1)
        duration = -0.5 * ((d - mean[:, None]) / deviation[:, None]) ** 2 - deviation[:, None].log()
        duration = duration.masked_fill(d > most[:, None].ceil(), -torch.inf)
        return cls(boundary, confidence, duration, mean)

    def rate(self) -> Tensor:
        """The change of the speaking rate, (N, D, D): of the last duration and this one; 0 of the first phone."""
        rates = torch.arange(1, self.duration.shape[1] + 1) / self.mean[:, None]
        change = torch.zeros(*rates.shape, rates.shape[1])
        change[1:] = (rates[1:, None, :] - rates[:-1, :, None]) ** 2
        return change

    def at(self, starts: Sequence[int]) -> Tensor:
        """The seven features (7,) of one alignment, before they are scaled."""
        N, T = self.confidence.shape
        y, lengths = torch.tensor(starts), torch.tensor([*starts[1:], T]) - torch.tensor(starts)
        sums = torch.cat([torch.zeros(N, 1), self.confidence.cumsum(1)], 1)
        places = torch.arange(N)
        confidence = (sums[places, y + lengths] - sums[places, y]).sum()
        duration = self.duration[places, lengths - 1].sum()
        rates = lengths / self.mean
        rate = ((rates[1:] - rates[:-1]) ** 2).sum()
        return torch.cat([self.boundary[:, y[1:]].sum(1), torch.stack([confidence, duration, rate])]) / N


def segmentation(weights: Tensor, features: Sequence[Features]) -> Segmentation:
    """The alignments of several recordings, each scored by weights (7,) times its features over the number of phones.

    Cost of its operations: N * T * D without a weight for the speaking rate, else N * T * D * D.
    """
    N = max(len(f.mean) for f in features)
    phones = torch.tensor([len(f.mean) for f in features])
    share = weights / phones[:, None]  # (B, 7)

    def padded(rows: list[Tensor]) -> Tensor:
        most = [max(row.shape[i] for row in rows) for i in range(rows[0].dim())]
        widths = [[w for n, size in zip(most, row.shape, strict=True) for w in (n - size, 0)] for row in rows]
        return torch.stack([pad(row, own[::-1]) for row, own in zip(rows, widths, strict=True)])  # last axis first

    boundary = torch.einsum("bj,bjt->bt", share[:, :4], padded([f.boundary for f in features]))
    durations = padded([f.duration for f in features])
    allowed = padded([torch.isfinite(f.duration) for f in features])
    return Segmentation(
        boundary=boundary[:, None].expand(-1, N, -1),
        frames=share[:, 4, None, None] * padded([f.confidence for f in features]),
        durations=(share[:, 5, None, None] * durations.masked_fill(~allowed, 0)).masked_fill(~allowed, -torch.inf),
        rates=share[:, 6, None, None, None] * padded([f.rate() for f in features]),
        lengths=torch.tensor([f.confidence.shape[1] for f in features]),
        segments=phones,
    )
