"""Problems on a device: the native engine's numbers, the same bits in every run; how long, and how much memory."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structloss.gpu.problems import Method, Problem, problems
from structloss.structures.engine import Name, engine

TOLERANCE = 1e-3  # of numbers and of gradients, relative to the largest


class Measured(NamedTuple):
    """One problem by one engine or library; None where there is nothing to say."""

    problem: str
    size: str
    by: str
    error: float | None = None  # of values, against the native engine on the CPU
    of_gradients: float | None = None
    repeats: bool | None = None  # whether values and gradients are the same bits in every run
    milliseconds: float | None = None  # the median run, forward and backward
    least: float | None = None  # the fastest
    runs: int | None = None
    megabytes: float | None = None  # at most, beyond the scores
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether an engine of ours gives what the native one gives, in every run; others are not judged."""
        if not self.by.startswith(OURS):
            return True
        errors = [x for x in (self.error, self.of_gradients) if x is not None]
        return not self.failure and self.repeats is not False and max(errors, default=torch.inf) <= TOLERANCE


OURS = "structloss, "


def measured(
    device: torch.device, engines: Sequence[Name], quick: bool = False, timed: bool = True, seconds: float = 2.0
) -> Iterator[Measured]:
    """Every problem by each of the engines, and by the libraries that are installed; not timed: only what they give."""
    for problem in problems(quick):
        with engine("native"):
            wanted = _run(problem.ours, problem.scores)
        methods = {f"{OURS}{name}": _under(name, problem.ours) for name in engines}
        for by, method in (methods | (problem.others if timed else {})).items():
            try:
                yield _measure(problem, by, method, wanted, device, timed, seconds)
            except Exception as error:  # the report is of what does not work, too: whatever it is
                sentence = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                yield Measured(problem.name, problem.size, by, failure=sentence)


def _under(name: Name, method: Method) -> Method:
    def run(x: Sequence[Tensor]) -> Tensor:
        with engine(name):
            return method(x)

    return run


def _run(method: Method, scores: Sequence[Tensor]) -> list[Tensor]:
    """The values, and the gradients of their sum where they have any."""
    leaves = [x.detach().requires_grad_() for x in scores]
    value = method(leaves)
    if not value.requires_grad:
        return [value]
    found = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    return [value.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True))]


def _measure(
    problem: Problem, by: str, method: Method, wanted: list[Tensor], device: torch.device, timed: bool, seconds: float
) -> Measured:  # fmt: skip
    scores = [x.to(device) for x in problem.scores]
    found = _run(method, scores)
    again = [_run(method, scores) for _ in range(2)]
    same = all(torch.equal(a, b) for run in again for a, b in zip(found, run, strict=True))
    result = Measured(problem.name, problem.size, by, _error(found[0], wanted[0]), repeats=same)
    if len(wanted) > 1:
        result = result._replace(of_gradients=max(map(_error, found[1:], wanted[1:])))
    if not timed:
        return result
    times = _times(lambda: _run(method, scores), device, seconds)
    return result._replace(
        milliseconds=1e3 * statistics.median(times), least=1e3 * min(times), runs=len(times),
        megabytes=_memory(lambda: _run(method, scores), device),
    )  # fmt: skip


def _error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest number; of labels the share that differ."""
    found, wanted = found.detach().cpu(), wanted.detach().cpu()
    if found.dim() == 4 and found.shape[1] + 1 == wanted.shape[1]:
        wanted = wanted[:, 1:]  # marginals of a library that has none at the first position
    if found.shape != wanted.shape:
        return float("inf")
    if not found.is_floating_point():
        return float((found != wanted).double().mean())
    difference = (found.double() - wanted.double()).abs().max()
    return float(difference / wanted.abs().max().clamp(min=1e-30)) if difference.isfinite() else float("inf")


def _of(device: torch.device) -> Any:
    """torch.cuda, torch.mps or torch.cpu."""
    return getattr(torch, device.type)


def _times(run: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    """Seconds of each of at least three runs, until these are spent; each waits for the device."""
    found: list[float] = []
    while len(found) < 3 or (sum(found) < seconds and len(found) < 1000):
        _of(device).synchronize()
        begin = time.perf_counter()
        run()
        _of(device).synchronize()
        found.append(time.perf_counter() - begin)
    return found


def _memory(run: Callable[[], object], device: torch.device) -> float | None:
    """Megabytes of the device that a run takes at most; None where the device does not tell."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20
