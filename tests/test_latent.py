"""Chains whose states emit strings: the inherited suite, and what only latent structure has."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
import test_chain
from structloss.structures.chain.writers import Emits
from suite import Case, close

HIDDEN = ((0,), (1,), (1,))  # two states hide behind label 1
MIXED = ((), (0,), (1, 0))


def written(emits, y: Tensor) -> list[int]:
    return [label for k in y.tolist() if k >= 0 for label in emits[k]]


class LatentCase(Case):
    """References are strings, as are the outputs after `write`."""

    write: Callable[[Tensor], list[int]]

    def agree(self, reference) -> list[Tensor]:
        return [torch.tensor([self.write(y) == r for y in ys]) for ys, r in zip(self.outputs, reference, strict=True)]

    @classmethod
    def of(cls, case: Case, build, write, losses: list[sl.Loss], seed: int) -> "LatentCase":
        """The same paths and scores; references that some path writes, whatever is forbidden."""
        generator = np.random.default_rng(seed)
        scores = [s.detach() for s in case.score(case.potentials)]
        allowed = [torch.isfinite(s).nonzero().flatten().tolist() or [0] for s in scores]
        reference, partial = (
            [write(ys[generator.choice(a)]) for ys, a in zip(case.outputs, allowed, strict=True)] for _ in range(2)
        )

        def definition(loss: sl.Loss):
            return lambda y, r: loss.distance(np.array(write(y), np.int64), np.array(r, np.int64))

        pairs = [(loss, definition(loss)) for loss in losses]
        latent = cls(case.potentials, build, case.outputs, case.score, reference, partial, pairs)
        latent.write = write
        return latent


class TestEmittingChain(test_chain.TestChain):
    kinds = ("hidden dense 2", "hidden emissions 2", "mixed dense 1", "mixed emissions 2", "mixed dense 3")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "one label")

    def make(self, kind: str, edge: str) -> Case:
        name, rest = kind.split(" ", 1)
        case = super().make(rest, edge)
        K = 1 if edge == "one label" else 3
        emits = (HIDDEN if name == "hidden" else ((0,),) if K == 1 else MIXED)[:K]
        plain = case.build

        def build(x):
            chain = plain(x)
            chain._parts = chain._parts.replace(writer=Emits(emits))
            return chain

        losses = [sl.EditDistance(), sl.EditDistance(1.0, 3.0, 2.0, cap=3), sl.SmithWaterman()]
        if edge not in ("ties", "huge", "tiny"):
            losses.append(sl.NGram(2))  # logarithms of counts do not add up exactly: what is a tie depends on the order
        return LatentCase.of(case, build, lambda y: written(emits, y), losses, len(kind) + len(edge))

    def make_long(self, positions: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(3)
        emissions = 3 * torch.randn(2, positions, 3, generator=generator, dtype=torch.float64)
        chain = sl.Chain.from_emissions(emissions.to(dtype), torch.randn(3, 3, generator=generator), emits=HIDDEN)
        return chain, torch.randint(0, 2, (2, positions), generator=generator)

    def test_loss_by_its_own_definition(self, kind: str) -> None:
        case = self.make(kind, "plain")
        chain = case.structure()
        for loss, definition in case.losses:
            for b, outputs in enumerate(case.outputs):
                found = loss(chain.decode(outputs), [case.partial[b]] * len(outputs))
                close(found.double(), case.loss_vectors(definition, case.partial)[b], 1e-6)

    def test_hamming_where_every_state_emits_one_label(self, engine: str) -> None:
        case = test_chain.TestChain().make("dense 2", "plain")
        chain = sl.Chain(case.potentials[0], test_chain.LENGTHS, emits=HIDDEN)
        reference = torch.randint(0, 2, (4, 4))
        scores = case.score(case.potentials)
        vectors = [
            torch.tensor([sum(HIDDEN[k][0] != r for k, r in zip(y, row, strict=True) if k >= 0) for y in ys.tolist()])
            for ys, row in zip(case.outputs, reference.tolist(), strict=True)
        ]
        agrees = [v == 0 for v in vectors]
        for name, (objective, formula) in oracle.objectives(sl.Hamming()).items():
            wanted = [formula(*x) for x in zip(scores, [v.double() for v in vectors], agrees, strict=True)]
            try:
                self.compare(case, objective(chain, reference), wanted)
            except AssertionError as error:
                raise AssertionError(name) from error

    def test_unknown_labels_of_the_reference(self, engine: str) -> None:
        case = self.make("mixed dense 2", "plain")
        partial = [[0, -100], [], [-100], [1, -100, -100]]
        agrees = [
            torch.tensor([
                len(w) == len(r) and all(a == b or b == -100 for a, b in zip(w, r, strict=True))
                for w in (written(MIXED, y) for y in ys)
            ])
            for ys, r in zip(case.outputs, partial, strict=True)
        ]  # fmt: skip
        found = case.structure().given(partial)
        scores = case.score(case.potentials)
        self.compare(
            case, found.log_partition(), [oracle.log_partition(s[a]) for s, a in zip(scores, agrees, strict=True)]
        )


def test_a_reference_that_no_path_writes() -> None:
    potentials = torch.randn(2, 2, 3, requires_grad=True)
    chain = sl.Chain(potentials, emits=[[], [0], [1]])
    given = chain.given([[0, 1, 0], [1]])
    value = given.log_partition()
    assert value[0] == -math.inf
    assert value[1].isfinite()
    assert given.argmax()[0].tolist() == [-1, -1]
    assert given.decode() == [[], [1]]
    value[1].backward()
    assert (potentials.grad[0] == 0).all()


def test_the_paths_that_write_a_string_are_counted() -> None:
    """Choosing where 10 labels stand among 30 positions that are otherwise silent."""
    chain = sl.Chain(torch.zeros(1, 30, 3, dtype=torch.float64), emits=[[], [0], [1]])
    found = chain.given([[0, 1] * 5]).log_partition().exp().item()
    assert found == pytest.approx(math.comb(30, 10))


@pytest.mark.parametrize(
    ("emits", "error", "sentence"),
    [
        ([[0]], ValueError, "emits: got 1 strings, but wanted 2"),
        ([[0], [-1]], ValueError, r"emits: emits\[1\] is \[-1\], but labels are at least 0"),
        ([[0], 3], TypeError, r"emits: emits\[1\] is 3, but wanted a sequence"),
        ([[0], [0.5]], TypeError, r"emits: emits\[1\] is \[0.5\]"),
    ],
)
def test_bad_emissions_are_named(emits, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        sl.Chain(torch.zeros(1, 2, 2), emits=emits)


def test_strings_of_another_length_are_outside_hamming() -> None:
    chain = sl.Chain(torch.zeros(1, 2, 2), emits=[[], [0]])
    augmented = chain.augment(sl.Hamming(), [[0]])
    assert augmented.log_partition().tolist() == pytest.approx([math.log(2)])  # of 0 and 1 labels more none is left
    assert chain.expected(sl.Hamming(), [[0]]).tolist() == [math.inf]
    with pytest.raises(NotImplementedError, match="a chain whose states emit"):
        chain.augment(sl.EditDistance(), [[0, 0]], beam=3)


@pytest.mark.slow
def test_hidden_states_reach_a_lower_loss() -> None:
    """McAllester 2010, section 5, latent direct loss. The label says whether the ones read so far are 3 modulo 4.

    A chain over the two labels cannot count to 4; with five states behind them it can. Seeded, the better of two
    starts: held out, hidden states are right everywhere, and the margin to the chain without them is 0.15 at least.
    """

    def made(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 2, (n, 12), generator=torch.Generator().manual_seed(seed))
        phase = x.cumsum(1) % 4  # four hidden phases; the label says only whether the phase is 3
        return torch.nn.functional.one_hot(x, 2).float(), (phase == 3).long()

    def held_out_loss(emits: list[list[int]], seed: int) -> float:
        torch.manual_seed(seed)
        K = len(emits)
        emissions, transitions = torch.nn.Linear(2, K), torch.nn.Linear(2, K * K)
        parameters = [*emissions.parameters(), *transitions.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=0.05)

        def chain(x: Tensor) -> sl.Chain:
            pairs = transitions(x).reshape(*x.shape[:2], K, K) + emissions(x)[:, :, None]
            return sl.Chain(pairs, emits=emits)

        x, y = made(200, 0)
        warm, objective = sl.NegativeLogLikelihood(), sl.DirectLoss(sl.Hamming(normalize=True), epsilon=1.0)
        for step in range(300):
            optimizer.zero_grad()
            (warm if step < 200 else objective)(chain(x), y).backward()
            optimizer.step()
        x, y = made(200, 1)
        return sl.Hamming(normalize=True)(chain(x).decode(), y).mean().item()

    without = min(held_out_loss([[0], [1]], seed) for seed in range(2))
    hidden = min(held_out_loss([[0], [0], [0], [1], [1]], seed) for seed in range(2))
    assert hidden < without - 0.15, (hidden, without)


def test_strings_over_many_states_are_compiled_once() -> None:
    loss, emits = sl.EditDistance(cap=2), tuple(itertools.chain([()], [(i,) for i in range(5)], [(0, 1), (2, 3)]))
    string = np.array([0, 1, 2])
    first = loss.written(string, 5, emits, 4, False)
    assert loss.written(string, 5, emits, 4, False) is first
    assert first.num_labels == len(emits)


@pytest.mark.parametrize("seed", range(5))
def test_the_equivalent_lattice(seed: int, engine: str) -> None:
    """A node for each position and last state; a state that writes several labels is several arcs in a row."""
    torch.manual_seed(seed)
    lengths, emits, K = [4, 2, 1], [[], [0], [1], [0, 1], [2, 2, 0]], 5
    potentials = torch.randn(3, 4, K, K, dtype=torch.float64)
    chain = sl.Chain(potentials, lengths, emits=emits)
    arcs, scores = [], []
    for b, length in enumerate(lengths):
        rows, nodes = [], itertools.count(1 + length * K)  # after those of positions and states
        for t in range(length):
            for last in range(K if t else 1):
                for k, string in enumerate(emits):
                    source, end = (0 if t == 0 else 1 + (t - 1) * K + last), 1 + t * K + k
                    for i, label in enumerate(string or [-1]):
                        target = end if i >= len(string) - 1 else next(nodes)
                        rows.append((source, target, label))
                        scores.append(potentials[b, t, last if t else 0, k] if i == 0 else torch.tensor(0.0).double())
                        source = target
        arcs.append(rows)
    lattice = sl.Lattice(arcs, torch.stack(scores), num_labels=3)
    drawn = chain.decode(chain.sample(1, torch.Generator().manual_seed(seed))[0])
    close(chain.log_partition(), lattice.log_partition())
    close(chain.entropy(), lattice.entropy())
    close(chain.topk(3)[0], lattice.topk(3)[0])
    assert chain.decode() == lattice.decode()
    for loss in (
        sl.EditDistance(),
        sl.EditDistance(cap=2),
        sl.NGram(2),
        sl.SmithWaterman(),
        sl.EditDistance() + sl.NGram(1),
    ):
        for objective in (
            sl.NegativeLogLikelihood, sl.SoftmaxMargin, sl.Perceptron, sl.Hinge, sl.SlackHinge, sl.DirectLoss, sl.Risk,
            sl.RewardAugmented,
        ):  # fmt: skip
            made = objective() if objective in (sl.NegativeLogLikelihood, sl.Perceptron) else objective(loss)
            close(made(chain, drawn), made(lattice, drawn))
