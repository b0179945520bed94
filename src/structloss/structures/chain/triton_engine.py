"""The chain by Triton kernels: sums, marginals, expectations and the best output; first derivatives.

Values are float64 sums of what each level was divided by; within a level numbers are float32, or float64 for potentials
of float64. NaN and +inf are not looked for, which would make the host wait for the device: they make a value NaN, and
an argmax none. What there is no kernel for the torch engine does: several best outputs, draws, scores of outputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from structloss.automata.automaton import MAX_STATES
from structloss.automata.pairs import pair
from structloss.structures.base import Found
from structloss.structures.chain import torch_engine
from structloss.structures.chain.device_machines import DeviceMachines, on_device
from structloss.structures.chain.machines import Augmentation, MachineBatch
from structloss.structures.chain.native_engine import alike
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.triton_ops import chain_best, chain_gradient, chain_sum

OPERATIONS = frozenset(("log_partition", "marginals", "expectation", "argmax"))  # what there are kernels for
MOST_LABELS = 8192  # that a program holds at once


def covers(p: Parts) -> bool:
    """Whether the kernels are for chains of this size."""
    return p.num_labels <= MOST_LABELS and p.lengths.shape[0] > 0


def _tables(m: DeviceMachines, scale: float) -> list[Tensor]:
    """A machine as the operators take it."""
    weight, final = m.scaled(scale)
    return [
        m.class_of, m.next_state, m.arc_begins, m.sizes, m.before, m.before_begin, m.place_begins, m.degrees, weight,
        final,
    ]  # fmt: skip


def _machine(p: Parts) -> tuple[list[Tensor], int]:
    """What augments p, and how many states it has at most."""
    if p.machine is None:
        return [], 1
    m = on_device(p.machine.batch, p.lengths.device)
    return _tables(m, p.machine.scale), m.most_states


def _followed(*potentials: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in potentials)


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    if not covers(p):
        return torch_engine.log_partition(p)
    unary, (machine, states) = p.unaries, _machine(p)
    found = chain_sum(
        unary, p.table, None, None, p.lengths, machine, p.order, states, _followed(unary, p.table)
    )  # fmt: skip
    value: Tensor = found[0]
    return value.to(unary.dtype)


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K)."""
    if not covers(p):
        return torch_engine.marginals(p)
    unary, (machine, states) = p.unaries, _machine(p)
    whole = (p.lengths, machine)
    kept = chain_sum(unary, p.table, None, None, *whole, p.order, states, True)[2:]
    ones = unary.new_ones(len(p.lengths), dtype=torch.float64)
    of_labels, of_arcs = chain_gradient(
        ones, unary, p.table, None, None, *whole, kept, p.order, states, 0 if p.table is None else 2
    )  # fmt: skip
    found: Tensor = of_labels[:, :, None] if p.table is None else of_arcs
    return found


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p; 0 where p has no output, -inf where p uses what is -inf under f. (B,)"""
    if not covers(p):
        return torch_engine.expectation(p, f)
    p, f = alike(p, f)
    unary, dunary, (machine, states) = p.unaries, f.unaries, _both(p, f)
    keep = _followed(unary, p.table, dunary, f.table)
    value, mean, *_ = chain_sum(unary, p.table, dunary, f.table, p.lengths, machine, p.order, states, keep)
    mean = torch.where(mean == -torch.inf, -torch.inf, mean)  # without a gradient
    return torch.where(value == -torch.inf, 0, mean).to(unary.dtype)


def _both(p: Parts, f: Parts) -> tuple[list[Tensor], int]:
    """One machine that runs what augments both, with the weights of each."""
    a, b, device = p.machine, f.machine, p.lengths.device
    own = b if a is None else a
    if own is None:
        return [], 1
    if a is not None and b is not None and a.batch is not b.batch:
        pairs = [pair(x, y, MAX_STATES) for x, y in zip(a.batch.automata, b.batch.automata, strict=True)]
        own = a = Augmentation(MachineBatch.of([x.first for x in pairs], a.batch.positions), a.scale)
        b = Augmentation(MachineBatch.of([x.second for x in pairs], b.batch.positions), b.scale)
    m = on_device(own.batch, device)
    first, second = ((None, None) if x is None else on_device(x.batch, device).scaled(x.scale) for x in (a, b))
    return _weighed(m, first, second), m.most_states


def _weighed(m: DeviceMachines, *both: Sequence[Tensor | None]) -> list[Tensor]:
    """A machine with two weights of each arc and each end; None: zeros. An end that is none stays none."""
    weights, finals = zip(*both, strict=True)
    arcs = max(0 if x is None else x.numel() for x in weights)
    filled = [m.weight.new_zeros(arcs) if x is None or x.numel() != arcs else x for x in weights]
    ends = [torch.zeros_like(m.final) if x is None else x for x in finals]
    there = m.final.new_zeros(m.final.shape) if both[0][1] is None else ends[0]
    tables = _tables(m, 1.0)[:-2]
    return [*tables, filled[0], there, filled[1], ends[1]]


def best(p: Parts, k: int) -> Found:
    """The best output (1, B, T) and whether there is any; several are the torch engine's."""
    if k > 1 or not covers(p):
        return torch_engine.best(p, k)
    unary, (machine, states) = p.unaries, _machine(p)
    value, labels = chain_best(unary, p.table, p.lengths, machine, p.order, states)
    return Found(labels[None], (value > -torch.inf)[None])


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """n outputs (n, B, T): the torch engine's."""
    return torch_engine.draw(p, n, generator)
