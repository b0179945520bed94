"""Posteriors of CTC to measure on: made up and sure, and those of a small recogniser that is trained here.

A recogniser's are kept in benchmarks/results, so that it is trained once.
"""

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss, pad

import structloss as sl

KEPT = Path(__file__).parent / "results"


def spoken(generator: np.random.Generator, n: int, T: int, C: int) -> tuple[np.ndarray, np.ndarray]:
    """A reference of n labels, and a path of T frames that writes it: a label lasts 1 to 3 times as long as a gap."""
    reference = generator.integers(1, C, n)
    lasting, gap = generator.integers(1, 4, n), generator.integers(0, 2, n)
    gap[1:] = np.maximum(gap[1:], reference[1:] == reference[:-1])
    scale, at, path = T / (lasting + gap).sum(), 0.0, np.zeros(T, np.int64)
    for label, before, length in zip(reference, gap, lasting, strict=True):
        at += before * scale
        first = int(at)
        at += length * scale
        path[first : max(first + 1, int(at))] = label
    return reference, path


def sure(B: int, T: int, C: int, n: int) -> tuple[Tensor, Tensor]:
    """log_probs (B, T, C) and references (B, n): 0.999 on the label that is meant, of every fifth frame 0.7 to 0.95."""
    generator = np.random.default_rng(0)
    p, references = np.full((B, T, C), 1e-7), np.empty((B, n), np.int64)
    for b in range(B):
        references[b], path = spoken(generator, n, T, C)
        for t, label in enumerate(path):
            if generator.random() < 0.2:
                others = 1 - generator.uniform(0.7, 0.95)
                np.add.at(p[b, t], generator.integers(0, C, 3), generator.dirichlet(np.ones(3)) * others)
            p[b, t, label] += 1 - p[b, t].sum()
    return torch.from_numpy(p).log().float().log_softmax(2), torch.from_numpy(references)


def flat(B: int, T: int, C: int, n: int) -> tuple[Tensor, Tensor]:
    """log_probs (B, T, C) that know nothing, of scores drawn from the normal distribution, and references (B, n)."""
    generator = np.random.default_rng(0)
    scores = torch.from_numpy(generator.standard_normal((B, T, C))).float()
    return scores.log_softmax(2), torch.from_numpy(generator.integers(1, C, (B, n)))


class Recogniser(nn.Module):
    """A bidirectional LSTM over frames of C features; with many labels, beside a filter of the features themselves."""

    def __init__(self, C: int, width: int, hidden: int) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(C, width), nn.Linear(2 * hidden, C)
        self.memory = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.filter = nn.Parameter(torch.full((5,), 0.5)) if C > 100 else None
        if C > 100:
            with torch.no_grad():
                self.output.weight.mul_(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.output(self.memory(torch.relu(self.input(x)))[0])
        if self.filter is not None:
            padded = pad(x, (0, 0, 2, 2))
            y = y + sum(w * padded[:, i : i + x.shape[1]] for i, w in enumerate(self.filter))
        return y.log_softmax(2)


def noisy(generator: np.random.Generator, B: int, T: int, C: int, n: int, noise: float) -> tuple[Tensor, Tensor]:
    """Frames (B, T, C), one-hot where a label is spoken, in noise; and references (B, n)."""
    x, references = np.zeros((B, T, C), np.float32), np.empty((B, n), np.int64)
    for b in range(B):
        references[b], path = spoken(generator, n, T, C)
        x[b, path > 0, path[path > 0]] = 1
    x += noise * generator.standard_normal(x.shape, np.float32)
    return torch.from_numpy(x), torch.from_numpy(references)


def trained(B: int, T: int, C: int, n: int, seconds: float = 60.0) -> tuple[Tensor, Tensor]:
    """log_probs (B, T, C) of frames that a recogniser has not seen, and references (B, n); about a tenth is misread.

    It is trained for so many seconds at most, until its best path has at most 9.5 % label errors on them.
    """
    kept = KEPT / f"posteriors-{T}-{C}.pt"
    if kept.exists():
        found = torch.load(kept)
        return found["log_probs"].float(), found["references"]
    torch.manual_seed(0)
    many = C > 100
    noise, width, hidden, rate = (0.17, 64, 64, 5e-3) if many else (0.27, 128, 96, 5e-3)
    short = (60, 10) if many else (T // 2, n // 2)
    net, generator = Recogniser(C, width, hidden), np.random.default_rng(1)
    optimiser, start, best = torch.optim.Adam(net.parameters(), rate), time.process_time(), 2.0
    held_out, references = noisy(generator, B, T, C, n, noise)
    step = 0
    while time.process_time() - start < seconds and best > 0.095:
        x, labels = noisy(generator, 16, short[0], C, short[1], noise)
        loss = ctc_loss(net(x).transpose(0, 1), labels, [short[0]] * 16, [short[1]] * 16)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 25 == 0:
            with torch.no_grad():
                log_probs = net(held_out)
            errors = sl.EditDistance()(sl.CTC(log_probs).decode(), references).mean().item() / n
            if errors < best:
                best = errors
                KEPT.mkdir(exist_ok=True)
                torch.save({"log_probs": log_probs.half(), "references": references, "errors": errors}, kept)
    return trained(B, T, C, n, 0.0)
