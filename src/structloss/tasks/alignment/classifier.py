"""Which phone a frame belongs to: a small network, or the paper's classifier with a Gaussian kernel."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from structloss.tasks.alignment.passive_aggressive import passive_aggressive

MODELS = ("network", "kernel")


class FrameNetwork(nn.Module):
    r"""Frames in their context, two hidden layers; the confidence is the log-probability of a phone, (T, P).

    The layers are convolutions over 2 * `context` + 1 frames.
    """

    def __init__(self, inputs: int, phones: int, width: int = 192, context: int = 5, dropout: float = 0.2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(inputs, width, 2 * context + 1, padding=context), nn.ReLU(), nn.Dropout(dropout),
            nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Dropout(dropout),
            nn.Conv1d(width, phones, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Of frames (B, T, d), (B, T, P)."""
        scores: Tensor = self.layers(x.transpose(1, 2)).transpose(1, 2)
        return scores.log_softmax(2)


class KernelClassifier(nn.Module):
    r"""Crammer et al. 2006, PA-I for several classes, with :math:`K(a, b) = \exp(-|a - b|^2 / (2 \sigma^2))`.

    The kernel is Nystroem's approximation on `landmarks` random training frames:
    :math:`\phi(x) = K_{mm}^{-1/2} (K(x, x_1), \ldots, K(x, x_m))`. Frames whose margin is violated move the weights of
    the right and of the best wrong phone by :math:`\tau = \min(C, \ell / (2 |\phi|^2))`; the weights are averaged over
    all steps. The confidence is the score, (T, P).
    """

    landmarks: Tensor
    weights: Tensor

    def __init__(self, inputs: int, phones: int, landmarks: int = 500, variance: float = 19.0, C: float = 5.0) -> None:
        super().__init__()
        self.variance, self.C = variance, C
        self.register_buffer("landmarks", torch.zeros(landmarks, inputs))
        self.register_buffer("weights", torch.zeros(landmarks, phones))

    def _kernel(self, x: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x, self.landmarks).square() / (2 * self.variance))

    def forward(self, x: Tensor) -> Tensor:
        """Of frames (B, T, d), (B, T, P)."""
        return self._kernel(x) @ self.weights

    def fit(self, frames: Sequence[tuple[Tensor, Tensor]], seed: int = 0, block: int = 4096) -> Iterator[float]:
        """One pass over utterances of frames (T, d) and their phones (T,), in random order; yields how far it is."""
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.cat([pair[i] for pair in frames]) for i in (0, 1))
        order = torch.randperm(len(x), generator=generator)
        m = len(self.landmarks)
        chosen = torch.randperm(len(x), generator=generator)[:m]
        self.landmarks.copy_(x[chosen[torch.arange(m) % len(chosen)]])
        kernel = torch.exp(-torch.cdist(self.landmarks, self.landmarks).double().square() / (2 * self.variance))
        values, vectors = torch.linalg.eigh(kernel)
        inverse = torch.where(values > 1e-6 * values.max(), values.clamp(min=1e-12).rsqrt(), 0)
        whitening = (vectors * inverse @ vectors.T).to(self.weights)
        weights, total = torch.zeros_like(self.weights), torch.zeros_like(self.weights, dtype=torch.float64)
        for begin in range(0, len(order), block):
            part = order[begin : begin + block]
            features = self._kernel(x[part]) @ whitening
            passive_aggressive(features.numpy(), y[part].numpy(), weights.numpy(), total.numpy(), self.C)
            yield min(1.0, (begin + block) / len(order))
        self.weights.copy_(whitening @ (total / len(order)).to(whitening))
