"""Train an aligner as McAllester 2010 does: a frame classifier on one part of the data, seven weights on another."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.naming import build, loss_of, objective_of, split
from structloss.objectives import DirectLoss, Hinge, NegativeLogLikelihood, Objective
from structloss.structures import Structure
from structloss.tasks.alignment.classifier import KernelClassifier
from structloss.tasks.alignment.frames import Frames, FrameTagger
from structloss.tasks.alignment.task import Aligner, Alignment, feature_scale
from structloss.tasks.alignment.utterance import Utterance
from structloss.training.directory import copy_model, file_name, load
from structloss.training.fit import fit
from structloss.training.folder import check_begin, make_room
from structloss.training.plan import Plan
from structloss.training.record import described, digest, record_of

PAPER = (1500, 1796, 100)  # utterances for the classifier, for the weights, and held out
LEAST_HELD = 100
EPSILONS = (1.1, 3.5, 11.0, 35.0)  # of direct loss; the paper took 1.1, with features of other sizes
AGGRESSIVENESS = (0.03, 0.3, 3.0)  # C of passive-aggressive steps


@dataclass(frozen=True)
class Parts:
    """Disjoint utterances for the classifier, for the weights, and held out."""

    classifier: Sequence[Utterance]
    weights: Sequence[Utterance]
    held: Sequence[Utterance]

    @classmethod
    def of(cls, utterances: Sequence[Utterance], seed: int, proportions: tuple[int, int, int] = PAPER) -> Self:
        """A random split in these proportions; where they add up to the number of utterances, in these numbers.

        At least 100 are held out, or a fifth of all where that is less.
        """
        order = list(range(len(utterances)))
        random.Random(seed).shuffle(order)
        if len(order) < 3:
            raise ValueError(f"got {len(order)} aligned recordings, but wanted at least 3: each part needs one")
        total = sum(proportions)
        held = max(1, round(len(order) * proportions[2] / total), min(LEAST_HELD, len(order) // 5))
        first = min(max(1, round(len(order) * proportions[0] / total)), len(order) - held - 1)
        parts = (order[:first], order[first : len(order) - held], order[len(order) - held :])
        return cls(*([utterances[i] for i in part] for part in parts))


class PassiveAggressive(Hinge):
    r"""Hinge with Keshet 2007's steps: as long as this example asks for, and no longer than C.

    .. math:: w \leftarrow w + \min(C, \ell / \lVert \Delta\phi \rVert^2) \, \Delta\phi

    with :math:`\ell` the hinge and :math:`\Delta\phi` the reference's features without those of the loss-augmented
    alignment.
    """

    def __init__(self, loss: Loss, C: float = 1.0) -> None:
        super().__init__(loss)
        self.C = C


class AnnealedDirectLoss(DirectLoss):
    r"""Direct loss with the theory's schedule, for steps of size 1: :math:`\eta^t = 1 / \sqrt{t}`, as is
    :math:`\epsilon^t`, times the first one.
    """

    def __init__(self, loss: Loss, toward: bool = True, epsilon: float = 1.0) -> None:
        super().__init__(loss, inverse_square_root, toward)
        self.first = epsilon
        self.epsilon = partial(inverse_square_root, first=epsilon)

    def values(self, s: Structure, r: Any) -> Tensor:
        """The direct loss at this step's epsilon, times eta * epsilon."""
        values = super().values(s, r)
        return self.first * inverse_square_root(max(1, int(self.step))) ** 2 * values


def inverse_square_root(t: int, first: float = 1.0) -> float:
    """first / sqrt(t)."""
    return float(first * t**-0.5)


def make_ready(out: Path, plan: Plan) -> None:
    """Let training begin in a folder: an error where it holds a run, unless that is resumed or overwritten."""
    check_begin(plan)
    if not plan.resume:
        make_room([out, out / "classifier", *sorted((out / "runs").glob("*/"))], out, plan)


def prepare(
    parts: Parts, settings: dict[str, Any], out: Path, plan: Plan,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Aligner:  # fmt: skip
    """An aligner whose classifier is trained and whose weights are 0; the classifier's own run is in out/classifier.

    Of the plan it takes the seed, and how to begin and to write checkpoints. The kernel's classifier has no
    checkpoints: one pass over the frames, it is trained again where a run is resumed, and is the same.
    """
    task = Alignment()
    examples = task.examples([*parts.classifier, *parts.weights])
    config = task.configure(examples, {**task.settings, **settings})
    torch.manual_seed(plan.seed)
    model = Aligner(config)
    if isinstance(model.classifier, KernelClassifier):
        numbers = {phone: i for i, phone in enumerate(config["labels"])}
        pairs = [(u.x, torch.tensor([numbers[p] for p in u.frame_phones()])) for u in parts.classifier]
        for part in model.classifier.fit(pairs, plan.seed):
            on_progress(f"classifier: {100 * part:.0f} %")
    else:
        kind = Frames()
        wanted = {key: config[key] for key in ("labels", "inputs", "width", "context", "dropout")}
        own, objective = replace(plan, **asdict(kind.defaults(wanted))), NegativeLogLikelihood()
        frames = {"train": kind.examples(parts.classifier), "dev": kind.examples(parts.held)}
        fit(
            kind, FrameTagger(wanted), objective, frames["train"], frames["dev"], out / "classifier", own,
            record_of(kind, described(frames), wanted, objective, own),
            lambda row: on_progress(f"classifier: {100 * row['dev_accuracy']:.1f} % of the frames are right"),
        )  # fmt: skip
        _, best = load(out / "classifier", {kind.name: kind})
        assert isinstance(best, FrameTagger)
        model.classifier.load_state_dict(best.network.state_dict())
    scale = feature_scale(model, task.examples(parts.weights))
    config["scale"] = scale.tolist()
    model.scale.copy_(scale)
    return model


def train(
    model: Aligner, parts: Parts, objective: Objective, out: Path, plan: Plan,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """Train the weights, keep the best on the held-out part in `out`; a row for each epoch."""
    task = Alignment()
    if isinstance(objective, DirectLoss) and not callable(objective.epsilon) and model.config["learns"] != "all":
        plan = replace(plan, lr=plan.lr * objective.epsilon)  # update (8) is not divided by epsilon
    model.aggressiveness = objective.C if isinstance(objective, PassiveAggressive) else None
    examples = {"train": task.examples(parts.weights), "dev": task.examples(parts.held)}
    made = record_of(task, described(examples), model.config, objective, plan)
    made["classifier"] = digest(model.classifier.state_dict())  # before alignments change it
    return fit(task, model, objective, examples["train"], examples["dev"], out, plan, made, on_epoch)


def objective_of_name(name: str, loss: str, hop_ms: float) -> Objective:
    """As `structloss.naming` has it, "annealed" and "passive-aggressive:C=1" besides.

    A loss in milliseconds knows how long a frame is.
    """
    made = loss_of(f"{loss}{',' if ':' in loss else ':'}frame_ms={hop_ms:g}" if "tau_ms" in loss else loss)
    kind, settings = split(name, "objective")
    own: type[Objective] | None = {"annealed": AnnealedDirectLoss, "passive-aggressive": PassiveAggressive}.get(kind)
    return build(own, {"loss": made, **settings}, f"objective {name!r}") if own else objective_of(name, made)


def candidates(objective: str, epsilons: Sequence[float] = ()) -> list[str]:
    """The objectives to choose among: direct loss with each epsilon, Keshet's steps with each C, others as they are."""
    kind, settings = split(objective, "objective")
    if epsilons and (kind not in ("direct", "annealed") or "epsilon" in settings):
        raise ValueError(
            f"epsilon: got {list(epsilons)} for the objective {objective!r}, but it is for direct without one"
        )
    key, values = {
        "direct": ("epsilon", epsilons or EPSILONS), "annealed": ("epsilon", epsilons or EPSILONS),
        "passive-aggressive": ("C", AGGRESSIVENESS),
    }.get(kind, ("", ()))  # fmt: skip
    if not values or key in settings:
        return [objective]
    return [f"{objective}{',' if settings else ':'}{key}={value:g}" for value in values]


@dataclass(frozen=True)
class Tried:
    """An objective, the best of its held-out metrics, after how many epochs, and the share of steps that moved."""

    objective: str
    held_out: float
    epochs: int
    moved: float


def choose(
    model: Aligner, parts: Parts, objectives: Sequence[str], loss: str, out: Path, epochs: int | None, plan: Plan,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[Tried]:  # fmt: skip
    """Train from the same start under each of the objectives, and keep in `out` what is best on the held-out part.

    Of the plan it takes the seed, and how to begin and to write checkpoints. Returns what was tried, the best first;
    the model is left as it began.
    """
    task = Alignment()
    plan = replace(plan, **asdict(task.defaults(model.config)) | ({"epochs": epochs} if epochs else {}))
    begin = {key: value.clone() for key, value in model.state_dict().items()}
    model.keep([*task.examples(parts.weights), *task.examples(parts.held)])
    tried: list[Tried] = []
    for name in objectives:
        folder = out / "runs" / file_name(name) if len(objectives) > 1 else out
        history = train(model, parts, objective_of_name(name, loss, model.config["hop_ms"]), folder, plan)
        model.load_state_dict(begin)
        values = [row[f"dev_{task.metric}"] for row in history]
        steps = model.steps
        share = steps.moved / steps.taken if steps is not None and steps.taken else math.nan
        found = Tried(name, max(values), 1 + values.index(max(values)), share)
        on_progress(f"{name}: {100 * found.held_out:.2f} % of the held-out boundaries within 10 ms")
        if folder != out and all(found.held_out > other.held_out for other in tried):
            copy_model(folder, out)
        tried.append(found)
    return sorted(tried, key=lambda one: -one.held_out)
