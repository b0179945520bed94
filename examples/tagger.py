"""A BiLSTM tagger trained on the edit distance itself, exactly, and not on a stand-in for it."""

import torch
from torch import nn

import structloss as sl


class Tagger(nn.Module):
    """Words (B, T) to a chain over labels."""

    def __init__(self, words: int, labels: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.emissions, self.chain = nn.Linear(2 * width, labels), sl.ChainLayer(labels)

    def forward(self, words: torch.Tensor) -> sl.Chain:
        return self.chain(self.emissions(self.lstm(self.embed(words))[0]))


torch.manual_seed(0)
words = torch.randint(0, 20, (64, 15))
labels = (words.cumsum(1) // 7) % 5  # what a label is depends on all words before it
model, loss = Tagger(words=20, labels=5), sl.EditDistance(cap=5)
objective, optimizer = sl.SoftmaxMargin(loss), torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(61):
    if step % 20 == 0:
        print(f"step {step:3}  edit distance {loss(model(words).argmax(), labels).mean():.2f}")
    optimizer.zero_grad()
    objective(model(words), labels).backward()
    optimizer.step()
