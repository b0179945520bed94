"""From frames to scores of labels: convolutions that skip frames, and a recurrent network; frames made different."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate

STRIDES = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2)}  # of the two convolutions, by how many frames become one
_KERNEL = 5
_WIDEST = 0.15  # the part of an utterance, and of the bands, that a mask hides at most


def frames_left(frames: int, subsample: int) -> int:
    """How many frames the convolutions leave.

    Example:
        >>> [frames_left(9, subsample) for subsample in (1, 2, 3, 4)]
        [9, 5, 3, 3]
    """
    for stride in STRIDES[subsample]:
        frames = -(-frames // stride)
    return frames


class Network(nn.Module):
    """Frames (B, T, bins) of some lengths to scores (B, T', labels), of each example whatever else the batch holds."""

    def __init__(
        self, kind: str, bins: int, width: int, layers: int, subsample: int, dropout: float, labels: int
    ) -> None:
        super().__init__()
        self.subsample = subsample
        first, second = STRIDES[subsample]
        self.convolutions = nn.ModuleList(
            [
                nn.Conv1d(bins, width, _KERNEL, first, _KERNEL // 2),
                nn.Conv1d(width, width, _KERNEL, second, _KERNEL // 2),
            ]
        )
        recurrent = nn.GRU if kind == "gru" else nn.LSTM
        between = dropout if layers > 1 else 0.0
        self.context = recurrent(width, width, layers, batch_first=True, dropout=between, bidirectional=True)
        self.dropout, self.scores = nn.Dropout(dropout), nn.Linear(2 * width, labels)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The scores, and the lengths T'."""
        x = frames.transpose(1, 2)
        for convolution, stride in zip(self.convolutions, STRIDES[self.subsample], strict=True):
            x, lengths = gelu(convolution(x)), -(-lengths // stride)
            x = x * (torch.arange(x.shape[2]) < lengths[:, None])[:, None]  # as if the batch had this example alone
        x = self.dropout(x.transpose(1, 2))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, _ = nn.utils.rnn.pad_packed_sequence(self.context(packed)[0], batch_first=True)
        return self.scores(self.dropout(found)), lengths


def varied(x: Tensor, speed: float, pitch: float, masks: int, least: int) -> Tensor:
    """Frames (T, bins) as another speaker might have spoken them, drawn from torch's generator.

    Spoken faster or slower by up to the factor 1 + speed, but in no fewer than `least` frames; the bands stretched or
    pressed together by up to the factor 1 + pitch; and so many spans of time and of bands hidden by their mean, 0
    (SpecAugment: Park et al. 2019).
    """
    draws: Sequence[float] = torch.rand(2 + 4 * masks).tolist()
    frames, bins = x.shape
    if speed:
        frames = max(least, 1, round(frames * (1 + speed) ** (2 * draws[0] - 1)))
        x = interpolate(x.T[None], size=frames, mode="linear")[0].T
    if pitch:
        place = (torch.arange(bins) * (1 + pitch) ** (2 * draws[1] - 1)).clamp(max=bins - 1)
        below = place.long()
        part = place - below
        x = (1 - part) * x[:, below] + part * x[:, (below + 1).clamp(max=bins - 1)]
    if masks:
        x = x.clone()
        for i in range(masks):
            width, begin, height, low = draws[2 + 4 * i : 6 + 4 * i]
            for row, size, part, at in ((x, frames, width, begin), (x.T, bins, height, low)):
                span = int(part * _WIDEST * size)
                first = int(at * (size - span))
                row[first : first + span] = 0.0
    return x
