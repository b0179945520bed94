r"""When phones start, from recordings and their phones alone: a flat start.

Every phone has three states, one after the other, and every state a Gaussian over frames with variances of its own.
A recording's phones are given, so its likelihood is a sum over all ways to cut its frames into their states, the
log-partition of a `Segmentation`:

.. math:: p(x) = \sum_y \prod_n \prod_{t = y_n}^{y_{n+1} - 1} \mathcal{N}(x_t; \mu_{s_n}, \sigma_{s_n})

At first all cuts are even; then each round of EM takes the Gaussians of the frames that each state holds with which
probability, which is the gradient of the log-partition.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from structloss.structures import Segmentation
from structloss.tasks.alignment.utterance import Utterance
from structloss.text import DataError

ROUNDS = 12
_STATES = 3  # of a phone
_AT_ONCE = 16  # recordings of about one length
_LEAST_VARIANCE = 0.05  # of features whose variance over a recording is 1
_FRAMES_OF_ALL = 10.0  # so many frames of every kind of speech are added to what a state holds
_LONGEST = 60  # frames in a state, and more where a recording is slower on average


class Gaussians:
    """One for each state of each phone: means and variances (S, d), from frames and how much of each a state holds."""

    def __init__(self, states: int, frames: Sequence[Tensor]) -> None:
        everything = torch.cat(list(frames)).double()
        self._mean, self._square = everything.mean(0), everything.square().mean(0)
        self._empty(states)

    def _empty(self, states: int) -> None:
        self._counts = torch.full((states, 1), _FRAMES_OF_ALL, dtype=torch.float64)
        self._sums, self._squares = self._counts * self._mean, self._counts * self._square

    def add(self, x: Tensor, states: Tensor, shares: Tensor) -> None:
        """Frames x (T, d), of which segments in states (N,) hold shares (N, T)."""
        shares, x = shares.double(), x.double()
        self._counts.index_add_(0, states, shares.sum(1, keepdim=True))
        self._sums.index_add_(0, states, shares @ x)
        self._squares.index_add_(0, states, shares @ x.square())

    def estimate(self) -> None:
        """Take what was added since the last time."""
        self.means = self._sums / self._counts
        self.variances = (self._squares / self._counts - self.means.square()).clamp(min=_LEAST_VARIANCE)
        self._empty(len(self._counts))

    def log_density(self, x: Tensor) -> Tensor:
        """Of frames (T, d) in every state, (T, S)."""
        x, precision = x.double(), 1 / self.variances
        constant = (self.means.square() * precision + self.variances.log()).sum(1) + x.shape[1] * math.log(2 * math.pi)
        return -0.5 * (x.square() @ precision.T - 2 * x @ (self.means * precision).T + constant)


def flat_start(
    utterances: Sequence[Utterance], rounds: int = ROUNDS, say: Callable[[str], None] = lambda text: None
) -> list[Utterance]:
    """The same recordings with the times at which their phones most probably start, by the Gaussians of all of them.

    Cost of a round, for N phones in T frames: 3 N * T * 60, some milliseconds a recording.
    """
    for u in utterances:
        if len(u.x) < len(u.phones):
            raise DataError(f"{u.name}: has {len(u.x)} frames, into which {len(u.phones)} phones cannot be cut")
    names = sorted({phone for u in utterances for phone in u.phones})
    number = {name: i for i, name in enumerate(names)}
    items = [(i, u, _states(u, number)) for i, u in enumerate(utterances)]
    gaussians = Gaussians(_STATES * len(names), [u.x for u in utterances])
    for _, u, states in items:
        gaussians.add(u.x, states, _even(len(states), len(u.x)))
    items.sort(key=lambda item: len(item[1].x))
    batches = [items[j : j + _AT_ONCE] for j in range(0, len(items), _AT_ONCE)]
    for done in range(rounds):
        gaussians.estimate()
        total = 0.0
        for batch in batches:
            s, frames = _segmentation(batch, gaussians)
            value = s.log_partition().sum()
            (shares,) = torch.autograd.grad(value, frames)
            total += value.item()
            for (_, u, states), own in zip(batch, shares, strict=True):
                gaussians.add(u.x, states, own[: len(states), : len(u.x)])
        mean = total / sum(len(u.x) for u in utterances)
        say(f"flat start: round {done + 1} of {rounds}, log-likelihood of a frame {mean:.2f}")
    gaussians.estimate()
    found = list(utterances)
    for batch in batches:
        for (i, u, states), starts in zip(batch, _segmentation(batch, gaussians)[0].decode(), strict=True):
            found[i] = u.at(starts[:: len(states) // len(u.phones)])
    return found


def _states(u: Utterance, number: dict[str, int]) -> Tensor:
    """The states of a recording, one after another; of phones too short for three, the middle one alone."""
    each = range(_STATES) if len(u.x) >= _STATES * len(u.phones) else (_STATES // 2,)
    return torch.tensor([_STATES * number[phone] + k for phone in u.phones for k in each])


def _even(segments: int, frames: int) -> Tensor:
    """Which of the segments (N, T) a frame is in, where all are as long."""
    own = torch.arange(frames) * segments // frames
    return (own == torch.arange(segments)[:, None]).double()


def _segmentation(batch: Sequence[tuple[int, Utterance, Tensor]], gaussians: Gaussians) -> tuple[Segmentation, Tensor]:
    """The cuts of several recordings, and the frames' scores (B, N, T) that they are differentiated by."""
    lengths, counts = [len(u.x) for _, u, _ in batch], [len(states) for *_, states in batch]
    frames = torch.zeros(len(batch), max(counts), max(lengths), dtype=torch.float64)
    for own, (_, u, states) in zip(frames, batch, strict=True):
        own[: len(states), : len(u.x)] = gaussians.log_density(u.x)[:, states].T
    frames.requires_grad_()
    longest = max(_LONGEST, *(2 * math.ceil(T / N) for T, N in zip(lengths, counts, strict=True)))
    return Segmentation(frames=frames, lengths=lengths, segments=counts, max_duration=longest), frames
