"""Networks over letters, several of which read the same words side by side."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

HEADS = 4


class BothWays(nn.Module):
    """A layer of two LSTMs, one from the first letter on and one from the last.

    `nn.LSTM` reads backwards only what is packed, and packed words take it 2.5 times as long. Here each word is turned
    round within its own length: what stands beyond comes last in both directions, and nothing depends on it.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.onward, self.backward = (nn.LSTM(inputs, width, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, turned: Tensor) -> Tensor:
        """From (B, T, inputs) to (B, T, 2 width); `turned` (B, T) says who comes t-th from behind."""
        there = self.onward(x)[0]
        back = self.backward(_taken(x, turned))[0]
        return torch.cat([there, _taken(back, turned)], 2)


def _taken(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))


class Network(nn.Module):
    """Scores (B, T, K) of what each letter may write, from letters (B, T + 2) with a mark at both ends."""

    def __init__(self, config: dict[str, Any], letters: int, longest: int, strings: int) -> None:
        super().__init__()
        width, self.dropout = config["width"], nn.Dropout(config["dropout"])
        self.scores: Callable[[Tensor, Tensor], Tensor]
        if config["model"] == "bilstm":
            self.embed = nn.Embedding(letters, width // 2)
            sizes = [width // 2, *[2 * width] * config["layers"]]
            self.layers = nn.ModuleList(BothWays(size, width) for size in sizes[:-1])
        else:
            sizes = [width]
            self.embed = nn.Embedding(letters, width)
            self.places = nn.Embedding(longest, width)
            layer = nn.TransformerEncoderLayer(
                width, HEADS, 4 * width, config["dropout"], batch_first=True, norm_first=True
            )
            self.context = nn.TransformerEncoder(layer, config["layers"], enable_nested_tensor=False)
        self.emissions = nn.Linear(sizes[-1], strings)

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1])
        beyond = places >= lengths[:, None]
        x = self.embed(letters)
        if hasattr(self, "layers"):
            turned = torch.where(beyond, places, lengths[:, None] - 1 - places)
            for layer in self.layers:
                x = layer(self.dropout(x), turned)
        else:
            x = self.context(self.dropout(x + self.places(places)), src_key_padding_mask=beyond)
        scores: Tensor = self.emissions(self.dropout(x[:, 1:-1]))
        return scores
