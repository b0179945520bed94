"""scikit-learn front: estimators with the contract people know (needs the extra `sklearn`)."""

from structloss.estimators.chain_tagger import ChainTagger

__all__ = ["ChainTagger"]
