"""RecurrentLayer: a chain of order q whose scores a recurrent network over the last q labels gives."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from structloss.structures.chain.chain import Chain


class RecurrentLayer(nn.Module):
    r"""A network that scores an input with the last q labels: features of order q (Cortes 2018, sections 2.1 and 7).

    .. math:: \psi(x, z, s) = v \cdot \tanh\big(A x_s + h(z)\big), \qquad z = y_{s-q+1} \ldots y_s

    h(z) is the state of a GRU that begins at 0 and reads the labels of z, at the first q - 1 positions those that there
    are. Unlike `ChainLayer`, whose transitions are the same whatever the input is, it scores labels and input together;
    and as no state is older than q labels, sums over all sequences stay exact.

    Calling it with inputs (B, T, inputs), such as the states of a network over x, and lengths (B,) or a boolean mask
    (B, T) gives a `Chain` of order q. Cost: B * T * K^q * hidden, and K^q steps of the GRU, once for the whole batch.

    Args:
        num_labels: K.
        inputs: how many numbers describe a position.
        order: q, how many labels are scored together.
        hidden: the size of the GRU's state.

    Example:
        >>> import torch, structloss as sl
        >>> layer = sl.RecurrentLayer(num_labels=3, inputs=8, order=3)
        >>> chain = layer(torch.randn(2, 7, 8), lengths=[7, 4])
        >>> chain.argmax().shape
        torch.Size([2, 7])
        >>> sl.SoftmaxMargin(sl.EditDistance(cap=2))(chain, [[0, 1, 2, 0, 1, 2, 0], [1, 1, 2, 2]]).backward()
    """

    def __init__(self, num_labels: int, inputs: int, order: int = 2, hidden: int = 32) -> None:
        super().__init__()
        for name, value in (("num_labels", num_labels), ("inputs", inputs), ("order", order), ("hidden", hidden)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: got {value!r}, but wanted a whole number of at least 1")
        self.num_labels, self.order = num_labels, order
        self.embed = nn.Embedding(num_labels, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.project = nn.Linear(inputs, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)  # which all sequences of a length would have in common

    def forward(self, inputs: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Chain:
        if inputs.dim() != 3 or inputs.shape[2] != self.project.in_features:
            wanted = f"(B, T, {self.project.in_features})"
            raise ValueError(f"inputs: got shape {tuple(inputs.shape)}, but wanted {wanted}")
        K, q, projected = self.num_labels, self.order, self.project(inputs)  # (B, T, hidden)
        masked = isinstance(lengths, Tensor) and lengths.dim() == 2
        mask = lengths if masked and isinstance(lengths, Tensor) else torch.ones(inputs.shape[:2], dtype=torch.bool)
        before = mask.to(inputs.device).long().cumsum(1) - 1  # (B, T), how many positions come before
        contexts = self.contexts()
        table = self._scored(projected, contexts[-1])
        for n, context in enumerate(contexts[:-1]):  # of n + 1 labels: there is no label before
            first = (before == n).reshape(*before.shape, *(1,) * q)
            table = torch.where(first, self._scored(projected, context), table)
        return Chain(table.expand(*inputs.shape[:2], *(K,) * q), lengths)

    def contexts(self) -> list[Tensor]:
        """The states h(z) of all strings z of 1, 2, ..., q labels: (K, ..., K, hidden) with as many axes of labels."""
        K, labels = self.num_labels, self.embed.weight  # (K, hidden)
        state = labels.new_zeros(1, labels.shape[1])
        found = []
        for n in range(1, self.order + 1):
            read = labels.repeat(len(state), 1)
            state = self.cell(read, state.repeat_interleave(K, 0))  # (K^n, hidden)
            found.append(state.reshape(*(K,) * n, -1))
        return found

    def _scored(self, projected: Tensor, context: Tensor) -> Tensor:
        """The scores (B, T, 1, ..., K, ...) at all positions of contexts (K, ..., hidden), with q axes of labels."""
        missing = self.order + 1 - context.dim()
        batch, time, hidden = projected.shape
        joined = torch.tanh(projected.reshape(batch, time, *(1,) * (context.dim() - 1), hidden) + context)
        scores: Tensor = self.score(joined).squeeze(-1)
        return scores.reshape(batch, time, *(1,) * missing, *scores.shape[2:])

    def extra_repr(self) -> str:
        return f"num_labels={self.num_labels}, order={self.order}"
