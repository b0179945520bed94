"""Chain: label sequences, scored by every q labels in a row. The usual CRF is the chain of order 2."""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.references import Labels, as_positions
from structloss.structures import sparse
from structloss.structures.certified import Certified
from structloss.structures.chain import paths
from structloss.structures.chain.beam import truncated
from structloss.structures.chain.linear import LinearChain
from structloss.structures.chain.machines import Augmentation, MachineBatch
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.writers import Emits
from structloss.structures.checks import at_least_float32, check_count, check_floating, check_scale


class Chain(LinearChain):
    r"""A batch of linear chains of order q over K labels.

    The outputs are all label sequences y of an example's length l, and (Cortes 2018, section 2.1)

    .. math:: \text{score}(y) = \sum_{t=1}^{l} \text{potentials}[t, y_{t-q+1}, \ldots, y_t]

    Order 1 is independent labels, order 2 the usual linear-chain CRF. Before the first position history axes take
    index 0. Sums and maxima cost l * K**q.

    Args:
        potentials: floating-point (B, T, K, ..., K) with q label axes, oldest label first. -inf forbids.
        lengths: integers (B,) in any order, 0 to T, or a mask (B, T), which may have gaps: a position outside it is
            skipped, and its neighbours are neighbours; by default T. What stands outside never matters.
        emits: for each of the K labels, now called states, the labels that it writes: none, one or several. The chain
            is then latent (McAllester 2010, section 5): its outputs are still paths of states, but losses and
            references are about what they write, and `given(reference)` is all the paths that write it.

    Outputs are int64 (B, T), -1 beyond a length and outside a mask when they come from here. `marginals()` is the
    probability of every q labels in a row, (B, T, K, ..., K), zero there; before the first position history axes have
    index 0; sum over them for the marginals of single labels. `s.augment(L, r).marginals()` is Cortes 2018's
    :math:`Q_w(z, s)`. bfloat16 and float16 are computed and returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> chain = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]]))  # order 1: B = 1, T = 2, K = 2
        >>> chain.argmax(), chain.max()
        (tensor([[1, 0]]), tensor([3.]))
        >>> chain.log_partition()
        tensor([3.4402])
        >>> latent = sl.Chain(torch.zeros(1, 3, 4), emits=[[], [0], [1], [0, 1]])
        >>> latent.given([[0, 1]]).log_partition()  # log 6: paths of three states that write 0 1
        tensor([1.7918])
    """

    def __init__(
        self,
        potentials: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        emits: Sequence[Sequence[int]] | None = None,
    ) -> None:
        check_floating(potentials, "potentials")
        order = potentials.dim() - 2
        shape = tuple(potentials.shape)
        if order < 1 or len(set(shape[2:])) != 1 or shape[-1] == 0:
            raise ValueError(
                f"potentials: got shape {shape}, but wanted (B, T, K), (B, T, K, K), ... with K at least 1"
            )
        potentials = at_least_float32(potentials)
        self._positions = as_positions(lengths, shape[0], shape[1], potentials.device)
        potentials, own = self._positions.compact(potentials), self._positions.lengths
        writer = None if emits is None else Emits.checked(emits, shape[-1])
        table = None if order == 1 else potentials.reshape(*shape[:2], shape[-1] ** (order - 1), shape[-1])
        unary = potentials if table is None else None
        self._parts = Parts(unary, table, None, None, own, None, order, writer=writer)

    @classmethod
    def from_emissions(
        cls,
        emissions: Tensor,
        transitions: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        emits: Sequence[Sequence[int]] | None = None,
    ) -> Self:
        r"""The CRF layer: scores of labels and of transitions, without an array (B, T, K, K).

        .. math:: \text{score}(y) = \text{start}[y_1] + \sum_t \text{emissions}[t, y_t]
                  + \sum_{t \ge q} \text{transitions}[y_{t-q+1}, \ldots, y_t] + \text{end}[y_l]

        Args:
            emissions: (B, T, K).
            transitions: (K, K), from row to column; (K, ..., K) with q axes, oldest label first, makes a chain of order
                q, its transitions counted where all q labels exist; None makes one of order 1.
            start, end: (K,), of the first and of the last label.
            lengths, emits: as for `Chain`.

        Example:
            >>> import torch, structloss as sl
            >>> stay = torch.tensor([[1., 0.], [0., 1.]])
            >>> sl.Chain.from_emissions(torch.tensor([[[0., 0.5], [1., 0.], [1., 0.]]]), stay).argmax()
            tensor([[0, 0, 0]])
        """
        check_floating(emissions, "emissions")
        if emissions.dim() != 3 or emissions.shape[2] == 0:
            raise ValueError(f"emissions: got shape {tuple(emissions.shape)}, but wanted (B, T, K) with K at least 1")
        emissions = at_least_float32(emissions)
        batch, positions, K = emissions.shape

        def alike(x: Tensor | None, name: str) -> Tensor | None:
            if x is None:
                return None
            if x.dtype == emissions.dtype and x.device == emissions.device and x.shape == (K,):
                return x
            check_floating(x, name)
            if x.dim() == 0 or set(x.shape) != {K} or (name != "transitions" and x.dim() != 1):
                wanted = f"({K}, ..., {K})" if name == "transitions" else f"({K},)"
                raise ValueError(
                    f"{name}: got shape {tuple(x.shape)}, but wanted {wanted}, as emissions have {K} labels"
                )
            if x.device != emissions.device:
                raise ValueError(f"{name}: got device {x.device}, but the emissions are on {emissions.device}")
            return x.to(emissions.dtype)

        transitions = alike(transitions, "transitions")
        order = 1 if transitions is None else transitions.dim()
        if transitions is not None and order == 1:
            raise ValueError(f"transitions: got shape {tuple(transitions.shape)}, but wanted ({K}, {K}) or more axes")
        table = None if transitions is None else transitions.reshape(-1, K)
        chain = cls.__new__(cls)
        chain._positions = as_positions(lengths, batch, positions, emissions.device)
        scores = (chain._positions.compact(emissions), table, alike(start, "start"), alike(end, "end"))
        writer = None if emits is None else Emits.checked(emits, K)
        chain._parts = Parts(*scores, chain._positions.lengths, None, order, writer=writer)
        return chain

    @property
    def order(self) -> int:
        """How many labels in a row a potential sees, q."""
        return self._parts.order

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0, beam: int | None = None) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(what y writes, reference). It is a Chain again.

        Args:
            loss, reference, scale: as `LinearChain.augment` has them.
            beam: keep at most so many machine states a position, those that matter most to the sum: see `error_bound`
                for what that can have cost. For losses and lengths whose exact machine is too large.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(1, 2, 2)).augment(sl.Hamming(), torch.tensor([[0, 1]])).argmax()
            tensor([[1, 0]])
        """
        if beam is None:
            return super().augment(loss, reference, scale)
        check_count(beam, "beam")
        check_scale(scale)
        p = self._parts
        if p.writer is not None:
            raise NotImplementedError("beam: a chain whose states emit has no bound of its endings yet; use a cap")
        if p.machine is not None:
            raise NotImplementedError("beam: this chain carries a loss already; add the losses up and augment once")
        if not isinstance(loss, MachineLoss | LocalLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a chain can carry, such as EditDistance()")
        automata = [loss.open(string, self.num_labels, absolute=False) for string in self._references(reference)]
        machines, bounds = truncated(p, automata, scale, beam)
        machine = Augmentation(MachineBatch.of(machines, p.num_positions), scale)
        above = torch.from_numpy(np.minimum(1.0, bounds * (1 + 1e-6)))  # so that float32 does not round it below
        return self._like(p.replace(machine=machine, error_bound=above.to(p.any_potential)))

    def certified(self, loss: Loss, reference: Labels, tolerance: float) -> Certified:
        """E[loss of what is written] to within a tolerance, and the bound that was reached: see `CTC.certified`.

        Cost: l * K**q, and the machine states that matter at a position and history, times the labels that are likely.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain((9 * torch.eye(3)[[1, 0, 2, 2]])[None])
            >>> found = chain.certified(sl.EditDistance(window=3), [[1, 0, 2, 1]], tolerance=1e-3)
            >>> found.value, bool(found.error_bound <= 1e-3)
            (tensor([1.0002]), True)
        """
        p = self._parts
        loss = sparse.check(loss, tolerance, self._native, p.machine is None, "chain")
        return paths.certified(p, loss, self._references(reference), self._num_written, tolerance)

    @property
    def error_bound(self) -> Tensor:
        r"""An upper bound of the relative error of Z, (B,); where it is 0, everything is exact.

        For a chain augmented with a `beam`, :math:`(Z - Z') / Z`, where Z' is the sum over the outputs that kept to the
        beam. The same bound holds for the error of every marginal. `structloss.structures.chain.beam` has the proof.
        1, which says nothing, for what is derived from such a chain.

        Example:
            >>> import torch, structloss as sl
            >>> chain, reference = sl.Chain(torch.zeros(1, 6, 3)), [[0, 1, 2, 0, 1, 2]]
            >>> chain.augment(sl.EditDistance(), reference, beam=100).error_bound
            tensor([0.])
            >>> chain.augment(sl.EditDistance(), reference, beam=20).error_bound
            tensor([0.5005])
        """
        bound = self._parts.error_bound
        return self._parts.any_potential.new_zeros(self._parts.lengths.shape[0]) if bound is None else bound
