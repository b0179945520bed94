"""Chunk F1 as scikit-learn's scorers have it."""

from collections.abc import Sequence
from typing import Any

from structloss.tasks.tagging.chunks import chunk_score


def chunk_f1_scorer(estimator: Any, X: Any, y: Sequence[Sequence[str]]) -> float:
    """F1 of the chunks of all sentences, from 0 to 1: for `scoring=` of `GridSearchCV` and `cross_val_score`.

    A chunk counts where its type, begin and end are all right, as in seqeval and conlleval. Labels are IOB1, IOB2 or
    IOBES.

    Args:
        estimator: fitted; its `predict(X)` gives the labels of each sentence.
        X: sentences.
        y: their labels.

    Example:
        >>> from sklearn.model_selection import GridSearchCV
        >>> from structloss.estimators import ChainTagger, chunk_f1_scorer
        >>> X = [[["w=in"], ["w=New"], ["w=York"]], [["w=New"], ["w=York"]]] * 3
        >>> y = [["O", "B-LOC", "I-LOC"], ["B-LOC", "I-LOC"]] * 3
        >>> search = GridSearchCV(ChainTagger(), {"C": [0.1, 1.0]}, scoring=chunk_f1_scorer, cv=2).fit(X, y)
        >>> float(search.best_score_)
        1.0
    """
    return chunk_score(estimator.predict(X), y).f1
