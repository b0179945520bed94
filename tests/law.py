"""The law "a structure augmented with a loss is a structure", as a list that a test, a script and the docs walk.

Small random structures of every kind whose outputs can all be listed, every loss with a definition of its own that
shares no code with the library, references in every form that the door takes, and what each pair has no meaning for.
"""

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import oracle
import structloss as sl

Set = frozenset[int]
Wanted = list[Set]  # of one example: for each place the labels (or frames) that agree


# --- Losses by definition --------------------------------------------------------------------------------------------


def hamming(y: Sequence[int], r: Wanted) -> float:
    return math.inf if len(y) != len(r) else float(sum(a not in s for a, s in zip(y, r, strict=True)))


def costly(costs: Tensor) -> Callable[[Sequence[int], Wanted], float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        if len(y) != len(r):
            return math.inf
        K = len(costs)
        known = [(a, s) for a, s in zip(y, r, strict=True) if len(s) < K or K == 1]
        return sum(min(costs[b, a].item() for b in s) for a, s in known)

    return loss


def edit(substitution: float, insertion: float, deletion: float, cap: float = math.inf) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        row = [j * deletion for j in range(len(r) + 1)]
        for a in y:
            new = [row[0] + insertion]
            for j, s in enumerate(r):
                new.append(min(row[j] + (0.0 if a in s else substitution), row[j + 1] + insertion, new[j] + deletion))
            row = new
        return min(row[-1], cap)

    return loss


def windowed_edit(window: int) -> Callable[..., float]:
    """Unit costs, by sets of places: what is `window` or more above the least is no longer there."""

    def near(costs: dict[int, int]) -> dict[int, int]:
        return {j: cost for j, cost in costs.items() if cost < min(costs.values()) + window}

    def loss(y: Sequence[int], r: Wanted) -> float:
        places = near({j: j for j in range(len(r) + 1)})
        for a in y:
            moves = [(j, cost + 1) for j, cost in places.items()]
            moves += [(j + 1, cost + (a not in r[j])) for j, cost in places.items() if j < len(r)]
            reached = {j: min([cost + j - i for i, cost in moves if i <= j], default=99) for j in range(len(r) + 1)}
            places = near(reached)
        return float(min(cost + len(r) - j for j, cost in places.items()))

    return loss


def smith_waterman(match: float = -2.0, other: float = 1.0) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        best, row = 0.0, [0.0] * (len(r) + 1)
        for a in y:
            new = [0.0]
            for j, s in enumerate(r):
                new.append(min(0.0, row[j] + (match if a in s else other), row[j + 1] + other, new[j] + other))
            row = new
            best = min(best, *row)
        return best

    return loss


def affine(substitution: float, match: float, opens: float, extends: float, local: bool) -> Callable[..., float]:
    """The least cost over all sets of pairs that grow in both, gap after gap."""

    def loss(y: Sequence[int], r: Wanted) -> float:
        costs = []
        for rows, columns in growing(len(y), len(r)):
            pairs = list(zip(rows, columns, strict=True))
            total = sum(match if y[i] in r[j] else substitution for i, j in pairs)
            ends = pairs if local else [(-1, -1), *pairs, (len(y), len(r))]
            for (i, j), (k, m) in itertools.pairwise(ends):
                total += sum(opens + (gap - 1) * extends for gap in (k - i - 1, m - j - 1) if gap)
            costs.append(total)
        return float(min(costs))

    return loss


def growing(n: int, m: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Any places of n with as many of m."""
    for k in range(min(n, m) + 1):
        yield from itertools.product(itertools.combinations(range(n), k), itertools.combinations(range(m), k))


def pair_errors(miss: float, false_alarm: float) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        known = [(i, next(iter(s))) for i, s in enumerate(r) if len(s) == 1]
        mine, theirs = {(i, y[i]) for i, _ in known if y[i] >= 0}, {(i, j) for i, j in known if j >= 0}
        return miss * len(theirs - mine) + false_alarm * len(mine - theirs)

    return loss


def ngram(n: int, smoothing: float) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        grams = [tuple(r[i : i + n]) for i in range(len(r) - n + 1)]
        known = Counter(tuple(next(iter(s)) for s in g) for g in grams if all(len(s) == 1 for s in g))
        shared = smoothing + sum(known[tuple(y[i : i + n])] for i in range(len(y) - n + 1))
        return -math.log(shared) if shared > 0 else math.inf

    return loss


def shared_ngrams(n: int) -> Callable[..., float]:
    """Minus the number of pairs of places, one in each string, where the same n-gram stands."""

    def loss(y: Sequence[int], r: Wanted) -> float:
        places = itertools.product(range(len(y) - n + 1), range(len(r) - n + 1))
        return -float(sum(all(r[j + k] == {y[i + k]} for k in range(n)) for i, j in places))

    return loss


NAMES = ["O", "B-X", "I-X"]
PIECES = ["▁a", "a", "▁a▁b"]


def chunk_counts(y: Sequence[int], r: Wanted) -> tuple[int, int, int]:
    """How many chunks are right, made and wanted: a run of B or I and what I follow it."""
    known = [len(s) == 1 for s in r]
    ours = "".join("obi"[k] if shown else "o" for k, shown in zip(y, known, strict=False))
    theirs = "".join("obi"[next(iter(s))] if shown else "o" for s, shown in zip(r, known, strict=True))
    found, wanted = ({m.span() for m in re.finditer("[bi]i*", text)} for text in (ours, theirs))
    return len(found & wanted), len(found), len(wanted)


def chunk_errors(miss: float, false_alarm: float) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        right, made, wanted = chunk_counts(y, r)
        return miss * (wanted - right) + false_alarm * (made - right)

    return loss


def chunk_f1(y: Sequence[int], r: Wanted) -> float:
    right, made, wanted = chunk_counts(y, r)
    return 1 - 2 * right / (made + wanted) if made + wanted else 0.0


def boundary(penalty: Callable[[int], float]) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        known = [(a, next(iter(s))) for a, s in zip(y, r, strict=True) if len(s) == 1]
        return sum(penalty(abs(a - b)) for a, b in known) / max(1, len(known))

    return loss


def bracket_errors(miss: float, false_alarm: float) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        mine, theirs = set(y), {next(iter(s)) for s in r}
        return miss * len(theirs - mine) + false_alarm * len(mine - theirs)

    return loss


SWAP = "0 0 1 1\n0 0 2 2\n0 0 3 3\n0 0 1 2 0.5\n0 0 2 1 0.5\n0 0 0 3 1.25\n0 0 3 0 1.25\n0"  # labels 0 and 1 are cheap


def swap(y: Sequence[int], r: Wanted) -> float:
    """What the transducer SWAP says: only 0 and 1 may be exchanged, at half the price; only 2 inserted or deleted."""
    table = np.full((len(y) + 1, len(r) + 1), math.inf)
    table[0, 0] = 0.0
    for i, j in itertools.product(range(len(y) + 1), range(len(r) + 1)):
        if i and j:
            a, s = y[i - 1], r[j - 1]
            cost = min([0.0] * (a in s) + [0.5] * (a in (0, 1) and bool(s & {1 - a})), default=math.inf)
            table[i, j] = min(table[i, j], table[i - 1, j - 1] + cost)
        if i and y[i - 1] == 2:
            table[i, j] = min(table[i, j], table[i - 1, j] + 1.25)
        if j and 2 in r[j - 1]:
            table[i, j] = min(table[i, j], table[i, j - 1] + 1.25)
    return float(table[-1, -1])


# Two ways to begin: labels agree, one by one, or, at a quarter, they cost a half where they agree and 1 where not.
LATE = sl.Transducer.from_arcs(
    [(0, 0, k, k) for k in range(3)] + [(1, 1, a, b, 0.5 if a == b else 1.0) for a in range(3) for b in range(3)],
    final=[0, 1],
    start={0: 0.0, 1: 0.25},
)


def late(y: Sequence[int], r: Wanted) -> float:
    if len(y) != len(r):
        return math.inf
    exact = all(a in s for a, s in zip(y, r, strict=True))
    return 0.0 if exact else 0.25 + sum(0.5 if a in s else 1.0 for a, s in zip(y, r, strict=True))


# Only 0 may be answered where 1 is right, and 2 be made up; its inverse: only 1 where 0 is right, and 2 be left out.
ONE_WAY = sl.Transducer.from_text("0 0 1 1\n0 0 2 2\n0 0 3 3\n0 0 1 2 0.5\n0 0 3 0 1.25\n0")


def other_way(y: Sequence[int], r: Wanted) -> float:
    """What the inverse of ONE_WAY says, by recursion from the front."""
    costs = [math.inf]
    if not y and not r:
        return 0.0
    if r and 2 in r[0]:
        costs.append(1.25 + other_way(y, r[1:]))
    if y and r and (y[0] in r[0] or (y[0] == 1 and 0 in r[0])):
        costs.append((0.0 if y[0] in r[0] else 0.5) + other_way(y[1:], r[1:]))
    return min(costs)


def other_way_capped(y: Sequence[int], r: Wanted) -> float:
    return min(3.0, other_way(y, r))


NOISE = sl.Transducer.from_arcs(
    [arc for k in range(3) for arc in ((0, 0, k, k, 1.0), (0, 0, k, None, 0.5), (0, 0, None, k, 0.25))],
    final=[0],
    semiring="real",
)


def noise(y: Sequence[int], r: Wanted) -> float:
    """What the transducer NOISE says, 0.5 added: all alignments, an insertion times 0.5, a deletion times 0.25."""
    table = np.zeros((len(y) + 1, len(r) + 1))
    for i, j in itertools.product(range(len(y) + 1), range(len(r) + 1)):
        table[i, j] = float(i == j == 0)
        if i and j:
            table[i, j] += table[i - 1, j - 1] * (y[i - 1] in r[j - 1])
        if i:
            table[i, j] += table[i - 1, j] * 0.5
        if j:
            table[i, j] += table[i, j - 1] * 0.25 * len(r[j - 1])
    return -math.log(0.5 + table[-1, -1])


def words(
    spelling: Sequence[str], mark: str, per_word: bool = False, costs: Sequence[float] = (1, 1, 1)
) -> Callable[..., float]:
    def split(labels: Sequence[int]) -> list[str]:
        return [word for word in "".join(spelling[k] for k in labels).split(mark) if word]

    def loss(y: Sequence[int], r: Wanted) -> float:
        wanted = split([next(iter(s)) for s in r])
        errors = edit(*costs)(split(y), [{word} for word in wanted])
        return errors / max(1, len(wanted)) if per_word else errors

    return loss


def per_label(loss: Callable[..., float]) -> Callable[..., float]:
    return lambda y, r: loss(y, r) / max(1, len(r))


def pruned(loss: Callable[..., float], threshold: float) -> Callable[..., float]:
    """inf where the loss is more than so much above the reference's own."""

    def value(y: Sequence[int], r: Wanted) -> float:
        found = loss(y, r)
        return found if found <= loss([min(s) for s in r], r) + threshold else math.inf

    return value


def added(*terms: tuple[float, Callable[..., float]]) -> Callable[..., float]:
    def loss(y: Sequence[int], r: Wanted) -> float:
        return sum(factor * part(y, r) for factor, part in terms)

    return loss


COSTS = torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.0, 1.0], [3.0, 0.25, 0.0]])
TAU, BEYOND = boundary(lambda d: float(d > 1)), boundary(lambda d: max(d - 1.0, 0.0))


@dataclass(frozen=True)
class LossCase:
    """A loss beside its definition, what kind it is, and whether references may be partial or sets."""

    loss: sl.Loss
    definition: Callable[[Sequence[int], Wanted], float]
    over: str  # "labels", "strings", "boundaries", "pairs" or "brackets"
    partial: bool = True
    sets: bool = True


LOSSES = {
    "Hamming": LossCase(sl.Hamming(), hamming, "labels"),
    "Hamming with costs": LossCase(sl.Hamming(COSTS), costly(COSTS), "labels"),
    "a factor times Hamming": LossCase(2 * sl.Hamming(), added((2.0, hamming)), "labels"),
    "EditDistance": LossCase(sl.EditDistance(), edit(1, 1, 1), "strings"),
    "EditDistance with a cap": LossCase(sl.EditDistance(1.0, 3.0, 2.0, cap=3), edit(1, 3, 2, 3), "strings"),
    "EditDistance with a threshold": LossCase(
        sl.EditDistance(1.0, 1.5, 2.0, threshold=2, normalize=True), per_label(pruned(edit(1, 1.5, 2), 2)), "strings"
    ),
    "EditDistance with a window": LossCase(sl.EditDistance(window=2), windowed_edit(2), "strings"),
    "EditDistance with affine gaps": LossCase(
        sl.EditDistance(1.5, gap_open=1.25, gap_extend=0.5), affine(1.5, 0.0, 1.25, 0.5, local=False), "strings"
    ),
    "EditDistance, normalized": LossCase(
        sl.EditDistance(1, 3, 2, cap=4, normalize=True), per_label(edit(1, 3, 2, 4)), "strings"
    ),
    "WordErrors": LossCase(sl.WordErrors("a b"), words("a b", " "), "strings", partial=False, sets=False),
    "WordErrors of pieces": LossCase(
        sl.WordErrors(PIECES, substitution=1.5, insertion=0.5, normalize=True),
        words(PIECES, "▁", True, (1.5, 0.5, 1)), "strings", partial=False, sets=False,
    ),
    "WordErrors and EditDistance": LossCase(
        2 * sl.WordErrors("ab ", cap=2) + 0.5 * sl.EditDistance(),
        added((2.0, lambda y, r: min(2, words("ab ", " ")(y, r))), (0.5, edit(1, 1, 1))), "strings",
        partial=False, sets=False,
    ),
    "SmithWaterman": LossCase(sl.SmithWaterman(), smith_waterman(), "strings"),
    "SmithWaterman with affine gaps": LossCase(
        sl.SmithWaterman(gap_open=1.5, gap_extend=0.25), affine(1.0, -2.0, 1.5, 0.25, local=True), "strings"
    ),
    "NGram": LossCase(sl.NGram(2), ngram(2, 1.0), "strings", sets=False),
    "NGram without the logarithm": LossCase(sl.NGram(2, log=False), shared_ngrams(2), "strings", sets=False),
    "ChunkErrors": LossCase(sl.ChunkErrors(NAMES, 1.5, 0.5), chunk_errors(1.5, 0.5), "strings", sets=False),
    "ChunkF1": LossCase(sl.ChunkF1(NAMES), chunk_f1, "strings", sets=False),
    "TropicalLoss": LossCase(sl.TropicalLoss(SWAP), swap, "strings"),
    "TropicalLoss with several starts and a threshold": LossCase(
        sl.TropicalLoss(LATE, threshold=1.5), pruned(late, 1.5), "strings"
    ),
    "TropicalLoss of an inverse": LossCase(sl.TropicalLoss(ONE_WAY.inverse(), cap=3), other_way_capped, "strings"),
    "RationalLoss": LossCase(sl.RationalLoss(NOISE, smoothing=0.5), noise, "strings"),
    "SmithWaterman with a threshold and NGram": LossCase(
        0.5 * sl.SmithWaterman(threshold=3) + sl.NGram(1, log=False),
        added((0.5, pruned(smith_waterman(), 3)), (1.0, shared_ngrams(1))), "strings", sets=False,
    ),
    "a sum of losses": LossCase(
        0.5 * sl.EditDistance() + sl.NGram(2), added((0.5, edit(1, 1, 1)), (1.0, ngram(2, 1.0))), "strings", sets=False
    ),
    "ChunkErrors and EditDistance": LossCase(
        2 * sl.ChunkErrors(NAMES, 1.5, 0.5) + 0.5 * sl.EditDistance(),
        added((2.0, chunk_errors(1.5, 0.5)), (0.5, edit(1, 1, 1))), "strings", sets=False,
    ),
    "EditDistance and Hamming": LossCase(
        sl.EditDistance() + 0.5 * sl.Hamming(), added((1.0, edit(1, 1, 1)), (0.5, hamming)), "strings"
    ),
    "BoundaryTolerance": LossCase(sl.BoundaryTolerance(1), TAU, "boundaries", sets=False),
    "BoundaryInsensitive": LossCase(sl.BoundaryInsensitive(1), BEYOND, "boundaries", sets=False),
    "a sum over boundaries": LossCase(
        0.5 * sl.BoundaryTolerance(1) + sl.BoundaryInsensitive(1), added((0.5, TAU), (1.0, BEYOND)), "boundaries",
        sets=False,
    ),
    "BracketErrors": LossCase(
        sl.BracketErrors(1.5, 0.5), bracket_errors(1.5, 0.5), "brackets", partial=False, sets=False
    ),
    "PairErrors": LossCase(sl.PairErrors(1.5, 0.5), pair_errors(1.5, 0.5), "pairs", sets=False),
}  # fmt: skip


# --- Structures whose outputs can all be listed ----------------------------------------------------------------------


@dataclass
class World:
    """A small batch: how to build it, and by definition its outputs, their scores, and what they write."""

    leaves: list[Tensor]
    build: Callable[[], sl.Structure]
    outputs: list[list[tuple[int, ...]]]  # of each example, lexicographic, padded with -1
    score: Callable[[int, tuple[int, ...]], Tensor]  # of example b's output
    write: Callable[[int, tuple[int, ...]], list[int]]
    labels: int  # K, of those that are written
    aligned: bool = True  # whether a reference has a label for each place of an output
    over: tuple[str, ...] = ("labels", "strings")
    covers: Callable[[int, tuple[int, ...]], list[int]] | None = None  # the label of each frame, of what has segments
    width: int = 0  # N, of partners: -1 is one of what is written then, and references have this width
    alphabet: int = 0  # what a loss takes for labels: CTC's blank too, which is never written

    def __post_init__(self) -> None:
        self.alphabet = self.alphabet or self.labels


LENGTHS = (3, 0, 1, 2)


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=generator) < 0.08, -math.inf, x).requires_grad_()


def _sequences(K: int, T: int, lengths: Sequence[int]) -> list[list[tuple[int, ...]]]:
    return [[(*y, *[-1] * (T - n)) for y in itertools.product(range(K), repeat=n)] for n in lengths]


def _labels(b: int, y: tuple[int, ...]) -> list[int]:
    return [k for k in y if k >= 0]


def chain(order: int) -> Callable[[torch.Generator], World]:
    def make(g: torch.Generator) -> World:
        K, T = 3, 3
        potentials = _random(g, len(LENGTHS), T, *(K,) * order)

        def score(b: int, y: tuple[int, ...]) -> Tensor:
            labels = [0] * (order - 1) + _labels(b, y)
            parts = [potentials[(b, t, *labels[t : t + order])] for t in range(len(labels) - order + 1)]
            return torch.stack([potentials.new_zeros(()), *parts]).sum()

        build = lambda: sl.Chain(potentials, LENGTHS)  # noqa: E731
        return World([potentials], build, _sequences(K, T, LENGTHS), score, _labels, K)

    return make


MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1]])
PLACES = [row.nonzero()[:, 0].tolist() for row in MASK]


def _gapped(K: int) -> list[list[tuple[int, ...]]]:
    """All sequences under the mask with gaps."""
    outputs = []
    for where in PLACES:
        rows = []
        for y in itertools.product(range(K), repeat=len(where)):
            row = [-1] * 4
            for t, k in zip(where, y, strict=True):
                row[t] = k
            rows.append(tuple(row))
        outputs.append(rows)
    return outputs


def gapped_chain(g: torch.Generator) -> World:
    """A chain of emissions and transitions under a mask with gaps."""
    K = 3
    emissions, transitions = _random(g, 4, 4, K), _random(g, K, K)

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        labels = _labels(b, y)
        parts = [emissions[b, t, k] for t, k in zip(PLACES[b], labels, strict=True)]
        parts += [transitions[i, j] for i, j in itertools.pairwise(labels)]
        return torch.stack([emissions.new_zeros(()), *parts]).sum()

    def build() -> sl.Structure:
        return sl.Chain.from_emissions(emissions, transitions, lengths=MASK)

    return World([emissions, transitions], build, _gapped(K), score, _labels, K)


EMITS = [[], [0], [1, 2], [2]]


def emitting_chain(g: torch.Generator) -> World:
    K, T = len(EMITS), 3
    unary, transitions = _random(g, len(LENGTHS), T, K), _random(g, K, K)

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        states = _labels(b, y)
        parts = [unary[b, t, k] for t, k in enumerate(states)]
        parts += [transitions[i, j] for i, j in itertools.pairwise(states)]
        return torch.stack([unary.new_zeros(()), *parts]).sum()

    def build() -> sl.Structure:
        return sl.Chain.from_emissions(unary, transitions, lengths=LENGTHS, emits=EMITS)

    write = lambda b, y: [k for state in _labels(b, y) for k in EMITS[state]]  # noqa: E731
    return World([unary, transitions], build, _sequences(K, T, LENGTHS), score, write, 3, aligned=False)


def ctc(gaps: bool) -> Callable[[torch.Generator], World]:
    def make(g: torch.Generator) -> World:
        C, T, blank = 3, 4 if gaps else 3, 2
        scores = _random(g, len(LENGTHS), T, C)

        def write(b: int, y: tuple[int, ...]) -> list[int]:
            path = _labels(b, y)
            return [k for k, before in zip(path, (blank, *path), strict=False) if k not in (blank, before)]

        def score(b: int, y: tuple[int, ...]) -> Tensor:
            return torch.stack([scores.new_zeros(()), *(scores[b, t, k] for t, k in enumerate(y) if k >= 0)]).sum()

        build = lambda: sl.CTC(scores, MASK if gaps else LENGTHS, blank)  # noqa: E731
        outputs = _gapped(C) if gaps else _sequences(C, T, LENGTHS)
        return World([scores], build, outputs, score, write, 2, aligned=False, alphabet=C)

    return make


def lattice(g: torch.Generator) -> World:
    pick = random.Random(int(torch.randint(2**31, (), generator=g)))
    arcs = []
    for states in (4, 3, 2):
        pairs = [(i, j) for i in range(states) for j in range(i + 1, states)]
        chosen = [*((i, i + 1) for i in range(states - 1)), *(pick.choice(pairs) for _ in range(pick.randint(0, 4)))]
        arcs.append([[i, j, pick.randint(-1, 2)] for i, j in chosen])
    scores = _random(g, sum(map(len, arcs)))
    begin = [0, *itertools.accumulate(map(len, arcs))]
    longest = 3

    def paths(b: int) -> list[tuple[int, ...]]:
        last, found = max(t for _, t, _ in arcs[b]), []

        def walk(state: int, path: tuple[int, ...]) -> None:
            if state == last:
                found.append((*path, *[-1] * (longest - len(path))))
            for i, (source, target, _) in enumerate(arcs[b]):
                if source == state:
                    walk(target, (*path, i))

        walk(0, ())
        return sorted(found)

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        return torch.stack([scores.new_zeros(()), *(scores[begin[b] + i] for i in y if i >= 0)]).sum()

    write = lambda b, y: [arcs[b][i][2] for i in y if i >= 0 and arcs[b][i][2] >= 0]  # noqa: E731
    build = lambda: sl.Lattice(arcs, scores, num_labels=3)  # noqa: E731
    return World([scores], build, [paths(b) for b in range(3)], score, write, 3, aligned=False)


def segmentation(g: torch.Generator) -> World:
    N, T, lengths, counts = 3, 6, (6, 4, 3), (3, 2, 1)
    starts, frames = _random(g, 3, N, T), _random(g, 3, N, T)

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        own = [*y[: counts[b]], lengths[b]]
        parts = [starts[b, n, own[n]] for n in range(counts[b])]
        parts += [frames[b, n, t] for n in range(counts[b]) for t in range(own[n], own[n + 1])]
        return torch.stack([starts.new_zeros(()), *parts]).sum()

    outputs = [
        [(0, *y, *[-1] * (N - count)) for y in itertools.combinations(range(1, length), count - 1)]
        for length, count in zip(lengths, counts, strict=True)
    ]
    build = lambda: sl.Segmentation(starts, frames, lengths=lengths, segments=counts)  # noqa: E731
    return World([starts, frames], build, outputs, score, _labels, T, over=("boundaries",))


def semi_markov(g: torch.Generator) -> World:
    K, T, D, lengths = 3, 3, 2, (3, 0, 1, 2)
    boundary_, frames, transitions = _random(g, 4, T, K), _random(g, 4, T, K), _random(g, K, K)

    def cuts(length: int) -> list[tuple[int, ...]]:
        found = []
        for marks in itertools.product(range(-1, K), repeat=length):
            starts = [t for t, k in enumerate(marks) if k >= 0]
            if starts == [] and length == 0:
                found.append(marks)
            elif starts and starts[0] == 0:
                ends = [*starts[1:], length]
                if all(e - s <= D for s, e in zip(starts, ends, strict=True)):
                    found.append(marks)
        return [(*marks, *[-1] * (T - length)) for marks in found]

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        total, label, parts = frames.new_zeros(()), -1, []
        for t in range(lengths[b]):
            if y[t] >= 0:
                parts.append(boundary_[b, t, y[t]])
                if label >= 0:
                    parts.append(transitions[label, y[t]])
                label = y[t]
            parts.append(frames[b, t, label])
        return torch.stack([total, *parts]).sum()

    def build() -> sl.Structure:
        return sl.SemiMarkov(boundary_, frames, transitions=transitions, lengths=lengths, max_duration=D)

    def covers(b: int, y: tuple[int, ...]) -> list[int]:
        return list(itertools.accumulate(y[: lengths[b]], lambda before, k: k if k >= 0 else before))

    outputs = [cuts(length) for length in lengths]
    leaves = [boundary_, frames, transitions]
    return World(leaves, build, outputs, score, _labels, K, aligned=False, covers=covers)


def factor_graph(sizes: list[tuple[int, ...]], method: str, hard: bool) -> Callable[[torch.Generator], World]:
    """Variables of so many labels in each example, every two with a factor; of the first two one may have to be 1."""

    def make(g: torch.Generator) -> World:
        leaves: list[Tensor] = []
        blocks: list[tuple[list[list[tuple[int, ...]]], list[Tensor]]] = []  # scopes and scores of each example
        for extents in ((2,), (3,), (2, 2), (2, 3), (3, 3)):
            combined = [list(itertools.combinations(range(len(own)), len(extents))) for own in sizes]
            scopes = [
                [scope for scope in every if tuple(own[v] for v in scope) == extents]
                for own, every in zip(sizes, combined, strict=True)
            ]
            if any(scopes):
                blocks.append((scopes, [_random(g, len(own), *extents) for own in scopes]))
                leaves += blocks[-1][1]

        def score(b: int, y: tuple[int, ...]) -> Tensor:
            parts = [
                scores[b][(f, *(y[v] for v in scope))] for scopes, scores in blocks for f, scope in enumerate(scopes[b])
            ]
            return torch.stack([leaves[0].new_zeros(()), *parts]).sum()

        def build() -> sl.Structure:
            graph = sl.FactorGraphBuilder()
            for scopes, scores in blocks:
                if scores[0].dim() == 2:
                    graph.variables(scores)
                else:
                    graph.factors([torch.tensor(own, dtype=torch.int64).reshape(-1, 2) for own in scopes], scores)
            if hard:
                graph.exactly_one([0, 1])
            return graph.build(method=method)

        width = max(map(len, sizes))
        outputs = [
            [(*y, *[-1] * (width - len(own))) for y in itertools.product(*map(range, own)) if not hard or y[0] != y[1]]
            for own in sizes
        ]
        return World(leaves, build, outputs, score, _labels, 3)

    return make


def dependency_tree(projective: bool) -> Callable[[torch.Generator], World]:
    def make(g: torch.Generator) -> World:
        T, lengths = 2, (2, 0, 1, 2)
        scores = _random(g, len(lengths), T, T + 1)
        trees = {0: [(-1, -1)], 1: [(0, -1)], 2: [(0, 1), (2, 0)]}

        def score(b: int, y: tuple[int, ...]) -> Tensor:
            return torch.stack([scores.new_zeros(()), *(scores[b, d, h] for d, h in enumerate(y) if h >= 0)]).sum()

        build = lambda: sl.DependencyTree(scores, lengths, projective)  # noqa: E731
        return World([scores], build, [trees[n] for n in lengths], score, _labels, T + 1)

    return make


def alignment(mode: str) -> Callable[[torch.Generator], World]:
    """Pairs of sequences, (3, 2), (0, 1), (1, 3) and (2, 2) long."""

    def make(g: torch.Generator) -> World:
        n, m, N, M = (3, 0, 1, 2), (2, 1, 3, 2), 3, 3
        match, opens = _random(g, 4, N, M), (_random(g, 4, N), _random(g, 4, M))
        extends = torch.randn((), generator=g, dtype=torch.float64).requires_grad_()
        outputs = []
        for a, b in zip(n, m, strict=True):
            rows = [dict(zip(*own, strict=True)) for own in growing(a, b)]
            outputs.append(sorted(tuple(row.get(i, -1) for i in range(N)) for row in rows))

        def score(b: int, y: tuple[int, ...]) -> Tensor:
            pairs = [(i, j) for i, j in enumerate(y) if j >= 0]
            parts = [match[b, i, j] for i, j in pairs]
            ends = pairs if mode == "local" else [(-1, -1), *pairs, (n[b], m[b])]
            for before, after in itertools.pairwise(ends):
                for own, start, stop in zip(opens, before, after, strict=True):
                    parts += [own[b, i] if i == start + 1 else extends for i in range(start + 1, stop)]
            return torch.stack([match.new_zeros(()), *parts]).sum()

        build = lambda: sl.Alignment(match, opens, extends, mode=mode, lengths=(n, m))  # noqa: E731
        write = lambda b, y: list(y[: n[b]])  # noqa: E731
        return World([match, *opens, extends], build, outputs, score, write, M, aligned=False, width=N)

    return make


def forest(g: torch.Generator) -> World:
    arcs = [[[0, 1, 2], [0, 2, -1], [1, -1, -1], [2, -1, -1], [1, -1, -1]], [[0, -1, -1], [0, 3, -1], [3, -1, -1]]]
    outputs = [[(0, 2, 3), (0, 4, 3), (1, 3, -1)], [(0, -1, -1), (1, 2, -1)]]
    scores = _random(g, 8)

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        return torch.stack([scores[5 * b + a] for a in y if a >= 0]).sum()

    build = lambda: sl.Forest(arcs, scores)  # noqa: E731
    return World([scores], build, outputs, score, _labels, 5, aligned=False)


def constituency_tree(g: torch.Generator) -> World:
    T, lengths = 3, (3, 0, 1, 2)
    scores = _random(g, len(lengths), T, T, 1)
    pad = (-1, -1, -1, -1, -1)
    trees = {0: [pad], 1: [(0, *pad[1:])], 2: [(1, 0, 4, -1, -1)], 3: [(2, 0, 5, 4, 8), (2, 1, 0, 4, 8)]}

    def score(b: int, y: tuple[int, ...]) -> Tensor:
        parts = [scores[b, k // T, k % T, 0] for k in y if k >= 0]
        return torch.stack([scores.new_zeros(()), *parts]).sum()

    build = lambda: sl.ConstituencyTree(scores, lengths)  # noqa: E731
    return World([scores], build, [trees[n] for n in lengths], score, _labels, T * T, aligned=False)


STRUCTURES: dict[str, Callable[[torch.Generator], World]] = {
    "Chain of order 1": chain(1),
    "Chain of order 2": chain(2),
    "Chain of order 3": chain(3),
    "Chain under a mask with gaps": gapped_chain,
    "Chain that emits": emitting_chain,
    "CTC": ctc(gaps=False),
    "CTC under a mask with gaps": ctc(gaps=True),
    "Lattice": lattice,
    "Segmentation": segmentation,
    "SemiMarkov": semi_markov,
    "Alignment": alignment("global"),
    "Alignment, local": alignment("local"),
    "FactorGraph": factor_graph([(3, 3, 3), (), (3,), (3, 3)], "exact", hard=False),
    "FactorGraph with hard factors": factor_graph([(2, 2, 3), (2, 2), (2, 2, 3)], "auto", hard=True),
    "DependencyTree": dependency_tree(projective=True),
    "DependencyTree, not projective": dependency_tree(projective=False),
    "Forest": forest,
    "ConstituencyTree": constituency_tree,
}

REFUSALS = {  # the first that fits: structure, kind of loss, and the sentence
    ("Segmentation", "labels"): "a sum over labels, but wanted a sum over boundaries",
    ("Segmentation", "strings"): "all outputs of a Segmentation write the same names",
    ("DependencyTree", "strings"): "which reads strings, but a DependencyTree writes none",
    **{
        (name, "labels"): "a sum over labels, but wanted a sum over brackets" for name in ("Forest", "ConstituencyTree")
    },
    ("Forest", "strings"): "which reads strings, but a Forest writes none",
    ("ConstituencyTree", "strings"): "which reads strings, but a ConstituencyTree writes none",
    ("*", "brackets"): "a sum over brackets",
    ("Alignment", "labels"): "a sum over labels, but wanted a sum over pairs",
    ("Alignment", "strings"): "outputs of an Alignment are pairs",
    ("*", "boundaries"): "a sum over boundaries",
    ("*", "pairs"): "a sum over pairs",
}
OVER = {  # what these carry, and nothing else
    "Segmentation": "boundaries", "Alignment": "pairs", "Forest": "brackets", "ConstituencyTree": "brackets",
}  # fmt: skip


def is_for(objective: str, structure: str) -> bool:
    """Whether an objective is for a structure: not SlackHinge, where outputs are not told apart by a loss."""
    return objective != "SlackHinge" or not structure.startswith("DependencyTree")


def refusal(structure: str, case: LossCase) -> str | None:
    """Why this structure does not carry this loss; None where it does."""
    for (name, over), sentence in REFUSALS.items():
        kind = structure.split(",")[0]
        if name in (kind, "*") and over == case.over and OVER.get(kind) != over:
            return sentence
    return None


# --- References in every form ----------------------------------------------------------------------------------------


def references(world: World, case: LossCase, pick: random.Random, partial: bool) -> tuple[list[Wanted], list[object]]:
    """What each example's reference allows at each place, and the forms in which a user may say so."""
    wanted: list[Wanted] = []
    if world.covers is not None and case.over == "labels":
        chosen = [pick.choice(outputs) for outputs in world.outputs]
        return [[frozenset([k]) for k in world.covers(b, y)] for b, y in enumerate(chosen)], [torch.tensor(chosen)]
    everything = frozenset(range(-1 if world.width else 0, world.alphabet))
    for b, outputs in enumerate(world.outputs):
        string = world.write(b, pick.choice(outputs)) if outputs else []
        hidden = [partial and pick.random() < 0.4 for _ in string]
        wanted.append([everything if h else frozenset([k]) for k, h in zip(string, hidden, strict=True)])
    known = [[next(iter(s)) if len(s) == 1 else -100 for s in row] for row in wanted]
    forms: list[object] = [known, [torch.tensor(row, dtype=torch.int64) for row in known]]
    if world.width:
        tensor = torch.full((len(known), world.width), pick.choice([-1, -100]))
        for b, row in enumerate(known):
            tensor[b, : len(row)] = torch.tensor(row, dtype=torch.int64)
        return wanted, [*forms, tensor, tensor.int(), tensor.numpy()]
    width = max(map(len, known), default=0)
    ends_known = all(row[-1:] != [-100] for row in known)  # in a tensor an unknown label at the end would be padding
    if world.aligned:
        width = len(world.outputs[0][0])
    if world.aligned and (ends_known or case.over == "labels"):
        places = _places(world)
        tensor = torch.full((len(known), width), pick.choice([-1, -100]))
        for b, row in enumerate(known):
            for t, k in zip(places[b], row, strict=True):
                tensor[b, t] = k
        forms += [tensor, tensor.int(), tensor.numpy()]
    elif not world.aligned and world.covers is None and ends_known:  # where there are segments it would be marks
        tensor = torch.full((len(known), width + pick.randint(0, 2)), pick.choice([-1, -100]))
        for b, row in enumerate(known):
            tensor[b, : len(row)] = torch.tensor(row, dtype=torch.int64)
        forms += [tensor, tensor.int(), tensor.numpy()]
    if case.sets and case.over != "boundaries":
        chosen = [_sets(row, world, pick) if partial else row for row in wanted]
        sets = torch.zeros(len(wanted), width, world.alphabet, dtype=torch.bool)
        for b, row in enumerate(chosen):
            places = _places(world)[b] if world.aligned else range(len(row))
            for t, s in zip(places, row, strict=True):
                sets[b, t, list(s)] = True
        return (wanted, forms) if pick.random() < 0.7 else (chosen, [sets])
    return wanted, forms


def _sets(row: Wanted, world: World, pick: random.Random) -> Wanted:
    """One more label at some places."""
    return [s | {pick.randrange(world.labels)} if pick.random() < 0.5 else s for s in row]


def _places(world: World) -> list[list[int]]:
    """The places of an output that have a label."""
    return [[t for t, k in enumerate(outputs[0]) if k >= 0] for outputs in world.outputs]


def agrees(string: Sequence[int], wanted: Wanted) -> bool:
    return len(string) == len(wanted) and all(k in s for k, s in zip(string, wanted, strict=True))


# --- The check -------------------------------------------------------------------------------------------------------


def vectors(world: World, case: LossCase, wanted: list[Wanted], form: object) -> tuple[list[Tensor], list[Tensor]]:
    """Of each example's outputs the losses, and whether they agree with the reference."""
    read = world.covers if world.covers is not None and case.over == "labels" else world.write
    losses, agree = [], []
    for b, outputs in enumerate(world.outputs):
        losses.append(torch.tensor([case.definition(read(b, y), wanted[b]) for y in outputs], dtype=torch.float64))
        if read is world.write:
            agree.append(torch.tensor([agrees(read(b, y), wanted[b]) for y in outputs], dtype=torch.bool))
        else:  # marks agree one by one
            assert isinstance(form, Tensor)
            agree.append(torch.tensor([list(y) == form[b].tolist() for y in outputs], dtype=torch.bool))
    return losses, agree


def differences(name: str, loss: str, objective: str, seed: int, tolerance: float = 1e-8) -> list[str]:
    """What is wrong with one objective, value and gradients, on one random structure: nothing, one hopes."""
    generator, pick = torch.Generator().manual_seed(seed), random.Random(seed)
    world, case = STRUCTURES[name](generator), LOSSES[loss]
    wanted, forms = references(world, case, pick, partial=case.partial and pick.random() < 0.5)
    form = pick.choice(forms)
    losses, agree = vectors(world, case, wanted, form)
    called, formula = oracle.objectives(case.loss)[objective]
    scores = [torch.stack([world.score(b, y) for y in outputs]) for b, outputs in enumerate(world.outputs)]
    target = torch.stack([formula(*x) for x in zip(scores, losses, agree, strict=True)])
    found = called(world.build(), form)
    finite, known = target.detach().isfinite(), ~target.detach().isnan()  # inf - inf is anything
    where = f"{objective} of {loss} on {name}, seed {seed}, reference {form!r:.200}"
    wrong = []
    if not torch.allclose(found.detach()[known], target.detach()[known], tolerance, tolerance):
        wrong.append(f"{where}: value {found.detach().tolist()}, wanted {target.detach().tolist()}")
    mine, theirs = (_gradients(x[finite].sum(), world.leaves) for x in (found, target))
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if not torch.allclose(a, b.nan_to_num(0.0), tolerance, tolerance):
            wrong.append(f"{where}: the gradient of leaf {i} is off by {(a - b.nan_to_num(0.0)).abs().max():.2g}")
    return wrong


def _gradients(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def direct_differences(name: str, loss: str, seed: int) -> list[str]:
    """What is wrong with the loss called directly, on every form of a reference, and with argmax, topk and given."""
    generator, pick = torch.Generator().manual_seed(seed), random.Random(seed)
    world, case = STRUCTURES[name](generator), LOSSES[loss]
    if world.covers is not None:
        return []  # outputs are marks: not what is compared
    wanted, forms = references(world, case, pick, partial=case.partial and pick.random() < 0.5)
    losses, agree = vectors(world, case, wanted, forms[0])
    chosen = [pick.randrange(len(outputs)) for outputs in world.outputs]
    y = [outputs[i] for outputs, i in zip(world.outputs, chosen, strict=True)]
    right = torch.stack([v[i] for v, i in zip(losses, chosen, strict=True)])
    wrong = []
    written = [world.write(b, own) for b, own in enumerate(y)]
    if case.over != "strings" and any(len(a) != len(b) for a, b in zip(written, wanted, strict=True)):
        return []
    answers = [torch.tensor(y), written] if world.aligned or case.over == "boundaries" else [written]
    for form, answer in itertools.product(forms, answers):
        if name.endswith("gaps") and isinstance(answer, list) and not isinstance(form, list):
            continue  # nobody could know where the gaps are
        found = case.loss(answer, form).double()
        if not torch.allclose(found, right, 1e-6, 1e-6):
            wrong.append(f"{loss} of {answer!r:.100} against {form!r:.200}: {found.tolist()}, wanted {right.tolist()}")
    structure = world.build()
    for form in forms:
        given = structure.given(form)
        scores = [torch.stack([world.score(b, o) for o in own]).detach() for b, own in enumerate(world.outputs)]
        best = [torch.where(a, s, -math.inf) for s, a in zip(scores, agree, strict=True)]
        rows = [
            own[oracle.first_best(v)] if v.max() > -math.inf else None
            for own, v in zip(world.outputs, best, strict=True)
        ]
        for b, (row, answer) in enumerate(zip(rows, given.argmax().tolist(), strict=True)):
            if row is not None and answer != list(row):
                wrong.append(f"given({form!r:.200}) on {name}, seed {seed}: example {b} has {answer}, wanted {row}")
    return wrong


# --- The table -------------------------------------------------------------------------------------------------------


def table() -> str:
    """What carries what, as docs/guide/law.md shows it. `python tests/law.py` prints it."""
    sentences = list(dict.fromkeys(REFUSALS.values()))
    rows = [["", *STRUCTURES], ["---"] * (len(STRUCTURES) + 1)]
    for loss, case in LOSSES.items():
        found = [refusal(name, case) for name in STRUCTURES]
        rows.append([loss, *("yes" if s is None else f"no ({sentences.index(s) + 1})" for s in found)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *(f'{i}. The error says: "{sentence}".' for i, sentence in enumerate(sentences, 1))])


if __name__ == "__main__":
    print(table())
