"""What an answer costs against a reference: one file for each family of losses."""

from structloss.losses.base import Loss, PositionLoss
from structloss.losses.hamming import Hamming

__all__ = ["Hamming", "Loss", "PositionLoss"]
