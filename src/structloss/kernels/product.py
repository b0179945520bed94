"""A chain times a loss machine: what every kernel on augmented chains reads.

The product's states at level t are pairs of a machine state s and a history h (see `levels`); label y leads from (s, h)
to (next(s, class of y), (h * K + y) mod H) and scores what the chain gives it plus scale times the machine's weight.
Since the machine is deterministic, every output has one path, and its score is the chain's plus scale times the loss.
"""

from typing import NamedTuple

from structloss.kernels.compile import kernel
from structloss.kernels.types import Array, Ints


class Machines(NamedTuple):
    """A batch of levelled deterministic machines, one for each example, as long as its output."""

    class_of: Ints  # (B, K), the symbol class of each label
    num_classes: Ints  # (B,)
    next_state: Ints  # flat; of state s and class c at level t: entry arc_begin[b, t] + c * sizes[b, t] + s
    weight: Array  # flat likewise: scale times the machine's weight; of size 0 where all weights are
    arc_begin: Ints  # (B, T + 1)
    sizes: Ints  # (B, T + 1), how many states a level has
    final: Array  # flat: scale times the final weight of the states of the last level, -inf where none may end
    final_begin: Ints  # (B,)


@kernel
def state_offsets(m: Machines, b: int, length: int, out: Ints) -> int:
    """out[t] = where the states of level t begin when all levels stand in one array. Returns how many there are."""
    total = 0
    for t in range(length + 1):
        out[t] = total
        total += m.sizes[b, t]
    return total


@kernel
def weight_at(weight: Array, arc: int) -> float:
    """The weight of an arc."""
    return float(weight[arc]) if weight.size else 0.0


@kernel
def walk(m: Machines, lengths: Ints, y: Ints, out: Array) -> None:
    """out (n, B) = the total weight of the machine's path for each output y (n, B, T)."""
    for n in range(y.shape[0]):
        for b in range(y.shape[1]):
            total, s = 0.0, 0
            for t in range(lengths[b]):
                arc = m.arc_begin[b, t] + m.class_of[b, y[n, b, t]] * m.sizes[b, t] + s
                total += weight_at(m.weight, arc)
                s = m.next_state[arc]
            out[n, b] = total + m.final[m.final_begin[b] + s]


@kernel
def unpack(
    m: Machines, lengths: Ints, weight: Array, final: Array, next_out: Ints, weight_out: Array, final_out: Array
) -> None:
    """The machines as padded arrays: next and weight by label (B, T, S, K), final (B, S); padding stays as it was."""
    for b in range(lengths.shape[0]):
        for t in range(lengths[b]):
            for s in range(m.sizes[b, t]):
                for y in range(m.class_of.shape[1]):
                    arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                    next_out[b, t, s, y] = m.next_state[arc]
                    weight_out[b, t, s, y] = weight_at(weight, arc)
        for s in range(m.sizes[b, lengths[b]]):
            final_out[b, s] = final[m.final_begin[b] + s]
