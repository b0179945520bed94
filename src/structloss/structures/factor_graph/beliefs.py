"""Sums of factor graphs by belief propagation, plain or tree-reweighted, in tensor operations.

With rho_f the weight of a factor (1 for all: the Bethe approximation, exact on trees; the probability that f is in a
random spanning forest: an upper bound of log Z), messages m from factors to variables and n from variables,

    n_v(x) = exp(theta_v(x)) times the product over f of m_fv(x)^rho_f
    m_fv(x) = sum over the other labels of f of exp(theta_f / rho_f) times the product over u of n_u / m_fu

in logarithms, and beliefs b_v = n_v / Z_v, b_f = exp(theta_f / rho_f) times the product over v of n_v / m_fv, over Z_f.
Where messages change no more, the sum of b theta, of rho_f H(b_f) and of (1 - sum over f of rho_f) H(b_v) is

    log Z ~ sum over f of rho_f log Z_f + sum over v of (1 - sum over f of rho_f) log Z_v.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.structures.derivatives import known
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.rows import Floats
from structloss.structures.tensors import wide

_FORESTS = 100  # orders of factors from which random spanning forests are grown
_MOST = 2_000  # rounds
_DAMPING = 0.3  # without it messages on loops may swing for ever


@functools.lru_cache(512)
def _shares(variables: int, slots: bytes, scope: bytes) -> Floats:
    """rho of each factor of one graph: the part of random spanning forests that it is in, at least one of each."""
    begin, flat = (np.frombuffer(x, np.int64).tolist() for x in (slots, scope))
    scopes = [flat[a:b] for a, b in itertools.pairwise(begin)]
    counts, forests, random = np.zeros(len(scopes)), 0, np.random.default_rng(0)
    while forests < _FORESTS or not counts.all():
        order, parent = random.permutation(len(scopes)), list(range(variables))
        if forests >= _FORESTS:  # those that no forest has come first
            order = order[np.argsort(counts[order] > 0, kind="stable")]
        for f in order.tolist():
            roots = set()
            for v in scopes[f]:
                while parent[v] != v:
                    parent[v] = v = parent[parent[v]]
                roots.add(v)
            if len(roots) == len(scopes[f]):  # not connected yet
                counts[f] += 1
                for v in roots:
                    parent[v] = min(roots)
        forests += 1
    return counts / forests


def propagate(p: Parts, tolerance: float, reweighted: bool) -> tuple[Tensor, Tensor]:
    """The value (B,), and the beliefs of labels and cells, flat as the scores are.

    Every round sends all messages of the examples where one of the last changed by the tolerance or more.
    """
    t, scores = p.topology, wide(p.scores.detach())
    low = torch.finfo(scores.dtype).min  # finite, so that -inf minus low is -inf
    zeros, lowest = scores.new_zeros, functools.partial(scores.new_full, fill_value=low)
    pieces = (np.repeat(np.arange(len(x) - 1), np.diff(x)) for x in (t.links.messages, t.begin))
    arrays = (*t.entries, *pieces, t.used_owner, t.graph.scope, len(t.sizes) + t.links.factor)
    label, message, cell, slot, item, owner, scope, factor = (torch.from_numpy(x).to(scores.device) for x in arrays)
    rho = torch.ones_like(owner, dtype=scores.dtype)  # of variables, 1, and of factors
    for b in range(p.batch if reweighted else 0):
        sizes, *graph = t.local(b)
        own = torch.from_numpy(_shares(len(sizes), *(x.tobytes() for x in graph)))
        rho[len(t.sizes) :][t.graph.factors[b] : t.graph.factors[b + 1]] = own
    theta, weight, example = scores / rho[item], rho[factor][slot], owner[factor][slot]

    def gathered(m: Tensor) -> tuple[Tensor, Tensor]:
        """log b_v and log b_f before they are normalised, flat as the scores are; and log n_v / m_fv."""
        total = theta.index_add(0, label, weight * m)
        answer = torch.where(m > -math.inf, total[label] - m, -math.inf)
        return total.index_add(0, cell, answer[message]), answer

    m, residual, rounds = zeros(len(label)), zeros(p.batch) + math.inf, 0
    while rounds < _MOST and (left := residual >= tolerance).any():
        total, answer = gathered(m)
        inside = total[cell]
        top = lowest(m.shape).scatter_reduce(0, message, inside, "amax")
        new = zeros(m.shape).index_add(0, message, (inside - top[message]).exp()).log() + (top - answer.clamp(low))
        new = new - lowest(factor.shape).scatter_reduce(0, slot, new, "amax")[slot]
        new = torch.where(left[example], _DAMPING * m + (1 - _DAMPING) * new, m)
        change = (new - m).abs().nan_to_num(0)  # where both are -inf
        m, residual, rounds = new, zeros(p.batch).scatter_reduce(0, example, change, "amax"), rounds + 1
    total, _ = gathered(m)
    top = lowest(rho.shape).scatter_reduce(0, item, total, "amax")
    possible = zeros(p.batch).scatter_reduce(0, owner, top, "amin") > low
    wrong = (residual > tolerance) & possible
    if wrong.any():
        b = int(wrong.int().argmax())
        raise RuntimeError(
            f"bp: the messages of example {b} still change by {residual[b]:.2g} after {_MOST} rounds; "
            f"a larger tolerance is reached sooner{'' if reweighted else ', and reweighted=True converges more often'}"
        )
    belief = (total - top[item]).exp()
    norm = zeros(rho.shape).index_add(0, item, belief)
    value = zeros(p.batch).index_add(0, owner, rho.index_add(0, scope, -rho[factor]) * (top + norm.log()))
    return torch.where(possible, value, -math.inf), torch.where(possible[owner][item], belief / norm[item], 0)


def log_partition(p: Parts, tolerance: float, reweighted: bool) -> Tensor:
    """The approximation of log Z, (B,). At a fixed point its gradient is the beliefs."""

    def solve(_: Sequence[Any], wanted: Sequence[bool]) -> tuple[Floats, list[NDArray[Any] | None]]:
        value, belief = (x.cpu().double().numpy() for x in propagate(p, tolerance, reweighted))
        return value, [belief]

    return known(solve, [p.scores.cpu()], torch.from_numpy(p.topology.owner)).to(p.scores.device)
