"""The loss machines of a batch on a device: compiled on the CPU, moved there once each, and laid side by side there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.kernels.machines import turned
from structloss.losses.moved import MOVED
from structloss.structures.chain.machines import MachineBatch
from structloss.structures.tensors import moved


class DeviceMachines(NamedTuple):
    """What the kernels of `kernels.triton.chain` read. C symbol classes, S states of a level at most."""

    class_of: Tensor  # (B, K)
    next_state: Tensor  # flat; of state s and class c at level t: arc_begins[b, t] + c * sizes[b, t] + s
    arc_begins: Tensor  # (B, T + 1)
    sizes: Tensor  # (B, T + 1)
    before: Tensor  # flat, by example, level, class and next state: the states that arcs come from
    before_begin: Tensor  # flat, where each of these places begins, counted from the example's first arc
    place_begins: Tensor  # (B, T), where the places of a level begin
    degrees: Tensor  # (B, T), the most arcs of a place
    weight: Tensor  # flat, of arcs, with scale 1; of size 0 where all weights are 0
    final: Tensor  # (B, F), with scale 1; inf where a string is outside
    most_states: int

    def scaled(self, scale: float) -> tuple[Tensor, Tensor]:
        """The weights of arcs and of ends times scale, -inf where a string is outside."""
        outside = self.final.isinf()
        final = torch.where(outside, -torch.inf, scale * torch.where(outside, 0.0, self.final))
        return (self.weight if scale == 1.0 else scale * self.weight), final


def on_device(batch: MachineBatch, device: torch.device) -> DeviceMachines:
    """The batch's machines there; asked for again, the same tensors."""
    key = str(device)
    if key not in batch.moved:
        batch.moved[key] = _laid_out(batch.automata, batch.positions, device)
    found: DeviceMachines = batch.moved[key]
    return found


def _moved(machine: LossAutomaton, device: torch.device) -> Sequence[Tensor]:
    """next_state, before, before_begin, degrees and the weights of one machine."""

    def make() -> Sequence[Tensor]:
        (next_state, weights), sizes, C = machine.by_class, machine.sizes, machine.next_state.shape[1]
        arcs, places = machine.num_arcs, int(sizes[1:].sum()) * C
        before, begin, degrees = (np.zeros(n, np.int32) for n in (arcs, places + 1, machine.length))
        turned(next_state[:arcs], sizes, C, before, begin, degrees)
        arrays = (next_state[:arcs], before, begin, degrees, weights[:arcs])
        return [moved(x, device) for x in arrays]

    return MOVED.get(machine, str(device), make)


def _laid_out(machines: Sequence[LossAutomaton], positions: int, device: torch.device) -> DeviceMachines:
    """The large tables are put together on the device, the small ones here."""
    batch = len(machines)
    most = [max(1, int(m.sizes.max())) for m in machines]
    arc_begins, place_begins = np.zeros((batch, positions + 1), np.int64), np.zeros((batch, positions), np.int64)
    sizes = np.ones((batch, positions + 1), np.int32)
    final = np.full((batch, max([1, *(len(m.last) for m in machines)])), np.inf)
    class_of = np.stack([m.class_of for m in machines]).astype(np.int32)
    arcs, places = 0, 0
    for b, m in enumerate(machines):
        C, length = m.next_state.shape[1], m.length
        sizes[b, : length + 1] = m.sizes
        arc_begins[b, : length + 1] = arcs + C * m.offsets[:-1]
        place_begins[b, :length] = places + C * (m.offsets[1:-1] - m.offsets[1])
        final[b, : len(m.last)] = m.last
        arcs, places = arcs + m.num_arcs, places + C * int(m.sizes[1:].sum()) + 1
    next_state, before, before_begin, degrees, weights = zip(*(_moved(m, device) for m in machines), strict=True)
    if any(x.numel() for x in weights):
        weights = tuple(
            x if x.numel() == n.numel() else x.new_zeros(n.numel()) for x, n in zip(weights, next_state, strict=True)
        )
    small = (moved(x, device) for x in (class_of, arc_begins, sizes, place_begins, final))
    on_class, on_arcs, on_sizes, on_places, on_final = small
    padded = torch.nn.utils.rnn.pad_sequence([*degrees, degrees[0].new_zeros(positions)], batch_first=True)[:-1]
    return DeviceMachines(
        on_class, torch.cat(next_state), on_arcs, on_sizes, torch.cat(before), torch.cat(before_begin), on_places,
        padded, torch.cat(weights), on_final, max(most),
    )  # fmt: skip
