r"""Certified truncation: the machines of a chain with at most so many states a level, and what that can have cost.

Let Z be the sum over all outputs and Z' the sum over those whose states were all kept. Then :math:`Z - Z'` is the sum
over the outputs that pass some dropped state, and each of them passes a first one. Over those whose first one is s, at
level t, it is the sum over histories h of :math:`\alpha_t(h, s)`, the sum over beginnings, which is known exactly as
they kept to the beam, times the sum over endings, of which an upper bound :math:`B_t(h, s)` is known. Hence

.. math:: Z - Z' \le D = \sum_{(t, s) \text{ dropped}} \sum_h \alpha_t(h, s) B_t(h, s),
          \qquad \frac{Z - Z'}{Z} \le \frac{D}{Z' + D},

as :math:`x / (Z' + x)` grows with x. The truncated structure's distribution is the exact one given that no state was
dropped; the two differ in total variation by the probability of the rest, :math:`(Z - Z') / Z`, so that the bound holds
for every marginal too. The states with the largest summand of D are kept: those that it would cost most to drop.

The bound B (`bounds_of`) is the smaller of two. One is the chain's own sum over endings times
exp(scale * u), u the most (for scale < 0 the least) that the loss can still grow. The other, for tropical losses, takes
scores and losses together: the loss to go from a position is at most what any one path costs, so that the sum over
endings along a fixed strategy of moves bounds it from above; for scale < 0, exp(scale * loss) is the largest over paths
and so at most their sum (`kernels.beam`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.open import merged
from structloss.automata.pairs import ScaledAutomaton, SumAutomaton
from structloss.automata.tropical import TropicalAutomaton
from structloss.kernels import beam as kernels
from structloss.structures.chain import torch_engine
from structloss.structures.chain.parts import Parts
from structloss.structures.rows import Floats, Ints
from structloss.structures.tensors import lifted, wide

Bounds = Callable[[Ints, int], Floats]  # of states, at level t and for each history: (S, rows)
_LEAST = -1e300  # what is dropped is never nothing


class Scores(NamedTuple):
    """The scores of one example's chain, in logarithms. H histories; rows[t] of them exist at level t."""

    level: Floats  # (T, H, K)
    rows: Ints  # (T + 1,)
    beta: Floats  # (T + 1, H), the sums over endings without a loss


def truncated(p: Parts, machines: list[OpenAutomaton], scale: float, beam: int) -> tuple[list[LossAutomaton], Floats]:
    """A machine for each example with at most `beam` states a level, and one for what was dropped; and the bounds (B,).

    Cost: beam * l * K**q, and the exploring of the machines where the beam goes.
    """
    B, T, H, K = p.lengths.shape[0], p.num_positions, p.num_histories, p.num_labels
    with torch.no_grad():
        wide_p = p.map(wide)
        scores = torch_engine.levels(wide_p)
        sums, _ = torch_engine.backward(wide_p, scores, torch_engine.machine_of(wide_p))
    level, beta = scores.cpu().numpy(), lifted(torch.stack(sums, 1)).reshape(B, T + 1, H).cpu().numpy()
    rows = np.minimum(H, np.power(K, np.minimum(np.arange(T + 1), p.order)))
    results = [
        _truncated(machine, scale, beam, Scores(level[b, :length], rows, beta[b]))
        for b, (machine, length) in enumerate(zip(machines, p.lengths.tolist(), strict=True))
    ]
    return [machine for machine, _ in results], np.array([bound for _, bound in results])


def _truncated(machine: OpenAutomaton, scale: float, beam: int, scores: Scores) -> tuple[LossAutomaton, float]:
    """The machine of one example, and the bound. Behind the states of a level comes a sink, once any were dropped."""
    class_of, C = machine.class_of, machine.next_state.shape[1]
    states, alpha, dropped = np.zeros(1, np.int64), np.zeros((1, 1)), -np.inf  # the last is log D
    arcs, bounds = [], None
    for t, level in enumerate(scores.level):
        S = len(states)
        target, weight = machine.follow(np.repeat(states, C), np.tile(np.arange(C), S))
        following, place = np.unique(target, return_inverse=True)
        place, weight = place.reshape(S, C), weight.reshape(S, C)
        added = scale * weight[:, class_of]
        alpha = _forward(alpha, level[: scores.rows[t]], added, place[:, class_of], len(following), len(level))
        kept = np.arange(len(following))
        if dropped > -np.inf:
            place = np.concatenate([place, np.full((1, C), len(following))])
            weight = np.concatenate([weight, np.zeros((1, C))])
        if len(following) > beam:
            bounds = bounds_of(machine, scores, scale) if bounds is None else bounds
            summand = np.logaddexp.reduce(_plus(alpha, bounds(following, t + 1)), axis=1)
            order = np.argsort(-summand, kind="stable")
            dropped = max(float(np.logaddexp.reduce([dropped, *summand[order[beam:]]])), _LEAST)
            kept = np.sort(order[:beam])
        rank = np.full(len(following) + 1, len(kept))
        rank[kept] = np.arange(len(kept))
        arcs.append((rank[place], weight))
        states, alpha = following[kept], alpha[kept]
    final = machine.final[states]
    inside = np.isfinite(final)
    log_z = np.logaddexp.reduce((alpha[inside] + scale * final[inside, None]).ravel())
    truncated = merged(class_of, C, arcs, final if dropped == -np.inf else np.append(final, np.inf))
    if not np.isfinite(dropped):  # nothing was dropped, or what no bound is known of
        return truncated, 0.0 if dropped < 0 else 1.0
    return truncated, max(5e-324, float(np.exp(dropped - np.logaddexp(dropped, log_z))))


def _forward(alpha: Floats, level: Floats, added: Floats, place: Ints, states: int, H: int) -> Floats:
    """alpha of the next level, (states, rows)."""
    rows, K = level.shape
    following = min(H, rows * K)
    scores = alpha[:, :, None] + level[None] + added[:, None]  # (S, rows, K)
    history = (np.arange(rows)[:, None] * K + np.arange(K)) % H  # (rows, K)
    index = place[:, None] * following + history[None]
    top = np.full(states * following, -np.inf)
    np.maximum.at(top, index.ravel(), scores.ravel())
    shift = np.where(np.isfinite(top), top, 0.0)
    total = np.bincount(index.ravel(), np.exp(scores - shift[index]).ravel(), minlength=states * following)
    with np.errstate(divide="ignore"):
        return (np.log(total) + shift).reshape(states, following)


def bounds_of(machine: OpenAutomaton, scores: Scores, scale: float) -> Bounds:
    """Upper bounds of the sums over endings of exp(score + scale * loss to go), the smallest that are known."""

    def worst(m: OpenAutomaton, states: Ints, t: int, factor: float) -> Floats:
        """The most that factor * loss to go can be from these states on, (S,)."""
        least, most = m.losses_to_go(states, len(scores.level) - t)
        return np.zeros(len(states)) if factor == 0 else factor * (most if factor > 0 else least)

    def apart(states: Ints, t: int) -> Floats:
        """Scores and losses by themselves: beta(t, h) * exp(scale * loss to go)."""
        beta = scores.beta[t, : scores.rows[t]]
        return _plus(beta, worst(machine, states, t, scale)[:, None])

    if isinstance(machine, TropicalAutomaton):
        (T, H, _), tropical = scores.level.shape, machine
        endings = np.full((T + 1, H, len(machine.acceptor.start)), -np.inf)
        kernels.endings(machine.acceptor, machine.class_of, scores.level, scores.rows, scale, endings)

        def together(states: Ints, t: int) -> Floats:
            out = np.empty((len(states), scores.rows[t]))
            kernels.endings_of_states(tropical.entries, states, endings[t], scale, out)
            if scale < 0 and math.isfinite(tropical.cap):  # exp(scale * min(L, cap)) is at most the sum of both
                out = np.logaddexp(out, scores.beta[t, : scores.rows[t]] + scale * tropical.cap)
            return np.minimum(out, apart(states, t))

        return together
    if isinstance(machine, ScaledAutomaton):
        return bounds_of(machine.machine, scores, scale * machine.factor)
    if isinstance(machine, SumAutomaton):
        pairs, parts, factors = machine, machine.parts, [scale * f for f in machine.factors]
        of_parts = [bounds_of(m, scores, f) for m, f in zip(parts, factors, strict=True)]

        def by_parts(states: Ints, t: int) -> Floats:
            """The endings of either part, with the other part's worst loss to go."""
            result, own = apart(states, t), pairs.pairs[:, states]
            for i in (0, 1):
                other = worst(parts[1 - i], own[1 - i], t, factors[1 - i])
                result = np.minimum(result, _plus(of_parts[i](own[i], t), other[:, None]))
            return result

        return by_parts
    return apart


def _plus(a: Floats, b: Floats) -> Floats:
    """a + b, -inf where either is, whatever the other."""
    out = np.full(np.broadcast_shapes(a.shape, b.shape), -np.inf)
    np.add(a, b, out=out, where=(a > -np.inf) & (b > -np.inf))
    return out
