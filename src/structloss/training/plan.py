"""How to train."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How to train: at most `epochs`, of which this time only those up to `stop_after`.

    The first `warm_up` epochs train on the negative log-likelihood, whatever the objective: risk and direct loss have
    little to go by while all answers are about equally wrong. Training does not stop early before they are over. Where
    the learning rate `decays`, it falls evenly to 0 over all `epochs`. With `average` above 0 the model that is
    evaluated and kept has the moving average of the weights: after n steps its decay is the smaller of `average` and (1
    + n) / (10 + n), so that it forgets how training began. `l2` is the factor of |w|^2 / 2; for an objective that does
    not look at the norm of the weights (`Objective.norm_matters`), such as direct loss, it applies only where somebody
    asked for it, `l2_asked`. `init` is the directory of a model whose weights training begins with. Within an epoch a
    checkpoint is written every `checkpoint_seconds`.
    """

    epochs: int = 20
    batch_size: int = 16
    lr: float = 0.1
    l2: float = 1.0
    l2_asked: bool = False
    patience: int = 5
    average: float = 0.0
    decays: bool = False
    warm_up: int = 0
    stop_after: int | None = None
    init: str = ""
    seed: int = 0
    devices: int = 1
    resume: bool = False
    overwrite: bool = False
    checkpoint_seconds: float = 180.0
    progress: bool = True
