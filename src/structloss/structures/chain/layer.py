"""ChainLayer: the CRF layer as a module that owns its transitions."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from structloss.structures.chain.allowed import Allowed
from structloss.structures.chain.chain import Chain


class ChainLayer(nn.Module):
    """Start, transition and end scores, and from emissions a `Chain`.

    Args:
        num_labels: K.
        order: q; the transitions have shape (K, ..., K) with q axes, oldest label first. Order 1 has none.
        emits: the labels that each state writes, as for `Chain`.
        allowed: which labels may follow which, a boolean (K, K) from row to column, or an `Allowed`, as
            `iob_transitions` gives it, which says too which may be the first and the last; for order 2. What is not
            allowed has probability 0 in training and is never an answer; its parameters stay numbers, are not in the
            gradient, and are saved as ever.
        device, dtype: of the parameters, as for every module of torch.

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
        >>> layer = sl.ChainLayer(3, allowed=sl.iob_transitions(["O", "B-PER", "I-PER"]))
        >>> layer(torch.tensor([[[0., 0., 9.], [0., 0., 9.]]])).argmax()  # I-PER only behind B-PER
        tensor([[1, 2]])
    """

    def __init__(
        self,
        num_labels: int,
        order: int = 2,
        emits: Sequence[Sequence[int]] | None = None,
        allowed: Tensor | Allowed | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """What the arguments are, the class says."""
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels: got {num_labels}, but wanted at least 1")
        if order < 1:
            raise ValueError(f"order: got {order}, but wanted at least 1")
        self.num_labels, self.order, self.emits = num_labels, order, emits
        self.start, self.end = (nn.Parameter(torch.empty(num_labels, device=device, dtype=dtype)) for _ in range(2))
        shape = (num_labels,) * order
        self.transitions = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if order > 1 else None
        self._not_allowed = self._forbidden(allowed)
        self.reset_parameters()

    def _forbidden(self, allowed: Tensor | Allowed | None) -> list[NDArray[np.bool_] | None]:
        """What is not allowed of transitions (K, K), first labels (K,) and last ones (K,).

        No tensors, which would lose their content where a model is made without weights, as `from_pretrained` makes it.
        """
        K, parts = self.num_labels, (allowed, None, None) if allowed is None or isinstance(allowed, Tensor) else allowed
        if allowed is not None and self.order != 2:
            raise ValueError(f"allowed: got a layer of order {self.order}, but wanted order 2 for what may follow what")
        for part, shape in zip(parts, ((K, K), (K,), (K,)), strict=True):
            if part is not None and (part.dtype != torch.bool or part.shape != shape):
                raise ValueError(
                    f"allowed: got {part.dtype} of shape {tuple(part.shape)}, but wanted booleans of shape {shape}"
                )
        return [None if part is None else ~part.cpu().numpy() for part in parts]

    def reset_parameters(self) -> None:
        """Draw every score from -0.1 to 0.1, as pytorch-crf does."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, emissions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Chain:
        transitions, start, end = (
            x if x is None or no is None else x.masked_fill(torch.from_numpy(no).to(x.device), -math.inf)
            for x, no in zip((self.transitions, self.start, self.end), self._not_allowed, strict=True)
        )
        return Chain.from_emissions(emissions, transitions, start, end, lengths, self.emits)

    def extra_repr(self) -> str:
        return f"num_labels={self.num_labels}, order={self.order}"
