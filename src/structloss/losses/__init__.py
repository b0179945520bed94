"""What an answer costs against a reference: one file for each family. What stands in `__all__` is public."""

from structloss.losses.base import Loss
from structloss.losses.boundary import BoundaryInsensitive, BoundaryTolerance
from structloss.losses.boundary import BoundaryLoss as BoundaryLoss
from structloss.losses.brackets import BracketErrors
from structloss.losses.cache import CacheInfo, cache_info, clear_cache, set_cache_limit
from structloss.losses.chunks import ChunkErrors, ChunkF1, CorpusF1, CorpusFBeta
from structloss.losses.edit import EditDistance, SmithWaterman
from structloss.losses.hamming import Hamming
from structloss.losses.local import LocalLoss
from structloss.losses.machine import MachineLoss
from structloss.losses.ngram import NGram
from structloss.losses.pairs import PairErrors
from structloss.losses.rational import RationalLoss
from structloss.losses.references import without_padding
from structloss.losses.tropical import TropicalLoss
from structloss.losses.word_errors import WordErrors

__all__ = [
    "BoundaryInsensitive",
    "BoundaryTolerance",
    "BracketErrors",
    "CacheInfo",
    "ChunkErrors",
    "ChunkF1",
    "CorpusF1",
    "CorpusFBeta",
    "EditDistance",
    "Hamming",
    "LocalLoss",
    "Loss",
    "MachineLoss",
    "NGram",
    "PairErrors",
    "RationalLoss",
    "SmithWaterman",
    "TropicalLoss",
    "WordErrors",
    "cache_info",
    "clear_cache",
    "set_cache_limit",
    "without_padding",
]
