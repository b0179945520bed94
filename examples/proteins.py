"""Learn how to align proteins: substitution scores and gaps from pairs whose structures were aligned.

Each row is trained on some pairs and aligns others: the share of the pairs of the reference that are found, and the F1
of pairs. BLOSUM62 with affine gaps, which parasail aligns by, is where the learning starts. Alignments are the best
ones, or those with the most pairs that are expected to be right: the best under the marginals, without gap costs.

The loss is that of F1 (Parambath et al. 2014): with an F1 of F a missed pair costs 1 - F / 2, one that is made up
F / 2. Where less than half of the pairs are right, equal costs are least for an alignment without a pair.

    python examples/proteins.py --data ../shared/data/protein/deepblast --out proteins.png

Without --data the pairs are made up: a string, and what is left of it after substitutions, insertions and deletions.
"""

import argparse
from pathlib import Path

import parasail
import torch
from torch import Tensor, nn

import structloss as sl

LETTERS = "ARNDCQEGHILKMFPSTWYVX"
BLOSUM = torch.tensor(
    [[float(parasail.blosum62.matrix["ARNDCQEGHILKMFPSTWYVBZX".index(a)]["ARNDCQEGHILKMFPSTWYVBZX".index(b)])
      for b in LETTERS] for a in LETTERS]
)  # fmt: skip
Pair = tuple[list[int], list[int], list[int]]  # x, y, and the partner in y of each letter of x


def read(path: Path, longest: int) -> list[Pair]:
    """Pairs of one fold (a TM-score of 0.5, by either length) of the DeepBLAST repository's TM-align alignments."""
    found = []
    for line in path.read_text().splitlines():
        _, _, first, second, _, x, y, states = line.split("\t")
        if max(float(first), float(second)) >= 0.5 and max(len(x), len(y)) <= longest:
            partners, j = [], 0
            for state in states:
                if state != "2":
                    partners.append(j if state in ":." else -1)
                j += state != "1"
            found.append(([LETTERS.find(a) % 21 for a in x], [LETTERS.find(a) % 21 for a in y], partners))
    return found


def made_up(n: int, generator: torch.Generator) -> list[Pair]:
    """Letters that are substituted as a hidden matrix says, with gaps of a few."""

    def draw(p: Tensor) -> int:
        return int(torch.multinomial(p, 1, generator=generator))

    hidden = (2 * torch.randn(20, 20, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(20)).softmax(1)
    found = []
    for _ in range(n):
        x: list[int] = []
        y: list[int] = []
        partners: list[int] = []
        while len(x) < 60:
            kind = draw(torch.tensor([0.9, 0.05, 0.05]))
            for _ in range(1 if kind == 0 else 1 + draw(torch.ones(5))):
                letter = draw(torch.ones(20))
                if kind != 2:
                    x.append(letter)
                    partners.append(len(y) if kind == 0 else -1)
                if kind != 1:
                    y.append(draw(hidden[letter]) if kind == 0 else letter)
        found.append((x, y, partners))
    return found


class Scores(nn.Module):
    """A symmetric table of substitutions and two scores of gaps, from BLOSUM62, 11 and 1; its unit is half a bit."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.Parameter(BLOSUM * 0.3466)
        self.gaps = nn.Parameter(torch.tensor([-11.0, -1.0]) * 0.3466)
        self.mode = mode

    def forward(self, pairs: list[Pair]) -> sl.Alignment:
        x, y = (nn.utils.rnn.pad_sequence([torch.tensor(p[i]) for p in pairs], True) for i in (0, 1))
        lengths = [len(p[0]) for p in pairs], [len(p[1]) for p in pairs]
        match = ((self.table + self.table.T) / 2)[x[:, :, None], y[:, None]]
        return sl.Alignment(match, *self.gaps, mode=self.mode, lengths=lengths)


def batches(pairs: list[Pair], size: int = 16) -> list[list[Pair]]:
    """Pairs of about the same length together."""
    ordered = sorted(pairs, key=lambda p: len(p[0]) * len(p[1]))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def train(pairs: list[Pair], mode: str, objective: sl.Objective, epochs: int) -> Scores:
    """Scores that an objective has changed."""
    model = Scores(mode)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        parts = batches(pairs)
        for i in torch.randperm(len(parts), generator=generator).tolist():
            optimizer.zero_grad()
            objective(model(parts[i]), [p[2] for p in parts[i]]).backward()
            optimizer.step()
        schedule.step()
    return model


def counted(answers: list[list[int]], pairs: list[Pair]) -> Tensor:
    """Of each two proteins the pairs that are right, that were made, and that the reference has: (n, 3)."""
    rows = []
    for y, (_, _, partners) in zip(answers, pairs, strict=True):
        right = sum(a == b >= 0 for a, b in zip(y, partners, strict=False))
        rows.append([right, sum(a >= 0 for a in y), sum(b >= 0 for b in partners)])
    return torch.tensor(rows, dtype=torch.float64)


def rates(counts: Tensor) -> Tensor:
    """The share of the reference's pairs that are found, and the F1 of pairs, in percent, of sums (..., 3)."""
    right, made, wanted = counts.unbind(-1)
    return 100 * torch.stack([right / wanted, 2 * right / (made + wanted)], -1)


def report(name: str, counts: Tensor, other: Tensor) -> None:
    """Found and F1, and how far they are from another's: 95 % of resampled proteins."""
    (found, f1), text = rates(counts.sum(0)).tolist(), f"{name:39}"
    text += f" {found:5.1f} {f1:5.1f}"
    if counts is not other:
        n = len(counts)
        drawn = torch.randint(n, (2000, n), generator=torch.Generator().manual_seed(0))
        gained = rates(counts[drawn].sum(1)) - rates(other[drawn].sum(1))
        mean = rates(counts.sum(0)) - rates(other.sum(0))
        bounds = torch.quantile(gained, torch.tensor([0.025, 0.975], dtype=torch.float64), 0).T
        for value, (low, high) in zip(mean.tolist(), bounds.tolist(), strict=True):
            text += f"   {value:+5.1f} [{low:+5.1f}, {high:+5.1f}]"
    print(text, flush=True)


@torch.no_grad()
def answers_of(model: Scores, pairs: list[Pair], expected: bool) -> list[list[int]]:
    """Partners, in the order of `batches`: the best, or those with the most pairs that are expected to be right."""
    found = []
    for part in batches(pairs):
        s = model(part)
        if expected:
            s = sl.Alignment(s.marginals(), 0.0, lengths=s.lengths)
        found += s.argmax().tolist()
    return found


def by_parasail(x: list[int], y: list[int], mode: str) -> list[int]:
    """BLOSUM62, a gap of k letters costs 11 + k - 1."""
    search = parasail.sw_trace if mode == "local" else parasail.nw_trace
    found = search(*("".join(LETTERS[a] for a in s) for s in (x, y)), 11, 1, parasail.blosum62)
    partners, i, j = [-1] * len(x), found.end_query, found.end_ref
    for a, b in zip(reversed(found.traceback.query), reversed(found.traceback.ref), strict=True):
        if a != "-" and b != "-":
            partners[i] = j
        i, j = i - (a != "-"), j - (b != "-")
    return partners


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with tmalign_valid.txt and tmalign_test.txt")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--longest", type=int, default=400, help="leave out longer proteins")
    parser.add_argument("--out", type=Path, help="draw a soft alignment into this file")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(1)
    if arguments.data:
        training, test = (read(arguments.data / f"tmalign_{part}.txt", arguments.longest) for part in ("valid", "test"))
    else:
        training, test = made_up(60, generator), made_up(60, generator)
    print(f"{len(training)} pairs to learn from, {len(test)} to align")
    print(f"{'':39} found  F1, %   found and F1 minus parasail's")
    ordered = [p for part in batches(test) for p in part]
    known = [p for part in batches(training) for p in part]
    for mode in ("global", "local"):
        of_training = counted(answers_of(Scores(mode), training, False), known)
        report(f"{mode}: to learn from, BLOSUM62", of_training, of_training)
        loss = sl.PairErrors.with_f1(rates(of_training.sum(0))[1].item() / 100)
        objectives = {
            "likelihood": sl.NegativeLogLikelihood(),
            "softmax-margin": sl.SoftmaxMargin(loss),
            "risk": sl.Risk(loss),
        }
        by_search = counted([by_parasail(x, y, mode) for x, y, _ in ordered], ordered)
        report(f"{mode}: parasail, BLOSUM62", by_search, by_search)
        models = {"BLOSUM62": Scores(mode)}
        for name, objective in objectives.items():
            models[name] = train(training, mode, objective, arguments.epochs)
        for name, model in models.items():
            for expected in (False, True):
                kind = "expected" if expected else "best"
                report(f"{mode}: {name}, {kind}", counted(answers_of(model, test, expected), ordered), by_search)

    if arguments.out:
        from matplotlib.figure import Figure

        pair = ordered[len(ordered) // 4]
        figure = Figure(figsize=(8, 4), layout="constrained")
        for axes, (name, model) in zip(figure.subplots(1, 2), list(models.items())[:2], strict=True):
            with torch.no_grad():
                axes.imshow(model([pair]).marginals()[0] ** 0.5, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            known = [(j, i) for i, j in enumerate(pair[2]) if j >= 0]
            axes.plot(*zip(*known, strict=True), ".", color="#D55E00", markersize=1.5)
            axes.set_title(f"{name}, local", loc="left")
            axes.set_xlabel("position in y")
        figure.axes[0].set_ylabel("position in x")
        figure.savefig(arguments.out, dpi=110)
