"""scikit-learn front: estimators with the contract people know (needs the extra `sklearn`)."""

from structloss.estimators.chain_tagger import ChainTagger
from structloss.estimators.features import FeatureTable
from structloss.estimators.scoring import chunk_f1_scorer

__all__ = ["ChainTagger", "FeatureTable", "chunk_f1_scorer"]
