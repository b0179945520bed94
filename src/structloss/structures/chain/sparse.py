"""Expected edit distances of CTC to within a tolerance, with a bound of the error: see `kernels.sparse_ctc`."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from structloss.automata.pairs import ScaledAutomaton
from structloss.automata.tropical import TropicalAutomaton
from structloss.kernels import sparse_ctc
from structloss.kernels.sparse import NO_ROOM, EditCosts, EditMachine
from structloss.kernels.types import Array
from structloss.kernels.workers import map_in_threads
from structloss.losses import EditDistance
from structloss.losses.references import String
from structloss.structures.certified import Certified
from structloss.structures.chain.native_engine import raise_for
from structloss.structures.derivatives import known

LIMIT = 1000  # entries that are kept at a frame, whatever the tolerance is
STATES = 50_000  # of the machine of one reference


def certified(
    scores: Tensor, lengths: Sequence[int], blank: int, loss: EditDistance, references: Sequence[String],
    tolerance: float,
) -> Certified:  # fmt: skip
    """E[loss] (B,) from scores (B, T, C), its bounds, and how many entries a frame were kept."""
    batch = len(lengths)
    bounds, active = np.zeros(batch), np.zeros(batch)

    def solve(potentials: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array]]:
        (array,) = potentials
        assert array is not None
        value, status = np.zeros(batch), np.zeros(batch, np.int64)
        gradient = np.zeros(array.shape if wanted[0] else (batch, 0, 0), array.dtype)

        def one(b: int) -> None:
            value[b], bounds[b], entries, status[b] = _expected(
                array[b], lengths[b], blank, loss, references[b], tolerance, gradient[b]
            )
            active[b] = entries / max(1, lengths[b])

        map_in_threads(one, range(batch), torch.get_num_threads())
        raise_for(status)
        if bounds.max(initial=0.0) > tolerance * (1 + 1e-9):
            warnings.warn(
                f"tolerance: wanted {tolerance}, but the bound is {bounds.max():.2g}: the model is so unsure that more "
                "states matter than are kept; train on the likelihood first, or raise the tolerance",
                stacklevel=2,
            )
        bounds[:] += np.finfo(array.dtype).eps * np.abs(value)  # the value is rounded to the precision of the scores
        return value, [gradient]

    value = known(solve, [scores])
    return Certified(value, torch.from_numpy(bounds).to(scores.dtype), torch.from_numpy(active))


def _expected(
    scores: Array, length: int, blank: int, loss: EditDistance, reference: String, tolerance: float, gradient: Array
) -> tuple[float, float, int, int]:
    """Of one example: see the kernel. Its machine is kept, and known further each time."""
    machine, factor = loss.open(reference, scores.shape[1], absolute=False), 1.0
    if isinstance(machine, ScaledAutomaton):
        factor, machine = machine.factor, machine.machine
    assert isinstance(machine, TropicalAutomaton)
    with machine.held:
        costs, most = _costs(loss, machine), min(machine.max_states, STATES)
        while True:
            number = np.array([machine.num_states])
            arrays = EditMachine(
                machine.acceptor, machine.limits, machine.cap, machine.window, machine.absolute, machine.entries,
                machine.next_state, machine.weights, machine.final, machine.stop, most, number,
            )  # fmt: skip
            value, bound, active, status = sparse_ctc.expected(
                scores, length, blank, arrays, costs, tolerance / factor, LIMIT, gradient
            )
            machine.num_states = min(int(number[0]), len(machine.final))
            if status != NO_ROOM:
                gradient *= factor
                return factor * value, factor * bound, active, status
            machine.make_room()


def _costs(loss: EditDistance, machine: TropicalAutomaton) -> EditCosts:
    """What re-routing is paid by, from the acceptor: of each position an insertion, and but for the last one a pair."""
    n = len(machine.stop) - 1
    pairs = machine.acceptor.move_cost.reshape(-1, 2 * n + 1)[:, 1::2]  # (C, n)
    common = int(np.bincount(machine.class_of).argmax())
    apart = np.abs(pairs - pairs[common])
    differs = np.zeros((len(pairs), n + 2), np.int64)
    differs[:, 1 : n + 1] = np.cumsum(apart > 0, axis=1)
    differs[:, n + 1] = differs[:, n]
    return EditCosts(loss.insertion, loss.deletion, common, apart.max(1, initial=0.0), differs, machine.class_of)
