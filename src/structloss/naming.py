"""Objectives and losses by name, as the command line and estimators take them: "softmax-margin", "edit:cap=5"."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from structloss.losses import Loss, TropicalLoss
from structloss.objectives import Impossible, Objective

OBJECTIVES, LOSSES = Objective.named, Loss.named
_PLUS = re.compile(r"\s*\+\s*(?=[^,=+]*\*|[A-Za-z])")  # between objectives, not in 1e+3


def split(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """The two parts of name:key=value,key=value."""
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{what}: got {item!r} in {text!r}, but wanted key=value")
        settings[key.strip()] = _value(value.strip(), f"{what} {text!r}")
    return name.strip(), settings


def _value(text: str, where: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    if text in get_args(Impossible):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"{where}: got {text!r}, but wanted a number, true, false or none")


def loss_of(text: str | Loss, labels: Sequence[str] | None = None) -> Loss:
    """A loss from its name and settings, or from a file that holds a transducer.

    Args:
        text: "edit:cap=5", the path of a file, or a loss.
        labels: the names of the labels, for losses that want them.

    Example:
        >>> from structloss.naming import loss_of
        >>> loss_of("edit:cap=5")
        EditDistance(substitution=1.0, insertion=1.0, deletion=1.0, cap=5)
        >>> loss_of("chunk-errors:miss=2", ["O", "B-PER", "I-PER"])
        ChunkErrors(3 labels, miss=2.0, false_alarm=1.0)
    """
    if isinstance(text, Loss):
        return text
    name, settings = split(text, "loss")
    if name in LOSSES:
        for wanted in {"labels", "spelling"} & set(inspect.signature(LOSSES[name]).parameters):
            if labels is None:
                raise ValueError(f"loss {text!r}: it wants the names of labels, which are not known here")
            settings[wanted] = labels
        loss: Loss = build(LOSSES[name], settings, f"loss {text!r}")
        return loss
    if Path(text).exists():
        return TropicalLoss(Path(text))
    raise ValueError(f"loss: got {text!r}, but wanted one of {', '.join(LOSSES)}, or the file of a transducer")


def objective_of(text: str | Objective, loss: str | Loss = "hamming", labels: Sequence[str] | None = None) -> Objective:
    """An objective from its name and settings, with a loss where it takes one; its reduction is "mean".

    The names of the labels are for losses that want them. Objectives can be added up, each with a factor.

    Example:
        >>> from structloss.naming import objective_of
        >>> objective_of("direct:epsilon=0.5", "hamming")
        DirectLoss(reduction='mean', loss=Hamming(costs=None, normalize=False), toward=True, epsilon=0.5)
        >>> objective_of("risk+0.1*nll", "hamming").factors
        [1.0, 0.1]
    """
    if isinstance(text, Objective):
        return text
    terms = _PLUS.split(text)
    if len(terms) > 1 or "*" in text:
        first, *others = [_factor(term) * objective_of(term.rpartition("*")[2], loss, labels) for term in terms]
        return sum(others, start=first)
    name, settings = split(text, "objective")
    if name not in OBJECTIVES:
        raise ValueError(f"objective: got {text!r}, but wanted one of {', '.join(OBJECTIVES)}")
    if "loss" in inspect.signature(OBJECTIVES[name]).parameters:
        settings["loss"] = loss_of(loss, labels)
    objective: Objective = build(OBJECTIVES[name], settings, f"objective {text!r}")
    return objective


def _factor(term: str) -> float:
    factor, times, _ = term.rpartition("*")
    if not times:
        return 1.0
    try:
        return float(factor)
    except ValueError:
        raise ValueError(f"objective: got the factor {factor!r} in {term!r}, but wanted a number") from None


def default_objective(loss: str | Loss | None) -> str:
    """What to train on where nobody says: the likelihood, or, where a loss is named, the objective that suits it.

    Example:
        >>> from structloss.naming import default_objective
        >>> default_objective(None), default_objective("f1"), default_objective("edit:cap=3")
        ('nll', 'hinge', 'softmax-margin')
    """
    if loss is None or isinstance(loss, Loss):
        return "nll" if loss is None else loss.objective
    return LOSSES.get(split(loss, "loss")[0], Loss).objective


def build(kind: type[Any], settings: dict[str, Any], where: str) -> Any:
    """An object from its settings; a setting that it has not is the error of `where`."""
    try:
        return kind(**settings)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
