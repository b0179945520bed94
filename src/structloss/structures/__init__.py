"""Sets of outputs with scores: one file for each structure, and its engines."""

from structloss.structures.base import Strata, Structure
from structloss.structures.chain import Chain
from structloss.structures.engine import engine
from structloss.structures.factor_graph import FactorGraph
from structloss.structures.lattice import Lattice
from structloss.structures.layer import ChainLayer
from structloss.structures.segmentation import Segmentation
from structloss.structures.semi_markov import SemiMarkov

__all__ = [
    "Chain",
    "ChainLayer",
    "FactorGraph",
    "Lattice",
    "Segmentation",
    "SemiMarkov",
    "Strata",
    "Structure",
    "engine",
]
