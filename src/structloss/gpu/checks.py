"""Every operation of the Triton engine against a list of all outputs, in every precision: on a GPU, or interpreted."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structloss.gpu.cases import CAP, REFERENCES, Case, cases, potentials_of
from structloss.losses import EditDistance
from structloss.structures import Structure
from structloss.structures.engine import Name, engine

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-5}
QUICK = ("chain, order 1", "chain, order 2, shared transitions", "CTC, given a string", "CTC, plain", "lattice")
WEIGHTS = (2.0, 1.0, 0.0, 3.0)  # of the examples' values in what is differentiated


class Row(NamedTuple):
    """What was found of one operation in one precision, over all structures that have it."""

    operation: str
    dtype: str
    cases: int
    numbers: int  # that were compared
    largest_error: float  # relative to the number, where that is above 1
    of_gradients: float  # beyond what the precision of the potentials, in which they are returned, rounds off

    @property
    def passed(self) -> bool:
        """Whether all errors are small."""
        return max(self.largest_error, self.of_gradients) <= TOLERANCE[getattr(torch, self.dtype)]


class _Row:
    """A row that is being filled."""

    def __init__(self) -> None:
        self.cases, self.numbers, self.values, self.gradients = 0, 0, 0.0, 0.0

    def compare(self, found: Tensor, wanted: Tensor, eps: float = 0.0) -> float:
        """The largest error, relative where numbers are above 1; inf and NaN must be the same."""
        found, wanted = found.detach().double().cpu(), wanted.detach().double()
        if found.shape != wanted.shape:
            return float("inf")
        self.numbers += wanted.numel()
        error = (found - wanted).abs() / wanted.abs().clamp(min=1.0) - eps
        error = torch.where(wanted.isfinite() & found.isfinite(), error, torch.where(found == wanted, 0.0, torch.inf))
        return max(0.0, error.max().item()) if error.numel() else 0.0


# --- By definition, from the scores of all outputs -------------------------------------------------------------------


def _log_partition(scores: Tensor) -> Tensor:
    allowed = scores[scores > -torch.inf]
    return allowed.logsumexp(0) if len(allowed) else scores.new_tensor(-torch.inf)


def _mean(scores: Tensor, values: Tensor) -> Tensor:
    allowed = scores > -torch.inf
    return (scores[allowed].softmax(0) * values[allowed]).sum() if allowed.any() else scores.new_zeros(())


def _entropy(scores: Tensor) -> Tensor:
    z = _log_partition(scores)
    return z - _mean(scores, scores) if z > -torch.inf else z


def _max(scores: Tensor) -> Tensor:
    return scores.max()


# --- Operations ------------------------------------------------------------------------------------------------------


def _weighed(values: Tensor) -> Tensor:
    """What is differentiated: the finite values, each by a weight of its own, one of them 0."""
    weights = torch.tensor(WEIGHTS, dtype=values.dtype, device=values.device)
    return (torch.where(values.detach().isfinite(), values, 0) * weights).sum()


def _valued(row: _Row, case: Case, found: Tensor, wanted: Tensor, leaves: list[Tensor], exact: list[Tensor]) -> None:
    """Values, and gradients in what they were made of."""
    row.values = max(row.values, row.compare(found, wanted))
    mine = torch.autograd.grad(_weighed(found), leaves, allow_unused=True)
    theirs = torch.autograd.grad(_weighed(wanted), exact, allow_unused=True)
    for g, w in zip(mine, theirs, strict=True):
        if w is not None:
            eps = torch.finfo(leaves[0].dtype).eps if leaves[0].dtype == torch.bfloat16 else 0.0
            g = torch.zeros_like(w) if g is None else g
            row.gradients = max(row.gradients, row.compare(g, w.nan_to_num(0.0), eps))


Operation = Callable[[Structure], Tensor]
_SUMS: dict[str, tuple[Operation, Callable[[Tensor], Tensor]]] = {
    "log_partition": (lambda s: s.log_partition(), _log_partition),
    "entropy": (lambda s: s.entropy(), _entropy),
    "max": (lambda s: s.max(), _max),
}


def _operations(case: Case) -> list[str]:
    if case.name == "CTC, plain":
        return ["expected"]
    if case.name.startswith("CTC"):
        return ["log_partition", "argmax"]
    if case.name == "lattice":
        return ["log_partition", "entropy", "expected", "max", "marginals", "argmax"]
    return ["log_partition", "entropy", "max", "marginals", "argmax"]


def _check(row: _Row, operation: str, case: Case, dtype: torch.dtype, device: str) -> None:
    row.cases += 1
    given = potentials_of(case, dtype, seed=row.cases)
    leaves = [x.to(device).requires_grad_() for x in given]
    exact = [x.double().requires_grad_() for x in given]
    s, scores = case.build(leaves, device), case.scores(exact)
    if operation == "argmax":
        for y, outputs, x in zip(s.argmax().tolist(), case.outputs, scores, strict=True):
            best = outputs[int((x == x.max()).nonzero()[0])] if x.max() > -torch.inf else (-1,) * len(outputs[0])
            row.numbers += len(best)
            if tuple(y) != (*best, *[-1] * (len(y) - len(best))):
                row.values = float("inf")
    elif operation == "marginals":
        total = torch.stack([z for z in map(_log_partition, scores) if z > -torch.inf]).sum()
        wanted = torch.autograd.grad(total, exact)
        found = s.marginals()
        if len(exact) > 1:  # of transitions that are shared: of labels, from those of their pairs
            found = found.flatten(2, -2).sum(2)
        row.values = max(row.values, row.compare(found, wanted[0].nan_to_num(0.0)))
    elif operation == "expected":
        costs = [torch.tensor([case.loss(b, y) for y in ys]).double() for b, ys in enumerate(case.outputs)]
        found = s.expected(EditDistance(cap=CAP), REFERENCES)
        _valued(row, case, found, torch.stack(list(map(_mean, scores, costs))), leaves, exact)
    else:
        computed, defined = _SUMS[operation]
        _valued(row, case, computed(s), torch.stack([defined(x) for x in scores]), leaves, exact)


def check_operations(device: str = "cpu", name: Name = "triton", quick: bool = False) -> Iterator[Row]:
    """One row for each operation and precision; device "cuda" is a GPU's, "cpu" wants Triton's interpreter.

    Of another engine on any device, too; quick: a few structures, in float32.
    """
    every = [case for case in cases() if not quick or case.name in QUICK]
    with engine(name):
        for operation in ("log_partition", "entropy", "expected", "max", "marginals", "argmax"):
            for dtype in (torch.float32,) if quick else DTYPES if device != "mps" else DTYPES[1:]:
                row = _Row()
                for case in every:
                    if operation in _operations(case):
                        _check(row, operation, case, dtype, device)
                yield Row(
                    operation, str(dtype).removeprefix("torch."), row.cases, row.numbers, row.values, row.gradients
                )


# --- What holds beside the numbers -----------------------------------------------------------------------------------


def _gradients(s: Structure, leaves: list[Tensor]) -> list[Tensor]:
    value = s.log_partition()
    return [value.detach(), *torch.autograd.grad(_weighed(value), leaves)]


def check_behaviour(device: str = "cpu") -> Iterator[tuple[str, bool]]:
    """Sentences, and whether they hold."""
    every = {case.name: case for case in cases()}
    names = ("chain, order 2, shared transitions", "chain, order 3, times a machine", "CTC, times a machine")
    lattice = "lattice, times a machine"
    with engine("triton"):
        same, alone = True, True
        for name in (*names, lattice):
            case = every[name]
            leaves = [x.to(device).requires_grad_() for x in potentials_of(case, torch.float32, 1)]
            first, second = (_gradients(case.build(leaves, device), leaves) for _ in range(2))
            same &= all(map(torch.equal, first, second))
            if name == lattice:  # which cannot be taken apart
                continue
            whole = case.build(leaves, device).log_partition().detach()
            one = torch.cat([case.build(leaves, device)[b : b + 1].log_partition().detach() for b in range(4)])
            alone &= torch.equal(whole, one)
        yield "values and gradients are the same bits in every run", same
        yield "an example has the same value alone and in a batch", alone
        yield "a mask with gaps skips positions", _gaps(device)
        yield "the best of equals is the lexicographically smallest", _ties(device)
        yield "a second derivative is refused with a sentence", _refuses(every[names[0]], device)
        yield "NaN makes its own example's value NaN, and no other's", _spoilt(every[names[0]], device)
        yield "the operators pass torch.library.opcheck", _opcheck(every, device)


def _gaps(device: str) -> bool:
    from structloss.structures import Chain

    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0), device="cpu").to(device)
    mask = torch.tensor([[True, False, True, False], [False, False, True, True]], device=device)
    dense = torch.stack([x[0, [0, 2]], x[1, [2, 3]]])
    return torch.equal(Chain(x, mask).log_partition(), Chain(dense).log_partition())


def _ties(device: str) -> bool:
    from structloss.structures import Chain

    return Chain(torch.zeros(2, 3, 3, 3, device=device)).argmax().tolist() == [[0, 0, 0]] * 2


def _refuses(case: Case, device: str) -> bool:
    leaves = [x.to(device).requires_grad_() for x in potentials_of(case, torch.float64, 1)]
    value = case.build(leaves, device).log_partition()
    first = torch.autograd.grad(torch.where(value > -torch.inf, value, 0).sum(), leaves, create_graph=True)
    try:
        first[0].nan_to_num().sum().backward()
    except NotImplementedError as error:
        return 'engine("torch")' in str(error)
    return False


def _spoilt(case: Case, device: str) -> bool:
    leaves = [x.to(device) for x in potentials_of(case, torch.float32, 1)]
    before = case.build(leaves, device).log_partition()
    leaves[0][0, 2, 1] = torch.nan
    after = case.build(leaves, device).log_partition()
    return bool(after[0].isnan()) and torch.equal(before[1:], after[1:])


def _opcheck(every: dict[str, Case], device: str) -> bool:
    """Schema, fake tensors, autograd and dispatch of each operator, with the arguments that a structure gives it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: dict[str, tuple[object, tuple[object, ...]]] = {}

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "structloss":
                calls[str(func)] = (func, args)
            return func(*args, **(kwargs or {}))

    for name in (
        "chain, order 1, times a machine", "CTC, given a string", "CTC, times a machine", "lattice"
    ):  # fmt: skip
        case = every[name]
        leaves = [x.to(device).requires_grad_() for x in potentials_of(case, torch.float32, 1)]
        with Watch():
            s = case.build(leaves, device)
            _weighed(s.log_partition()).backward()
            s.argmax()
    found = len(calls) == 10
    for func, args in calls.values():
        result = torch.library.opcheck(func, _fresh(args), raise_exception=False)  # type: ignore[arg-type]
        found &= all(x == "SUCCESS" for x in result.values())
    return found


def _fresh(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """The same arguments as leaves; scores that come first ask for a gradient, if they did."""

    def detached(x: object) -> object:
        if isinstance(x, list):
            return [detached(part) for part in x]
        return x.detach().clone() if isinstance(x, Tensor) else x

    first, *rest = map(detached, arguments)
    if isinstance(first, Tensor) and isinstance(arguments[0], Tensor) and arguments[0].requires_grad:
        first.requires_grad_()
    return (first, *rest)
