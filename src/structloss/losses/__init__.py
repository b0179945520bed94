"""What an answer costs against a reference: one file for each family of losses."""

from structloss.losses.base import Loss
from structloss.losses.boundary import BoundaryInsensitive, BoundaryLoss, BoundaryTolerance
from structloss.losses.cache import CacheInfo, cache_info, clear_cache, set_cache_limit
from structloss.losses.edit import EditDistance, SmithWaterman
from structloss.losses.hamming import Hamming
from structloss.losses.local import LocalLoss
from structloss.losses.machine import MachineLoss
from structloss.losses.ngram import NGram
from structloss.losses.rational import RationalLoss
from structloss.losses.tropical import TropicalLoss

__all__ = [
    "BoundaryInsensitive",
    "BoundaryLoss",
    "BoundaryTolerance",
    "CacheInfo",
    "EditDistance",
    "Hamming",
    "LocalLoss",
    "Loss",
    "MachineLoss",
    "NGram",
    "RationalLoss",
    "SmithWaterman",
    "TropicalLoss",
    "cache_info",
    "clear_cache",
    "set_cache_limit",
]
