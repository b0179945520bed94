"""FactorGraph: discrete variables, and factors over them that any network may score."""

import heapq
import math
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.losses.base import PositionLoss
from structloss.losses.combined import WeightedSum
from structloss.losses.labels import UNKNOWN, Labels, as_padded
from structloss.structures import graph_beliefs, graph_native, graph_torch, relaxation
from structloss.structures.base import Strata, Structure
from structloss.structures.checks import check_count, check_scale
from structloss.structures.derivatives import NoSecondDerivative, apply
from structloss.structures.engine import is_native
from structloss.structures.graph_builder import GraphBuilder
from structloss.structures.graph_parts import Ints
from structloss.structures.graph_strata import strata
from structloss.structures.relaxation import Certificate, Relaxed

AUTO = 2.0**22  # cells an example that "auto" eliminates exactly: some hundredths of a second
MOST = 2.0**27  # and that "exact" does: a gigabyte
_SWEEPS = 20_000


class FactorGraph(GraphBuilder, Structure):
    r"""Variables with a few labels each, and factors that score some of them together.

    .. math:: \mathrm{score}(y) = \sum_v \theta_v(y_v) + \sum_f \theta_f(y_f)

    An output y (B, N) has a label for each variable, in the order of their creation; -1 beyond the variables of an
    example that has fewer. A reference is the same, or a list of label sequences; -100 is an unknown label.

    Args:
        method: how to find maxima and sums.
            "exact": by variable elimination; time and memory grow with the number of labels to the power of the
            graph's tree-width, and an error says so where that is too much.
            "lp": the linear relaxation, over the local marginal polytope. `max()` is its value, an upper bound;
            `certificate()` says how far from an output it is. Its gradient is the solution, McAllester 2010, eq. 12.
            "ilp": the best output by HiGHS's integer programming.
            "bp": belief propagation, for `log_partition()` and `marginals()` only: exact on trees, else the Bethe
            approximation, or with `reweighted` the tree-reweighted upper bound.
            "auto": "exact" where elimination takes at most 2**22 cells an example, else "lp"; `inference` says which.
        solver: of "lp": our "dual" method, or "highs".
        tolerance: the relative gap at which "lp" stops, and the change of messages at which "bp" does.
        reweighted: whether "bp" is tree-reweighted.

    Example:
        >>> import torch, structloss as sl
        >>> g = sl.FactorGraph()
        >>> rain = g.variable(torch.tensor([[0.0, 1.0]]))
        >>> umbrella = g.variable(torch.tensor([[0.5, 0.0]]))
        >>> g.factor((rain, umbrella), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
        >>> g.argmax(), g.max()
        (tensor([[1, 1]]), tensor([2.]))
    """

    @property
    def num_variables(self) -> Tensor:
        """How many variables each example has, (B,)."""
        return torch.from_numpy(self._parts.topology.visible)

    @property
    def inference(self) -> str:
        """What finds maxima here, and why.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> y = g.variables(torch.zeros(1, 3, 2))
            >>> g.inference
            'exact: elimination visits 6 cells an example, tree-width 0'
        """
        how = self._how
        if self._method not in ("auto", "exact"):
            return {"lp": f"lp, by {self._solver}", "ilp": "ilp, by highs", "bp": "bp"}[how]
        orders = self._parts.topology.orders(MOST if self._method == "exact" else AUTO)
        cells, width = max(order.cells for _, order, _ in orders), max(order.width for _, order, _ in orders)
        if how == "exact":
            return f"exact: elimination visits {cells:.0f} cells an example, tree-width {width}"
        return f"lp, by {self._solver}: elimination would visit more than {cells:.2g} cells an example"

    @property
    def _how(self) -> str:
        if self._method != "auto":
            return self._method
        return "exact" if all(plan is not None for _, _, plan in self._parts.topology.orders(AUTO)) else "lp"

    def _plans(self, operation: str) -> Any:
        """How to eliminate, for operations that are exact or not at all."""
        if self._method in ("lp", "ilp", "bp"):
            raise NotImplementedError(
                f'{operation}: method="{self._method}" does not give it; wanted "exact", or "bp" for an approximation '
                "of log_partition and marginals"
            )
        most = AUTO if self._method == "auto" else MOST
        orders = self._parts.topology.orders(most)
        for group, order, plan in orders:
            if plan is None:
                other = 'method="bp" approximates log_partition and marginals, method="lp" bounds max'
                raise ValueError(
                    f"{operation}: example {group[0]} needs more than {order.cells:.2g} cells to eliminate its "
                    f"variables (tree-width {order.width} or more), but the most is {most:.2g}; {other}"
                )
        return [(group, plan) for group, _, plan in orders]

    def _check_exists(self, exists: Tensor) -> None:
        """Raise where hard factors leave nothing: scores of -inf are a user's own way to forbid."""
        if self._strict and self._hard and not exists.all():
            names = sorted({factor.name for factor in self._hard})
            raise ValueError(
                f"example {int((~exists).int().argmax())}: the hard factors ({', '.join(names)}) and what is given or "
                "scored -inf leave no output"
            )

    # Outputs.

    def _labels(self, y: Tensor) -> Tensor:
        """Outputs (n, B, N) from (B, N) or (n, B, N), checked."""
        visible = self.num_variables.to(y.device)
        most = int(visible.max())
        if y.is_floating_point() or y.dim() not in (2, 3) or tuple(y.shape[-2:]) != (len(visible), most):
            raise ValueError(f"y: got {y.dtype} of shape {tuple(y.shape)}, but wanted labels {(len(visible), most)}")
        y = y if y.dim() == 3 else y[None]
        within = torch.arange(most, device=y.device) < visible[:, None]
        sizes = self._size_table.to(y.device)
        wrong = within & ~_is_absent(y)[..., None] & ((y < 0) | (y >= sizes))
        if wrong.any():
            n, b, v = wrong.nonzero()[0].tolist()
            wanted = int(sizes[b, v]) - 1
            raise ValueError(
                f"y: example {b} has label {int(y[n, b, v])} for variable {v}, but its labels are 0 to {wanted}"
            )
        return y

    @property
    def _most_labels(self) -> int:
        """K, the most labels of any variable."""
        return max((int(sizes.max(initial=1)) for sizes in self._all_sizes()), default=1)

    @property
    def _size_table(self) -> Tensor:
        """How many labels each variable has, (B, N); 1 beyond."""
        sizes = self._all_sizes()
        table = torch.ones(len(sizes), max((len(x) for x in sizes), default=0), dtype=torch.int64)
        for b, own in enumerate(sizes):
            table[b, : len(own)] = torch.from_numpy(own)
        return table

    def _padded(self, labels: Ints) -> Tensor:
        """Outputs (..., B, N) from the labels (..., V) of all variables, hidden ones too; -1 beyond."""
        t = self._parts.topology
        first, most = t.graph.variables[:-1], int(t.visible.max(initial=0))
        places = first[:, None] + np.arange(most)
        within = np.arange(most) < t.visible[:, None]
        found = labels[..., np.where(within, places, 0)]
        return torch.from_numpy(np.where(within, found, -1)).to(self._parts.unary.device)

    def score(self, y: Tensor) -> Tensor:
        """The score (B,) of outputs y (B, N), or (n, B) of n outputs each; -inf where a hard factor forbids it.

        The cost is the number of variables and factors. A row of -1, where there is no output, has -inf.
        """
        labels = self._labels(y)
        result = self._score(labels)
        return result if y.dim() == 3 else result[0]

    def _score(self, y: Tensor) -> Tensor:
        p, device = self._parts, y.device
        g, t = p.graph, p.topology
        n, batch = y.shape[0], y.shape[1]
        owner = np.repeat(np.arange(batch), t.visible)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(t.visible) - t.visible, t.visible)
        place = torch.from_numpy(g.variables[owner] + number).to(device)
        seen = y[:, torch.from_numpy(owner).to(device), torch.from_numpy(number).to(device)].clamp(min=0)
        whole = torch.zeros(n, len(t.sizes), dtype=torch.int64, device=device)
        whole[:, place] = seen
        cells = torch.from_numpy(g.labels[:-1]).to(device)[place] + seen
        total = torch.zeros(n, batch, dtype=torch.float64, device=device)
        total = total.index_add(1, torch.from_numpy(owner).to(device), p.unary[cells].double())
        count = np.diff(g.factors)
        factor_owner = np.repeat(np.arange(batch), count)
        own = np.arange(len(factor_owner)) - g.factors[factor_owner] < t.own[factor_owner]
        if own.any():
            slot_factor = torch.from_numpy(t.factor).to(device)
            offsets = whole[:, torch.from_numpy(g.scope).to(device)] * torch.from_numpy(t.strides).to(device)
            at = torch.from_numpy(g.cells[:-1]).to(device).expand(n, -1).index_add(1, slot_factor, offsets)
            kept = torch.from_numpy(np.flatnonzero(own)).to(device)
            owners = torch.from_numpy(factor_owner[own]).to(device)
            total = total.index_add(1, owners, p.tables[at[:, kept]].double())
        allowed = ~(_is_absent(y) & (self.num_variables > 0).to(device))
        for factor in self._hard:
            allowed = allowed & factor.allows(y)
        return torch.where(allowed & (total > -math.inf), total, -math.inf).to(p.unary.dtype)

    def argmax(self) -> Tensor:
        """The best output (B, N) of each example, the lexicographically smallest where several are best.

        Under "lp" the best output that was met on the way, which is the best of all, up to the gap, where
        `certificate()` is integral. Where none was met that hard factors and -inf allow, each variable has its most
        probable label, and the score is -inf. Under "ilp" one of the best.
        """
        if self._only is not None:
            with torch.no_grad():
                possible = self._score(self._labels(self._only))[0] > -math.inf
            return torch.where(possible[:, None], self._only, -1)
        with torch.no_grad():
            if self._how == "exact":
                labels, exists = graph_native.argmax(self._parts, self._plans("argmax"))
                self._check_exists(torch.from_numpy(exists))
            else:
                labels = self._relaxation("argmax").labels
            return self._padded(labels)

    def decode(self, y: Tensor | None = None) -> list[list[int]]:
        """The labels of outputs y (B, N), by default of `argmax()`, as lists."""
        y = self.argmax() if y is None else y
        return [[k for k in row if k >= 0] for row in y.tolist()]

    def max(self) -> Tensor:
        """The score (B,) of the best output. Its gradient counts the scores that `argmax()` uses.

        Under "lp" the relaxation's value, found from above: at least the score of every output. Its gradient is the
        relaxed solution, phi(x, r) of McAllester 2010, eq. 12.
        """
        if self._only is not None or self._how in ("exact", "ilp"):
            y = self._only if self._only is not None else self.argmax()
            value = self._score(self._labels(y))[0]
            self._check_exists(value > -math.inf)
            return value
        solved, p = self._relaxation("max"), self._parts
        shares = (torch.from_numpy(x).to(p.unary) for x in (solved.unary, solved.tables))
        parts = [x * torch.where(x > 0, y, 0) for x, y in zip(shares, (p.unary, p.tables), strict=True)]
        value = p.summed(*parts)
        # The bound is closer to the relaxation's value than the solution is; the gradient is the solution's.
        bound = solved.certificate.dual.to(value)
        return torch.where(bound > -math.inf, value + (bound - value).detach().nan_to_num(0.0), -math.inf)

    def _relaxation(self, operation: str) -> Relaxed:
        if self._how == "bp":
            raise NotImplementedError(
                f'{operation}: method="bp" is for log_partition and marginals; wanted "exact", "lp" or "ilp"'
            )
        if self._solved is None:
            if self._how == "ilp" or self._solver == "highs":
                from structloss.structures import highs

                self._solved = highs.solve(self._parts, integral=self._how == "ilp")
            else:
                self._solved = relaxation.dual(self._parts, self._tolerance, _SWEEPS)
        found = self._solved.certificate
        self._check_exists(found.dual > -math.inf)
        lost = ~found.converged & (found.violation > self._tolerance)
        if self._strict and self._hard and lost.any():
            raise ValueError(
                f"example {int(lost.int().argmax())}: the relaxation met no point that the hard factors allow; if "
                'there is one, method="exact" or "ilp" finds it'
            )
        return self._solved

    def certificate(self) -> Certificate:
        """How good `max()` and `argmax()` are: value, bound, gap, and whether the solution is an output.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph(method="lp")
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.factor((0, 1), torch.eye(2)[None])
            >>> g.certificate().integral
            tensor([True])
        """
        if self._only is not None or self._how == "exact":
            value = self.max().detach().double()
            yes = torch.ones_like(value, dtype=torch.bool)
            return Certificate(value, value, yes, torch.zeros_like(value), yes)
        return self._relaxation("certificate").certificate

    def relaxed(self) -> Tensor:
        """The probability (B, N, K) of each label in the solution, r of McAllester 2010, eq. 12; 0 beyond.

        It is 0 and 1 where the solution is an output.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph(method="lp")
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.relaxed()
            tensor([[[0., 1.],
                     [1., 0.]]])
        """
        if self._only is not None or self._how == "exact":
            y, most = self.argmax(), self._most_labels
            return torch.where((y >= 0)[..., None], torch.nn.functional.one_hot(y.clamp(min=0), most), 0).to(
                self._parts.unary.dtype
            )
        return self._by_label(torch.from_numpy(self._relaxation("relaxed").unary).to(self._parts.unary))

    def round(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n outputs (n, B, N) by random rounding: each variable's label is drawn by itself from `relaxed()`.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph(method="lp")
            >>> y = g.variables(torch.zeros(1, 3, 2))
            >>> g.factors([[0, 1], [1, 2], [0, 2]], (1 - torch.eye(2)).expand(1, 3, 2, 2))  # halves
            >>> g.round(100).shape
            torch.Size([100, 1, 3])
        """
        check_count(n, "n")
        probability = self.relaxed()
        within = torch.arange(probability.shape[1], device=probability.device) < self.num_variables[:, None].to(
            probability.device
        )
        uniforms = torch.rand((n, *probability.shape[:2]), generator=generator, device=probability.device)
        cumulative = probability.cumsum(2) / probability.sum(2, keepdim=True).clamp(min=1e-12)
        labels = (uniforms[..., None] >= cumulative).sum(3)
        return torch.where(within, torch.minimum(labels, self._size_table.to(labels.device) - 1), -1)

    def relaxed_loss(self, loss: Loss, reference: Labels) -> Tensor:
        r"""L(y, r) of McAllester 2010, section 4: the expected loss (B,) of `round()`, for a sum over variables.

        .. math:: L(y, r) = \sum_v \sum_k r_v(k) \, \mathrm{cost}_v(k)

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph(method="lp")
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.relaxed_loss(sl.Hamming(), [[1, 1]])
            tensor([1.])
        """
        costs = self._costs(loss, reference)
        return (self.relaxed() * costs.nan_to_num(0.0)).sum((1, 2))

    # Sums.

    def log_partition(self) -> Tensor:
        """log Z, (B,). Time and memory as `inference` says. Under "bp" its approximation."""
        if self._only is not None:
            value = self._score(self._labels(self._only))[0]
        elif self._how == "bp":
            value = graph_beliefs.log_partition(self._parts, self._tolerance, self._reweighted)
        else:
            plans = self._plans("log_partition")
            value = self._engine.log_partition(self._parts, plans)
        self._check_exists(value > -math.inf)
        return value

    @property
    def _engine(self) -> Any:
        return graph_native if is_native(self._parts.unary.device) else graph_torch

    def marginals(self) -> Tensor:
        """The probability (B, N, K) of each label of each variable; 0 beyond.

        The probabilities of a table's cells are the gradient of `log_partition()` in it.
        """
        p = self._parts
        if self._how == "bp":
            shares = graph_beliefs.marginals(p, self._tolerance, self._reweighted)
        elif is_native(p.unary.device):
            shares = graph_native.marginals(p, self._plans("marginals"))[0]
        else:
            recorded = torch.is_grad_enabled() and (p.unary.requires_grad or p.tables.requires_grad)
            shares = graph_torch.marginals(p, self._plans("marginals"), recorded)[0]
            return self._by_label(shares)
        found = self._by_label(shares)
        if torch.is_grad_enabled() and (p.unary.requires_grad or p.tables.requires_grad):
            return apply(NoSecondDerivative, found, p.unary, p.tables)
        return found

    def _by_label(self, shares: Tensor) -> Tensor:
        """(B, N, K) from a number for each label of each variable."""
        shown = torch.from_numpy(self._parts.topology.shown).to(shares.device)
        result = shares.new_zeros(*self._size_table.shape, self._most_labels)
        return result.index_put((shown[0], shown[1], shown[2]), shares[shown[3]])

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n outputs (n, B, N), drawn with probability exp(score) / Z; exactly."""
        check_count(n, "n")
        p = self._parts
        uniforms = torch.rand(
            (n, len(p.topology.sizes)), generator=generator, device=p.unary.device, dtype=torch.float64
        )
        labels, exists = graph_native.sample(p, self._plans("sample"), uniforms.cpu().numpy())
        if not exists.all():
            raise ValueError(f"sample: example {int((~exists).argmax())} has no output: every score is -inf")
        return self._padded(labels)

    def expectation(self, other: Self) -> Tensor:
        """E[other.score(y)], y drawn from self. (B,); 0 where self has no output. Some four times `log_partition()`."""
        if not isinstance(other, FactorGraph):
            raise TypeError(f"other: got {type(other).__name__}, but wanted a FactorGraph")
        p, f = self._parts, other._parts
        same = all(np.array_equal(a, b) for a, b in zip(p.graph, f.graph, strict=True))
        if not same or [x.key for x in self._hard] != [x.key for x in other._hard]:
            raise ValueError("other: got another graph, but wanted the variables and factors of this one")
        if p.unary.dtype != f.unary.dtype:
            raise TypeError(f"other: got {f.unary.dtype}, but wanted {p.unary.dtype}")
        value: Tensor = self._engine.expectation(p, f, self._plans("expectation"))
        return value

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The scores (B, k) and the outputs (B, k, N) of the k best, best first; -inf and -1 where there are fewer.

        Exact (Lawler 1972): the rest of the outputs is split by the first variable that differs, and the best of each
        part is found by `argmax()`: k times the number of variables of them.
        """
        check_count(k, "k")
        if self._how not in ("exact", "ilp"):
            raise NotImplementedError(
                f'topk: got an inference that is not exact ({self.inference}), but wanted method="exact" or "ilp"'
            )
        most = self._size_table.shape[1]
        outputs = torch.full((self._parts.batch, k, most), -1)
        for b in range(self._parts.batch):
            for i, y in enumerate(self._best_outputs(b, k)):
                outputs[b, i, : len(y)] = torch.tensor(y)
        outputs = outputs.to(self._parts.unary.device)
        # An example without variables has one output, the empty one.
        scores = self._score(outputs.transpose(0, 1)).T
        empty = (self.num_variables == 0).to(scores.device)[:, None] & (torch.arange(k, device=scores.device) > 0)
        return torch.where(empty, -math.inf, scores), outputs

    def _best_outputs(self, b: int, k: int) -> list[list[int]]:
        """Of one example the k best outputs."""
        sizes = self._all_sizes()[b]
        if not len(sizes):
            return [[]]
        one = self._example(b)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        base = one._parts.unary.detach()

        def best(struck: list[int]) -> tuple[float, list[int]] | None:
            unary = base.clone()
            unary[struck] = -math.inf
            graph = one._of(one._parts.with_scores(unary), None)
            with torch.no_grad():
                y = graph.argmax()
                score = float(graph._score(graph._labels(y))[0, 0])
            return (-score, y[0].tolist()) if score > -math.inf else None

        first = best([])
        queue: list[tuple[float, list[int], list[int]]] = [(*first, [])] if first else []
        found: list[list[int]] = []
        while queue and len(found) < k:
            _, y, struck = heapq.heappop(queue)
            found.append(y)
            fixed = list(struck)
            for v in range(len(sizes)):
                here = int(offsets[v])
                part = [*fixed, here + y[v]]
                if len({c for c in part if here <= c < offsets[v + 1]}) < sizes[v]:
                    other = best(part)
                    if other is not None:
                        heapq.heappush(queue, (*other, part))
                fixed += [here + label for label in range(int(sizes[v])) if label != y[v]]
        return found

    # Made of it.

    def _costs(self, loss: Loss, reference: Labels) -> Tensor:
        """The cost (B, N, K) of each label under a loss that is a sum over variables."""
        if isinstance(loss, WeightedSum):
            return torch.stack([factor * self._costs(part, reference) for factor, part in loss.parts]).sum(0)
        if not isinstance(loss, PositionLoss):
            raise NotImplementedError(
                f"loss: got {loss!r}, but a factor graph takes a loss that is a sum over its variables, as Hamming is"
            )
        p = self._parts
        found = self._reference(reference)
        return loss.position_costs(found, self.num_variables.to(found.device), self._most_labels, p.unary.dtype)

    def _reference(self, reference: Labels) -> Tensor:
        """A reference (B, N), checked; UNKNOWN beyond an example's variables."""
        sizes, visible = self._size_table, self.num_variables
        given, own = as_padded(reference, "reference", self._parts.unary.device)
        if own is not None:
            if own.shape != visible.shape or (own.cpu() != visible).any():
                wanted = visible.tolist()
                raise ValueError(f"reference: got {own.tolist()} labels, but the examples have {wanted} variables")
            given = torch.nn.functional.pad(given, (0, sizes.shape[1] - given.shape[1]), value=UNKNOWN)
        if given.shape != sizes.shape:
            raise ValueError(f"reference: got shape {tuple(given.shape)}, but wanted {tuple(sizes.shape)}")
        within = torch.arange(sizes.shape[1]) < visible[:, None]
        on_cpu = given.cpu()
        wrong = within & (on_cpu != UNKNOWN) & ((on_cpu < 0) | (on_cpu >= sizes))
        if wrong.any():
            b, v = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"reference: reference[{b}, {v}] is {int(on_cpu[b, v])}, but its labels are 0 to "
                f"{int(sizes[b, v]) - 1}, or {UNKNOWN} for unknown"
            )
        return torch.where(within.to(given.device), given, UNKNOWN)

    def _flat(self, values: Tensor) -> Tensor:
        """For each label of each variable its value of (B, N, K); 0 for hidden ones."""
        shown = torch.from_numpy(self._parts.topology.shown).to(values.device)
        result = values.new_zeros(self._parts.unary.shape)
        return result.index_put((shown[3],), values[shown[0], shown[1], shown[2]])

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference), in the scores of the variables.

        Under "lp" a relaxed solution r is scored with L(y, r), the expected loss of its random rounding.
        """
        check_scale(scale)
        p = self._parts
        return self._of(p.with_scores(p.unary + scale * self._flat(self._costs(loss, reference))), self._only)

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference; -100 agrees with every label."""
        p, wanted = self._parts, self._reference(reference)
        within = torch.arange(wanted.shape[1], device=wanted.device) < self.num_variables[:, None].to(wanted.device)
        labels = torch.arange(self._most_labels, device=wanted.device)
        struck = (wanted != UNKNOWN)[..., None] & (labels != wanted[..., None])
        only = torch.where(within, wanted, -1) if (~within | (wanted != UNKNOWN)).all() else None
        if self._only is not None and (only is None or torch.equal(only, self._only)):
            only = self._only
        return self._of(p.with_scores(torch.where(self._flat(struck.double()) > 0, -math.inf, p.unary)), only)

    def uniform(self) -> Self:
        """The same outputs, every one with score 0 (what -inf forbids stays forbidden)."""
        p = self._parts
        unary, tables = (torch.where(x > -math.inf, 0.0, x).detach() for x in (p.unary, p.tables))
        return self._of(p.with_scores(unary, tables), self._only)

    def strata(self, loss: Loss, reference: Labels, lowest: bool = False) -> Strata:
        """The best output at each value of loss(y, reference), or the one of lowest score; exact.

        The loss so far becomes one more variable after each, which makes the graph wider: an error says so where
        elimination gets too expensive.
        """
        if self._how != "exact":
            raise NotImplementedError(
                f'strata: got an inference without sums ({self.inference}), but wanted method="exact"'
            )
        sign = -1.0 if lowest else 1.0
        return strata(self._costs(loss, reference), self._all_sizes(), lambda b: self._example(b, sign, "exact"))

    def __repr__(self) -> str:
        if not self._variables:
            return f"FactorGraph(method={self._method!r})"
        t = self._parts.topology
        return (
            f"FactorGraph(batch={t.batch}, variables={int(t.visible.max(initial=0))}, "
            f"factors={int(t.own.max(initial=0))}, hard={len(self._hard)}, method={self._method!r}, "
            f"{self._parts.unary.dtype}, {self._parts.unary.device})"
        )


def _is_absent(y: Tensor) -> Tensor:
    """Which rows of labels (..., N) are all -1: there is no output."""
    return (y == -1).all(-1)
