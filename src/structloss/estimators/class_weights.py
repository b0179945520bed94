"""Class weights as costs: what a wrong label costs depends on the label that is right."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.losses import Hamming, Loss
from structloss.naming import OBJECTIVES, split
from structloss.objectives import Objective


def class_costs(
    class_weight: Mapping[Any, float] | str, loss: Loss, objective: str | Objective, classes: Sequence[Any],
    labels: NDArray[np.int64],
) -> Hamming:  # fmt: skip
    r"""The Hamming loss whose costs[i, j], (K, K), are those of `loss` times the weight of label i, the right one.

    Args:
        class_weight: {label: weight}, 1 for labels that it lacks; or "balanced", N / (K * N_i) for label i, which N_i
            of the N labels are.
        loss: a `Hamming`; its own costs are multiplied, and `normalize` is kept.
        objective: one that has a loss.
        classes: the K labels.
        labels: (N,), their numbers at all tokens.
    """
    name = split(objective, "objective")[0] if isinstance(objective, str) else ""
    if not name or "loss" not in inspect.signature(OBJECTIVES[name]).parameters:
        with_loss = [n for n, kind in OBJECTIVES.items() if "loss" in inspect.signature(kind).parameters]
        raise ValueError(
            f"class_weight: got {class_weight!r} with the objective {objective!r}, but it weighs a loss, and wanted an "
            f"objective by name that has one: {', '.join(with_loss)}"
        )
    if not isinstance(loss, Hamming):
        raise ValueError(f"class_weight: got the loss {loss!r}, but wanted Hamming, which has a cost for each label")
    K = len(classes)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ValueError(f'class_weight: got {class_weight!r}, but wanted {{label: weight}} or "balanced"')
        weights = len(labels) / (K * np.bincount(labels, minlength=K).clip(min=1))
    else:
        unknown = [label for label in class_weight if label not in classes]
        if unknown:
            raise ValueError(f"class_weight: got the label {unknown[0]!r}, but y has {', '.join(map(str, classes))}")
        weights = np.array([float(class_weight.get(label, 1.0)) for label in classes])
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"class_weight: got {class_weight!r}, but wanted finite numbers from 0")
    own = 1.0 - torch.eye(K) if loss.costs is None else loss.costs
    return Hamming(own * torch.from_numpy(weights).to(own)[:, None], loss.normalize)
