"""Train structured-prediction models on the loss you report, exactly."""

from importlib.metadata import version

from structloss.automata import LossAutomaton, OpenAutomaton, TooManyStatesError, Transducer
from structloss.decoding import mbr
from structloss.losses import (
    BoundaryInsensitive,
    BoundaryTolerance,
    CacheInfo,
    EditDistance,
    Hamming,
    Loss,
    NGram,
    RationalLoss,
    SmithWaterman,
    TropicalLoss,
    cache_info,
    clear_cache,
    set_cache_limit,
)
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
from structloss.structures import (
    Chain,
    ChainLayer,
    FactorGraph,
    Lattice,
    Segmentation,
    SemiMarkov,
    Strata,
    Structure,
    engine,
)

__version__ = version("structloss")

__all__ = [
    "BoundaryInsensitive",
    "BoundaryTolerance",
    "CacheInfo",
    "Chain",
    "ChainLayer",
    "DirectLoss",
    "EditDistance",
    "FactorGraph",
    "Hamming",
    "Hinge",
    "Lattice",
    "Loss",
    "LossAutomaton",
    "NGram",
    "NegativeLogLikelihood",
    "Objective",
    "OpenAutomaton",
    "Perceptron",
    "RationalLoss",
    "RewardAugmented",
    "Risk",
    "Segmentation",
    "SemiMarkov",
    "SlackHinge",
    "SmithWaterman",
    "SoftmaxMargin",
    "Strata",
    "Structure",
    "TooManyStatesError",
    "Transducer",
    "TropicalLoss",
    "__version__",
    "cache_info",
    "clear_cache",
    "engine",
    "mbr",
    "set_cache_limit",
]
