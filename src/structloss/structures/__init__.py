"""Sets of outputs with scores: one file for each structure, and its engines."""

from structloss.structures.base import Strata, Structure
from structloss.structures.certified import Certified
from structloss.structures.chain.allowed import Allowed, iob_transitions
from structloss.structures.chain.chain import Chain
from structloss.structures.chain.ctc import CTC
from structloss.structures.chain.layer import ChainLayer
from structloss.structures.chain.recurrent import RecurrentLayer
from structloss.structures.engine import enable_triton, engine
from structloss.structures.engine_info import engine_info
from structloss.structures.factor_graph.builder import FactorGraphBuilder
from structloss.structures.factor_graph.factor_graph import FactorGraph
from structloss.structures.factor_graph.relaxation import Certificate
from structloss.structures.graph.lattice import Lattice
from structloss.structures.pairs.alignment import Alignment
from structloss.structures.segments.segmentation import Segmentation
from structloss.structures.segments.semi_markov import SemiMarkov
from structloss.structures.trees.constituency import ConstituencyTree
from structloss.structures.trees.dependency import DependencyTree
from structloss.structures.trees.forest import Forest
from structloss.structures.trees.pcfg import PCFG

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
    "RecurrentLayer",
    "Segmentation",
    "SemiMarkov",
    "Strata",
    "Structure",
    "enable_triton",
    "engine",
    "engine_info",
    "iob_transitions",
]
