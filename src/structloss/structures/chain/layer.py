"""ChainLayer: the CRF layer as a module that owns its transitions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from structloss.structures.chain.chain import Chain


class ChainLayer(nn.Module):
    """Start, transition and end scores, and from emissions a `Chain`.

    Args:
        num_labels: K.
        order: q; the transitions have shape (K, ..., K) with q axes, oldest label first. Order 1 has none.
        emits: the labels that each state writes, as for `Chain`.

    Calling it with emissions (B, T, K) and lengths (B,) or a boolean mask (B, T) gives a `Chain`; an objective takes it
    from there.

    Example:
        >>> import torch, structloss as sl
        >>> layer, objective = sl.ChainLayer(num_labels=5), sl.NegativeLogLikelihood()
        >>> emissions, labels = torch.randn(2, 7, 5), torch.zeros(2, 7, dtype=torch.int64)
        >>> loss = objective(layer(emissions, lengths=[7, 4]), labels)
        >>> loss.backward()
        >>> layer(emissions, lengths=[7, 4]).argmax().shape
        torch.Size([2, 7])
    """

    def __init__(self, num_labels: int, order: int = 2, emits: Sequence[Sequence[int]] | None = None) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels: got {num_labels}, but wanted at least 1")
        if order < 1:
            raise ValueError(f"order: got {order}, but wanted at least 1")
        self.num_labels, self.order, self.emits = num_labels, order, emits
        self.start = nn.Parameter(torch.empty(num_labels))
        self.end = nn.Parameter(torch.empty(num_labels))
        self.transitions = nn.Parameter(torch.empty((num_labels,) * order)) if order > 1 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every score from -0.1 to 0.1, as pytorch-crf does."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, emissions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Chain:
        return Chain.from_emissions(emissions, self.transitions, self.start, self.end, lengths, self.emits)

    def extra_repr(self) -> str:
        return f"num_labels={self.num_labels}, order={self.order}"
