"""How far the gradient of a list of hypotheses is from that of the risk itself."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structloss.objectives import Objective
from structloss.training.task import Example, TaskModel

_BATCH = 16


class Gap(NamedTuple):
    """Of a mean gradient in the parameters against the exact one."""

    relative: float  # |g - g_exact| / |g_exact|
    cosine: float
    value: float  # of the objective, and of the exact one
    exact: float


def gap(model: TaskModel, examples: Sequence[Example], objective: Objective, exact: Objective) -> Gap:
    """Both objectives on the same frames, with the model as it answers: nothing is dropped or varied."""
    model.eval()
    (value, ours), (right, theirs) = (_gradient(model, examples, one) for one in (objective, exact))
    size = theirs.norm().clamp(min=1e-12)
    cosine = torch.dot(ours, theirs) / (ours.norm().clamp(min=1e-12) * size)
    return Gap(float((ours - theirs).norm() / size), float(cosine), value, right)


def _gradient(model: TaskModel, examples: Sequence[Example], objective: Objective) -> tuple[float, Tensor]:
    """The mean over examples: value, and gradient in all parameters, (P,)."""
    model.zero_grad()
    total = 0.0
    for i in range(0, len(examples), _BATCH):
        batch = examples[i : i + _BATCH]
        structure = model.structure([model.encode(e) for e in batch])
        value = objective(structure, [model.reference(e) for e in batch]) * (len(batch) / len(examples))
        value.backward()
        total += float(value.detach())
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
    model.zero_grad()
    return total, found
