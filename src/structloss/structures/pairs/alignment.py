"""Alignment: who pairs with whom in two sequences, with affine gaps, globally or locally."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.losses.references import UNKNOWN, Labels, Positions, as_aligned, as_lengths, as_rows, is_sets
from structloss.structures.base import Strata
from structloss.structures.checks import check_over, check_scale, check_shape
from structloss.structures.kinds import Parted
from structloss.structures.pairs import native_engine, torch_engine
from structloss.structures.pairs.parts import Parts
from structloss.structures.scores import as_scores, sizes_of
from structloss.structures.strata import levels_of
from structloss.structures.tensors import wide

Gap = float | Tensor
Lengths = Tensor | Sequence[int] | None
_AXES = {"match": "BNM", "gap_open[0]": "BN", "gap_extend[0]": "BN", "gap_open[1]": "BM", "gap_extend[1]": "BM"}


class Alignment(Parted):
    r"""A batch of pairs of sequences x and y, aligned: monotone sets of pairs (i, j), gaps scored affinely.

    The outputs are, for each position i of x, its partner in y or -1: partners grow. A *gap* is a longest run of
    unpaired positions of one sequence between two pairs; one of k positions scores open + (k - 1) * extend, where the
    scores are those of the positions themselves, if these differ:

    .. math:: \text{score} = \sum_{(i, j)} \text{match}[i, j] + \sum_{\text{gaps}} \Big( \text{open}[i_1]
              + \sum_{i \in i_2 \ldots i_k} \text{extend}[i] \Big)

    These are scores: to penalise a gap is to give it a negative one. A gap may follow a gap in the other sequence, and
    each of them is opened. Which of the two comes first makes no difference to the score, and is no difference between
    outputs: the pairs alone are the alignment, and a sum counts each alignment once. (A path through a grid would be
    counted once for every order of such gaps.)

    `mode="global"` (Needleman and Wunsch): all of x and y, gaps at both ends too. `mode="local"` (Smith and Waterman):
    what lies before the first pair and after the last scores nothing, and the alignment without a pair scores 0. A
    local alignment is its pairs as well: -1 is outside of the stretch before the first partner and after the last, and
    a gap between them.

    Sums and maxima cost B * N * M; k best k * N * M at most, after that. The native engine computes sums and gradients
    on the CPU, the torch engine sums by anti-diagonals on any device; searches and draws are compiled, on the CPU.

    Args:
        match: floating-point (B, N, M), of x_i and y_j being a pair. -inf forbids, here and below.
        gap_open: of the first position of a gap: a number, a tensor () that may be learned, or two of these or tensors,
            (B, N) for gaps of unpaired positions of x and (B, M) for y.
        gap_extend: of each further position, likewise; by default as `gap_open`, which makes gaps linear.
        mode: "global" or "local".
        lengths: of x and of y: two tensors of integers (B,), or two boolean masks (B, N) and (B, M); by default all.

    Outputs are int64 (B, N). A reference is the same, or a list of each example's; -100 is unknown, and -1 says that a
    position has no partner, at the end of a row too; booleans (B, N, M + 1) say which partners each position may have,
    none being the last. `decode` gives them as lists. `marginals()` is the probability of each pair, (B, N, M), the
    soft alignment. bfloat16 and float16 are computed and returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> match = torch.tensor([[[2., 0., 0.], [0., 0., 2.]]])  # B = 1, N = 2, M = 3
        >>> alignment = sl.Alignment(match, gap_open=-1., gap_extend=-0.5)
        >>> alignment.argmax(), alignment.max()
        (tensor([[0, 2]]), tensor([3.]))
        >>> alignment.log_partition()  # of ten alignments
        tensor([3.2969])
        >>> alignment.augment(sl.PairErrors(), [[0, -1]], scale=-4.).argmax()
        tensor([[ 0, -1]])
    """

    _parts: Parts
    _engines = native_engine, torch_engine
    _only_native = frozenset(("argmax", "topk", "sample"))

    def __init__(
        self,
        match: Tensor,
        gap_open: Gap | tuple[Gap, Gap],
        gap_extend: Gap | tuple[Gap, Gap] | None = None,
        mode: Literal["global", "local"] = "global",
        lengths: tuple[Lengths, Lengths] = (None, None),
    ) -> None:
        if mode not in ("global", "local"):
            raise ValueError(f'mode: got {mode!r}, but wanted "global" or "local"')
        sizes = sizes_of({"match": match}, _AXES, "BNM")
        batch, N, M, device = *(sizes[axis] for axis in "BNM"), match.device
        if not isinstance(lengths, tuple | list) or len(lengths) != 2:
            raise ValueError(f"lengths: got {lengths!r:.60}, but wanted two of them, of x and of y")
        n, m = (
            as_lengths(own, batch, width, device, f"lengths[{i}]")
            for i, (own, width) in enumerate(zip(lengths, (N, M), strict=True))
        )
        given = {"match": match}
        for name, gaps in (("gap_open", gap_open), ("gap_extend", gap_open if gap_extend is None else gap_extend)):
            given |= _gaps(name, gaps, match)
        sizes = sizes_of(given, _AXES, "BNM")
        x, y = torch.arange(N, device=device) < n[:, None], torch.arange(M, device=device) < m[:, None]
        within = {name: x if axes == "BN" else y for name, axes in _AXES.items()} | {
            "match": x[:, :, None] & y[:, None]
        }
        own = list(as_scores(given, _AXES, sizes, within).values())
        constant, must = own[0].new_zeros(batch, 1), torch.zeros_like(x)
        self._parts = Parts(own[0], own[1], own[2], own[3], own[4], constant, n, m, must, mode == "local")

    @property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """Of x and of y, (B,) each."""
        return self._parts.lengths, self._parts.m

    def _sizes(self) -> dict[str, object]:
        _, N, M = self._parts.match.shape
        return {"x": N, "y": M, "mode": "local" if self._parts.local else "global"}

    def _choices(self, y: Tensor, name: str) -> Tensor:
        p = self._parts
        check_shape(y, tuple(p.match.shape[:2]), name)
        y = torch.where(self._within, y, -1)
        self._check_partners(y, y < -1, name, "-1 for none")
        return y

    @property
    def _within(self) -> Tensor:
        """Which positions of x there are, (B, N)."""
        within: Tensor = torch.arange(self._parts.match.shape[1], device=self.device) < self._parts.lengths[:, None]
        return within

    def _check_partners(self, y: Tensor, wrong: Tensor, name: str, rest: str) -> None:
        """Raise where partners (..., B, N) are wrong, do not grow, or are beyond the length of y."""
        latest = y.clamp(min=-1).cummax(-1).values
        before = torch.cat([torch.full_like(latest[..., :1], -1), latest[..., :-1]], -1)
        wrong = wrong | ((y >= 0) & ((y <= before) | (y >= self._parts.m[:, None])))
        if wrong.any():
            *_, b, i = place = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: example {b} pairs x_{i} with {int(y[tuple(place)])}, but wanted growing partners, 0 to "
                f"{int(self._parts.m[b]) - 1}, or {rest}"
            )

    def _strings(self, y: Tensor) -> list[list[int]]:
        """The partners of each example's own positions."""
        return [row[:n] for row, n in zip(y.tolist(), self._parts.lengths.tolist(), strict=True)]

    def _score(self, choices: Tensor) -> Tensor:
        p = self._parts
        n, (_, _, M), paired = len(choices), p.match.shape, choices >= 0
        match = p.match.expand(n, -1, -1, -1)
        own = match.gather(3, choices.clamp(min=0)[..., None])[..., 0] if M else torch.zeros_like(choices)
        total = torch.where(paired, wide(own), 0).sum(2) + p.constant[:, 0]
        partners = torch.zeros((*choices.shape[:2], M + 1), dtype=torch.bool, device=choices.device)
        partners = partners.scatter(2, torch.where(paired, choices, M), True)[..., :M]
        for there, opens, extends, length in (
            (paired, p.x_open, p.x_extend, p.lengths),
            (partners, p.y_open, p.y_extend, p.m),
        ):
            unpaired = ~there & (torch.arange(there.shape[2], device=length.device) < length[:, None])
            if p.local:
                unpaired = unpaired & (there.cumsum(2) > 0) & (there.flip(2).cumsum(2).flip(2) > 0)
            first = unpaired & ~torch.cat([torch.zeros_like(unpaired[..., :1]), unpaired[..., :-1]], 2)
            total = total + torch.where(first, wide(opens), 0).sum(2)
            total = total + torch.where(unpaired & ~first, wide(extends), 0).sum(2)
        possible = (total > -math.inf) & ~(p.must & ~paired).any(2)
        value: Tensor = torch.where(possible, total, -math.inf).to(p.match.dtype)
        return value

    @property
    def _lengths(self) -> tuple[Tensor, ...]:
        return self.lengths

    # --- Losses and references ---------------------------------------------------------------------------------------

    def _costs(self, loss: Loss, reference: Labels, dtype: torch.dtype) -> Tensor:
        """What each partner costs, and none, the last: (B, N, M + 1)."""
        local, p = check_over(loss, "pairs", self, "outputs of an Alignment are pairs"), self._parts
        return local.costs_of(self._reference(reference), p.lengths, p.match.shape[2] + 1, dtype)

    def _reference(self, reference: Labels) -> Tensor:
        """Partners (B, N), -1 for none and UNKNOWN; or booleans (B, N, M + 1)."""
        p = self._parts
        _, N, M = p.match.shape
        if is_sets(reference):
            return as_aligned(reference, Positions(p.lengths, N), M + 1)
        given = as_rows(reference, p.lengths, N, "reference", "positions of x")[0]
        given = torch.where(self._within, given, -1)
        self._check_partners(given, (given < -1) & (given != UNKNOWN), "reference", f"-1 for none, {UNKNOWN}: unknown")
        return given

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is an Alignment again, at no cost.

        Args:
            loss: PairErrors, or another that is a sum over pairs.
            reference: partners (B, N): see above.
            scale: a number; negative to subtract the loss.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Alignment(torch.zeros(1, 2, 2), 0.).augment(sl.PairErrors(), [[0, 1]], -1.).argmax()
            tensor([[0, 1]])
        """
        check_scale(scale)
        p, costs = self._parts, scale * self._costs(loss, reference, self.dtype)
        none = costs[..., -1:]
        return self._like(replace(p, match=p.match + costs[..., :-1] - none, constant=p.constant + none.sum(1)))

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known (-100: unknown), scored as they were.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Alignment(torch.zeros(1, 3, 3), gap_open=-1.).given([[1, -100, -1]]).argmax()
            tensor([[ 1,  2, -1]])
        """
        p, wanted = self._parts, self._reference(reference)
        M, sets = p.match.shape[2], wanted.dtype == torch.bool
        none = torch.where(wanted < 0, M, wanted)[..., None]
        agrees = wanted if sets else (wanted == UNKNOWN)[..., None] | (none == torch.arange(M + 1, device=self.device))
        must = ~agrees[..., M] & self._within
        match = p.match.masked_fill(~agrees[..., :M], -math.inf)
        x_open, x_extend = (x.masked_fill(must, -math.inf) for x in (p.x_open, p.x_extend))
        left = replace(p, match=match, x_open=x_open, x_extend=x_extend, must=p.must | must)
        return self._like(left, None if sets or (wanted == UNKNOWN).any() else wanted)

    def _strata(self, loss: Loss, reference: Any) -> Strata:
        p, (_, N, M) = self._parts, self._parts.match.shape
        costs = self._costs(loss, reference, torch.float64)
        beyond = torch.arange(M + 1, device=self.device) >= p.m[:, None]
        costs = torch.where(beyond[:, None], costs[..., -1:], costs)
        losses, following = levels_of(costs, p.lengths, 4 * (N + 1) * (M + 1), "positions of x")
        return Strata(torch.from_numpy(losses).to(p.match), *native_engine.strata(p, following))


def _gaps(name: str, gaps: Gap | tuple[Gap, Gap], match: Tensor) -> dict[str, Tensor]:
    """The scores of gaps in x (B, N) and in y (B, M)."""
    both = gaps if isinstance(gaps, tuple | list) else (gaps, gaps)
    if len(both) != 2:
        raise ValueError(f"{name}: got {len(both)} of them, but wanted one, or two: of x and of y")
    found = {}
    for i, own in enumerate(both):
        shape = match.shape[0], match.shape[1 + i]
        if isinstance(own, int | float):
            own = torch.full((), float(own), dtype=match.dtype, device=match.device)
        found[f"{name}[{i}]"] = own.expand(shape) if isinstance(own, Tensor) and own.dim() == 0 else own
    return found
