"""Expected edit distances to within a tolerance, with a bound of the error: `kernels.sparse_ctc`, `sparse_graph`."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from structloss.automata.pairs import unscaled
from structloss.automata.tropical import TropicalAutomaton
from structloss.automata.words import WordAutomaton, alone
from structloss.kernels.prices import Prices
from structloss.kernels.types import Array
from structloss.kernels.words import WordMachine
from structloss.kernels.workers import map_in_threads
from structloss.losses import EditDistance, Loss, WordErrors
from structloss.losses.references import String
from structloss.structures.certified import Certified
from structloss.structures.chain.native_engine import raise_for
from structloss.structures.checks import check_tolerance
from structloss.structures.derivatives import known

LIMIT = 1000  # entries that are kept at a step, whatever the tolerance is
STATES = 50_000  # of the machine of one reference

# From the scores, the number of an example, its machine, prices, the tolerance and the limit: the value, its bound, how
# many entries were kept in all, and a status. The last argument is the gradient of that example, to be written.
Walk = Callable[[Array, int, WordMachine, Prices, float, int, Array], tuple[float, float, int, int]]


def check(loss: Loss, tolerance: float, native: bool, plain: bool, name: str) -> EditDistance | WordErrors:
    """The loss; raise unless the proof of the bound covers it, on a structure that is `plain`."""
    if check_tolerance(tolerance) == 0.0:
        raise ValueError("tolerance: got 0, but wanted a number above 0; expected() has the risk exactly")
    if not isinstance(loss, EditDistance | WordErrors) or type(loss) not in (EditDistance, WordErrors):
        raise NotImplementedError(f"tolerance: got {loss!r}, but only EditDistance and WordErrors take one")
    if not native:
        raise NotImplementedError("tolerance: the torch engine has the risk exactly; only the native one takes one")
    if isinstance(loss, EditDistance):
        _check_costs(loss)
    if not plain:
        raise NotImplementedError(f"tolerance: this {name} is augmented or restricted, but only a plain one takes one")
    return loss


def _check_costs(loss: EditDistance) -> None:
    if loss.affine:
        raise NotImplementedError("tolerance: got gap_open and gap_extend, but wanted insertion and deletion")
    if loss.threshold is not None:
        raise NotImplementedError("tolerance: got a threshold, but the risk of what is left out is inf; wanted a cap")
    if loss.band is not None:
        raise NotImplementedError("tolerance: got a band, but states are made only where they matter; wanted a window")
    if np.min(loss.substitution) < 0:
        raise NotImplementedError("tolerance: got substitution costs below 0, but wanted costs of at least 0")


def certified(
    scores: Tensor, parts: Sequence[slice | int], steps: Sequence[int], walk: Walk, loss: EditDistance | WordErrors,
    references: Sequence[String], num_labels: int, tolerance: float, dtype: torch.dtype, owner: Tensor | None = None,
) -> Certified:  # fmt: skip
    """E[loss] (B,), its bounds, and how many entries were kept a step, of which each example has so many.

    scores[parts[b]] are those of example b; `owner` as for `known`; dtype: of the value and its bounds.
    """
    batch = len(parts)
    bounds, active = np.zeros(batch), np.zeros(batch)

    def solve(potentials: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array]]:
        (array,) = potentials
        assert array is not None
        value, status = np.zeros(batch), np.zeros(batch, np.int64)
        gradient = np.zeros(array.shape if wanted[0] else 0, array.dtype)

        def one(b: int) -> None:
            own = gradient[parts[b]] if wanted[0] else np.zeros((0,) * array[parts[b]].ndim, array.dtype)
            value[b], bounds[b], entries, status[b] = _expected(
                partial(walk, array, b), loss, references[b], num_labels, tolerance, own
            )
            active[b] = entries / max(1, steps[b])

        map_in_threads(one, range(batch), torch.get_num_threads())
        raise_for(status)
        if bounds.max(initial=0.0) > tolerance * (1 + 1e-9):
            warnings.warn(
                f"tolerance: wanted {tolerance}, but the bound is {bounds.max():.2g}: the model is so unsure that more "
                "states matter than are kept; train on the likelihood first, or raise the tolerance",
                stacklevel=2,
            )
        bounds[:] += torch.finfo(dtype).eps * np.abs(value)  # the value is rounded
        return value, [gradient]

    value = known(solve, [scores], owner).to(dtype)
    return Certified(value, torch.from_numpy(bounds).to(dtype), torch.from_numpy(active))


def _expected(
    walk: Callable[[WordMachine, Prices, float, int, Array], tuple[float, float, int, int]],
    loss: EditDistance | WordErrors, reference: String, num_labels: int, tolerance: float, gradient: Array,
) -> tuple[float, float, int, int]:  # fmt: skip
    """Of one example: see the kernels. Its machine is kept, and known further each time."""
    machine, factor = unscaled(loss.open(reference, num_labels, absolute=False))
    assert isinstance(machine, TropicalAutomaton | WordAutomaton)
    with machine.held:
        prices = _prices(loss, machine)
        while True:
            most = min(machine.max_states, STATES)
            arrays = machine.arrays(most) if isinstance(machine, WordAutomaton) else alone(machine.arrays(most))
            value, bound, active, status = walk(arrays, prices, tolerance / factor, LIMIT, gradient)
            if isinstance(machine, WordAutomaton):
                machine.take(arrays)
            else:
                machine.take(arrays.rows)
            if not machine.make_room(status):
                gradient *= factor
                return factor * value, factor * bound, active, status


def _prices(loss: EditDistance | WordErrors, machine: TropicalAutomaton | WordAutomaton) -> Prices:
    if isinstance(machine, WordAutomaton):
        assert isinstance(loss, WordErrors)
        return _of_words(loss.words, machine)
    assert isinstance(loss, EditDistance)
    return _of_labels(loss, machine)


def _of_labels(loss: EditDistance, machine: TropicalAutomaton) -> Prices:
    """From the acceptor: of each position an insertion, and but for the last one a pair."""
    n, repeat = len(machine.stop) - 1, max(loss.insertion, loss.deletion)
    pairs = machine.acceptor.move_cost.reshape(-1, 2 * n + 1)[:, 1::2]  # (C, n)
    common = int(np.bincount(machine.class_of).argmax())
    apart = np.abs(pairs - pairs[common])
    differs = np.zeros((len(pairs), n + 2), np.int64)
    differs[:, 1 : n + 1] = np.cumsum(apart > 0, axis=1)
    differs[:, n + 1] = differs[:, n]
    wrong = apart.max(1, initial=0.0)[machine.class_of]
    again, none = np.full(len(machine.class_of), repeat), np.zeros(len(machine.class_of), np.int64)
    return Prices(
        loss.insertion, loss.deletion, 0.0, common, machine.class_of, wrong, again, again, none, repeat, differs
    )


def _of_words(loss: EditDistance, machine: WordAutomaton) -> Prices:
    """From what classes spell: see docs/guide/sparse.md."""
    assert isinstance(loss.substitution, float)
    trie, most, K = machine.trie, max(loss.insertion, loss.deletion), machine.class_of
    wrong_word = min(loss.substitution, loss.insertion + loss.deletion)
    # whole words between boundaries, and whether the ends of a label that is repeated make another one
    inside, joined = np.diff(trie.begin)[trie.between], (trie.column != 1) | (trie.last != 0)
    crosses, silent = trie.crosses > 0, trie.column == 1
    ignored = max(wrong_word, most)
    wrong = np.where(crosses, wrong_word + most * (1 + inside), np.where(silent, ignored, wrong_word))
    repeat = np.where(crosses, most * (inside + joined), np.where(silent, 0.0, wrong_word))
    return Prices(
        loss.insertion, loss.deletion, wrong_word, trie.common, K, wrong[K].astype(float), np.zeros(len(K)), repeat[K],
        1 - trie.crosses[K], ignored, np.zeros((0, 0), np.int64),
    )  # fmt: skip
