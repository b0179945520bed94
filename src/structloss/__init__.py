"""Train structured-prediction models on the loss you report, exactly."""

from importlib.metadata import version

from structloss import losses, objectives
from structloss.automata import LossAutomaton, OpenAutomaton, TooManyStatesError, Transducer
from structloss.decoding import mbr
from structloss.losses import *  # noqa: F403
from structloss.objectives import *  # noqa: F403
from structloss.structures import (
    CTC,
    PCFG,
    Alignment,
    Allowed,
    Certificate,
    Certified,
    Chain,
    ChainLayer,
    ConstituencyTree,
    DependencyTree,
    FactorGraph,
    FactorGraphBuilder,
    Forest,
    Lattice,
    RecurrentLayer,
    Segmentation,
    SemiMarkov,
    Strata,
    Structure,
    enable_triton,
    engine,
    engine_info,
    iob_transitions,
)

__version__ = version("structloss")

__all__ = [
    "CTC",
    "PCFG",
    "Alignment",
    "Allowed",
    "Certificate",
    "Certified",
    "Chain",
    "ChainLayer",
    "ConstituencyTree",
    "DependencyTree",
    "FactorGraph",
    "FactorGraphBuilder",
    "Forest",
    "Lattice",
    "LossAutomaton",
    "OpenAutomaton",
    "RecurrentLayer",
    "Segmentation",
    "SemiMarkov",
    "Strata",
    "Structure",
    "TooManyStatesError",
    "Transducer",
    "__version__",
    "enable_triton",
    "engine",
    "engine_info",
    "iob_transitions",
    "mbr",
]
__all__ += losses.__all__
__all__ += objectives.__all__
