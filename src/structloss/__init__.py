"""Train structured-prediction models on the loss you report, exactly."""

from importlib.metadata import version

from structloss.losses import Hamming, Loss
from structloss.objectives import (
    DirectLoss,
    Hinge,
    NegativeLogLikelihood,
    Objective,
    Perceptron,
    RewardAugmented,
    Risk,
    SlackHinge,
    SoftmaxMargin,
)
from structloss.structures import Chain, ChainLayer, Strata, Structure, engine

__version__ = version("structloss")

__all__ = [
    "Chain",
    "ChainLayer",
    "DirectLoss",
    "Hamming",
    "Hinge",
    "Loss",
    "NegativeLogLikelihood",
    "Objective",
    "Perceptron",
    "RewardAugmented",
    "Risk",
    "SlackHinge",
    "SoftmaxMargin",
    "Strata",
    "Structure",
    "__version__",
    "engine",
]
