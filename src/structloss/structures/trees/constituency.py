"""ConstituencyTree: the binary trees over the words of a sentence, whose spans have labels and scores."""

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from structloss.losses.references import as_lengths
from structloss.structures.base import Found
from structloss.structures.checks import check_floating
from structloss.structures.kinds import Computed
from structloss.structures.scores import of_numbers
from structloss.structures.trees import native_engine, torch_engine
from structloss.structures.trees.charts import Chart, of_labels
from structloss.structures.trees.parts import Spans
from structloss.structures.trees.spans import SpanTrees


class ConstituencyTree(SpanTrees, Computed):
    r"""A batch of sets of binary trees: two neighbouring spans meet in a larger one, up to the whole sentence.

    A tree over n words has 2n - 1 spans, each word's own and the n - 1 of two words and more; each has one of K labels.

    .. math:: \text{score}(y) = \sum_{(i, j, k) \in y} \text{scores}[i, j, k]

    Sums and maxima cost T**3 + T**2 * K (Cocke, Kasami and Younger). `topk`, `sample` and `strata` are those of the
    chart as a `Forest`. A label may stand for "no constituent", for trees that are not binary.

    Args:
        scores: floating-point (B, T, T, K), of the span from word i to word j, both included, with label k; -inf
            forbids. What is before the diagonal, where j < i, is not read.
        lengths: integers (B,), or a mask (B, T) of True, then False.

    Outputs are brackets (B, 2T - 1), each before those inside it, from left to right, -1 after the last: a span with
    its label is the number (i * T + j) * K + k, which `brackets(y)` takes apart; `decode()` gives tuples (i, j, k). A
    reference is of each example a list of such tuples, or brackets as numbers (B, L): all of a tree's, or those that
    are known, or that count under `BracketErrors`. Of several best trees the lexicographically smallest is chosen.
    `marginals()` is the probability of each span and label, (B, T, T, K). bfloat16 and float16 are computed and
    returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> scores = torch.zeros(1, 3, 3, 2)
        >>> scores[0, 1, 2, 1] = 2.0  # the last two words are a constituent with label 1
        >>> trees = sl.ConstituencyTree(scores)
        >>> trees.decode()
        [[(0, 2, 0), (0, 0, 0), (1, 2, 1), (1, 1, 0), (2, 2, 0)]]
        >>> trees.expected(sl.BracketErrors(miss=1, false_alarm=0), [[(1, 2, 1)]])
        tensor([0.2888])
    """

    _made = ("_parts",)
    _engines = native_engine, torch_engine

    def __init__(self, scores: Tensor, lengths: Tensor | Sequence[int] | None = None) -> None:
        check_floating(scores, "scores")
        shape = tuple(scores.shape)
        if len(shape) != 4 or shape[1] != shape[2] or not shape[3]:
            raise ValueError(f"scores: got shape {shape}, but wanted (B, T, T, K): a score for each span and label")
        self.lengths = as_lengths(lengths, shape[0], shape[1], scores.device)
        self._scores = of_numbers(
            scores, lambda: Spans(scores, self.lengths).within[..., None], "scores",
            lambda b, i, j, k: f" for the span from word {i} to {j}",
        )  # fmt: skip

    @cached_property
    def _parts(self) -> Spans:
        return Spans(self._scores, self.lengths)

    def _sizes(self) -> dict[str, object]:
        return {"words": self._scores.shape[1], "labels": self.num_labels}

    @property
    def _chart(self) -> Chart:
        return of_labels(tuple(self.lengths.tolist()), *self._scores.shape[2:])

    def _score(self, choices: Tensor) -> Tensor:
        used = choices >= 0
        return self._summed(self._own(choices), used, ~used.any(2) & (self.lengths > 0))

    def _best(self, k: int) -> Found:
        return super(SpanTrees, self)._best(k) if k == 1 else self._ranked(k)
