"""McAllester 2010, sections 4 and 5: Theorem 1 for relaxed inference, (12) to (14), and for hidden states, (15).

Both have finitely many solutions whose scores are linear in x, as chains have: paths of hidden states, and the vertices
of a relaxation. So the same integrals are the gradient of their expected loss.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from structloss.objectives import DirectLoss
from structloss.reproduce.inconsistency import descended, trained
from structloss.reproduce.mixture import Mixture
from structloss.reproduce.theorem import Estimate, Truth, estimates, noisy_world, truth
from structloss.structures import FactorGraph, FactorGraphBuilder
from structloss.structures.chain.chain import Chain

EDGES = ((0, 1), (1, 2), (0, 2))
EPSILONS = (0.4, 0.2, 0.1)
RELAXED = "relaxed inference, (12) to (14)"


@dataclass(frozen=True)
class Latent(Mixture):
    """A chain of hidden states, each of which writes a label: y_w(x) is what the best path of states writes, (15).

    Args:
        emits: the label that each state writes.
    """

    emits: tuple[int, ...] = ()

    @property
    def num_states(self) -> int:
        return len(self.emits)

    def structure(self, x: Tensor, w: Tensor) -> Chain:
        return Chain.from_emissions(*self.parts(x, w), emits=[[label] for label in self.emits])

    def costs_of_states(self) -> Tensor:
        return self.costs[:, torch.tensor(self.emits)]


@dataclass(frozen=True)
class Triangle(Mixture):
    r"""Three variables of two labels, each with an x of its own, and a table of scores for every two of them.

    .. math:: s_w(x, y) = \sum_i W_{i y_i} x_i + \sum_{(i, j)} A_{ij, y_i y_j}

    The relaxation is that of the library, over the local marginal polytope (Wainwright and Jordan 2008). Its vertices
    are the eight outputs and four where every label has probability one half, and an odd number of the three pairs
    differ. These four have one score in x and one loss, so that only the best of them counts.

    Args:
        labels: (M, 3), of the components.
        relaxed: whether inference is relaxed or exact.
    """

    relaxed: bool = True

    @property
    def num_weights(self) -> int:
        return 3 * 2 + 3 * 4

    def split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """W (3, 2) and A (3, 2, 2) from w (d,)."""
        return w[:6].reshape(3, 2), w[6:].reshape(3, 2, 2)

    def structure(self, x: Tensor, w: Tensor) -> FactorGraph:
        W, A = self.split(w)
        graph = FactorGraphBuilder()
        graph.variables(x[:, :, None] * W)
        graph.factors(EDGES, A.expand(len(x), 3, 2, 2))
        return graph.build(method="lp" if self.relaxed else "exact", tolerance=1e-7)

    def scores(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Of the outputs 000, 001, ..., 111, and of the halves."""
        (W, A), outputs = self.split(w), self._outputs()
        places = torch.arange(3)
        vectors = W[places, outputs]
        constants = torch.stack([A[e, outputs[:, i], outputs[:, j]] for e, (i, j) in enumerate(EDGES)]).sum(0)
        if not self.relaxed:
            return vectors, constants
        alike, apart = (A[:, 0, 0] + A[:, 1, 1]) / 2, (A[:, 0, 1] + A[:, 1, 0]) / 2
        odd = torch.tensor([d for d in itertools.product((0, 1), repeat=3) if sum(d) % 2])
        half = torch.where(odd == 1, apart, alike).sum(1).amax()
        return torch.cat([vectors, W.mean(1)[None]]), torch.cat([constants, half[None]])

    def losses(self) -> Tensor:
        """L of every vertex: where labels are halves, what random rounding costs in the mean."""
        own = self.costs[self.labels]  # (M, 3, 2)
        outputs = own[:, torch.arange(3), self._outputs()].sum(2)  # (M, 8)
        return torch.cat([outputs, own.mean(2).sum(1)[:, None]], 1) if self.relaxed else outputs

    @staticmethod
    def _outputs() -> Tensor:
        return torch.cartesian_prod(*[torch.arange(2)] * 3)


def latent_world() -> tuple[Latent, Tensor]:
    """Three states that overlap, of which two write the same label, and weights w (15,) in general position."""
    mixture, w = noisy_world()
    emits = (0, 0, 1)
    costs = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    return Latent(mixture.probabilities, torch.tensor(emits)[mixture.labels], mixture.means, costs, emits), w


def frustrated_world(relaxed: bool = True) -> tuple[Triangle, Tensor]:
    """Three labels that are never all alike: to be told so, every two want to differ, and the relaxation takes halves.

    With weights w (18,) in general position, under which it takes them for eight inputs of a hundred.
    """
    labels = torch.tensor([y for y in itertools.product((0, 1), repeat=3) if 0 < sum(y) < 3])
    means = 0.6 * (2.0 * labels.double() - 1)
    probabilities = torch.full((6,), 1 / 6, dtype=torch.float64)
    W = [-0.5, 0.6, -0.7, 0.4, -0.45, 0.65]
    A = [0.0, 0.6, 0.7, 0.05, 0.0, 0.5, 0.6, 0.05, 0.0, 0.7, 0.8, 0.05]
    triangle = Triangle(probabilities, labels, means, 1 - torch.eye(2, dtype=torch.float64), relaxed)
    return triangle, torch.tensor([*W, *A], dtype=torch.float64)


@dataclass(frozen=True)
class Limit:
    """What the library's update came to beside the gradient that it should approach."""

    true: Truth
    found: list[Estimate]


def limits(batches: int, size: int, step: float, seed: int, say: Callable[[str], None]) -> dict[str, Limit]:
    """Both generalisations of Theorem 1: integrals with nodes `step` apart, and `batches` times `size` examples."""
    worlds: dict[str, tuple[Mixture, Tensor]] = {"hidden states, (15)": latent_world(), RELAXED: frustrated_world()}
    found = {}
    for name, (mixture, w) in worlds.items():
        say(f"{name}: expected loss {mixture.expected_loss(w, 0.2):.4f}")
        true = truth(mixture, w, step)
        found[name] = Limit(true, estimates(mixture, w, batches, size, 0.05, seed, say, EPSILONS))
    return found


def trainings(steps: int, seeds: Sequence[int], step: float) -> dict[str, list[tuple[float, float]]]:
    """The expected loss under relaxed and under exact inference, trained for either: a pair for each seed.

    By direct loss from the same start, toward, epsilon = 0.3; and as far as the integrated gradient goes from there.
    """
    (relaxed, start), (exact, _) = frustrated_world(), frustrated_world(relaxed=False)

    def losses(w: Tensor) -> tuple[float, float]:
        return relaxed.expected_loss(w, step), exact.expected_loss(w, step)

    found = {"before": [losses(start)]}
    for name, own in (("exact inference, (8)", exact), ("relaxed inference, (14)", relaxed)):
        objective = DirectLoss(own.loss, 0.3)
        found[f"direct loss, {name}"] = [losses(trained(own, objective, steps, seed, start=start)) for seed in seeds]
        found[f"integrated gradient, {name}"] = [losses(descended(own, start, steps // 8, step))]
    return found
