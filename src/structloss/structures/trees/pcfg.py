"""PCFG: the derivations of sentences by a grammar of binary rules, whose rules have scores."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from structloss.losses.references import as_lengths
from structloss.structures.base import Found
from structloss.structures.checks import at_least_float32, check_floating, objection, unfit
from structloss.structures.trees.charts import Chart, of_grammar
from structloss.structures.trees.spans import SpanTrees


class PCFG(SpanTrees):
    r"""A batch of sets of derivations of sentences of two words and more by a grammar in Chomsky's normal form.

    Of K symbols the first N, the nonterminals, have rules a -> l r; the last P, the preterminals, are those of single
    words. A sentence is derived from a nonterminal.

    .. math:: \text{score}(y) = \text{roots}[a_1] + \sum_{a \to l\, r \,\in y} \text{rules}[a, l, r]
              + \sum_t \text{preterminals}[t, p_t]

    With normalised scores this is a probabilistic grammar and log_partition() the log-probability of the sentences; any
    others do. It is a chart as a `Forest`: time and memory T**3 / 6 times the number of rules, N * K * K, so that it is
    for small grammars. A sentence of one word has no derivation, one of no words an empty one.

    Args:
        rules: floating-point (N, K, K), shared by all sentences; -inf forbids, here and below.
        preterminals: (B, T, P), of each word having each preterminal, which is symbol N + p.
        roots: (N,), of a sentence being derived from each nonterminal; by default 0.
        lengths: integers (B,), or a mask (B, T) of True, then False.

    Outputs are brackets (B, 2T - 1) as those of a `ConstituencyTree` with K labels, in the same order; so are
    references. Of several best derivations the smallest is chosen by rules: the earliest place where two parts meet,
    then the smallest symbols. `marginals()` is how often each rule is used in the mean, over the batch, (N, K, K).

    Example:
        >>> import torch, structloss as sl
        >>> rules = torch.full((1, 3, 3), -1.0)  # one nonterminal, 0, and the preterminals 1 and 2
        >>> grammar = sl.PCFG(rules, torch.tensor([[[0., 1.], [2., 0.], [0., 0.5]]]))
        >>> grammar.decode(), grammar.max()
        ([[(0, 2, 0), (0, 0, 2), (1, 2, 0), (1, 1, 1), (2, 2, 2)]], tensor([1.5000]))
    """

    def __init__(
        self,
        rules: Tensor,
        preterminals: Tensor,
        roots: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> None:
        for x, name in ((rules, "rules"), (preterminals, "preterminals")):
            check_floating(x, name)
            if x.dim() != 3 or x.dtype != rules.dtype:
                raise ValueError(f"{name}: got shape {tuple(x.shape)} of {x.dtype}, but wanted (N, K, K) and (B, T, P)")
        (N, K, other), (B, T, P) = rules.shape, preterminals.shape
        roots = rules.new_zeros(N) if roots is None else roots
        if not N or not P or K != N + P or other != K or roots.shape != (N,):
            raise ValueError(
                f"rules: got shape {tuple(rules.shape)} for {P} preterminals and roots of shape {tuple(roots.shape)}, "
                "but wanted (N, K, K) and (N,), where K = N + P"
            )
        self.lengths = as_lengths(lengths, B, T, preterminals.device)
        within = (torch.arange(T, device=preterminals.device) < self.lengths[:, None])[..., None]
        for x, inside, name in (
            (rules, torch.ones_like(rules, dtype=torch.bool), "rules"),
            (preterminals, within, "preterminals"),
            (roots, torch.ones_like(roots, dtype=torch.bool), "roots"),
        ):
            wrong = unfit(x) & inside
            if wrong.any():
                place = tuple(wrong.nonzero()[0].tolist())
                raise ValueError(f"{name}: got {objection(x[place], f' at {place}')}")
        self._of_rules, self._roots = at_least_float32(rules), at_least_float32(roots)
        own = at_least_float32(torch.where(within, preterminals, 0))
        padded = torch.nn.functional.pad(own, (N, 0))  # (B, T, K)
        self._scores = torch.where(torch.eye(T, dtype=torch.bool, device=own.device)[:, :, None], padded[:, :, None], 0)

    def _sizes(self) -> dict[str, object]:
        return {"words": self._scores.shape[1], "nonterminals": len(self._roots), "symbols": self.num_labels}

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return self._of_rules, self._scores, self._roots

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        rules, scores, roots = potentials
        return self._with(_of_rules=rules, _scores=scores, _roots=roots)

    @property
    def _rules(self) -> Tensor:
        return torch.cat([self._of_rules.flatten(), self._roots])

    @property
    def _chart(self) -> Chart:
        parts = self.num_labels - len(self._roots)
        return of_grammar(tuple(self.lengths.tolist()), self._scores.shape[1], self.num_labels, parts)

    def _score(self, choices: Tensor) -> Tensor:
        symbols, width, inner = self.num_labels, self._scores.shape[1], len(self._roots)
        used = torch.full((*choices.shape[:2], width + 1), -1, dtype=torch.int64)
        for place, row in enumerate(choices.flatten(0, 1).tolist()):
            stack: list[int] = []
            count, found = 0, used[divmod(place, choices.shape[1])]
            for code in reversed([code for code in row if code >= 0]):
                symbol, i, j = code % symbols, code // (width * symbols), code // symbols % width
                if i == j and symbol >= inner:
                    stack.append(symbol)
                elif i < j and symbol < inner:
                    count += 1
                    found[count] = (symbol * symbols + stack.pop()) * symbols + stack.pop()
                    stack.append(symbol)
                else:  # a word that has a nonterminal, or a longer span that has none
                    stack = [inner]
                    break
            if stack:
                found[0] = inner * symbols**2 + stack[0] if stack[0] < inner else -2
        used, there = used.to(self.device), choices >= 0
        none = (used == -2).any(2) | (~there.any(2) & (self.lengths > 0))
        own = torch.cat([self._rules[used.clamp(min=0)], self._own(choices)], 2)
        return self._summed(own, torch.cat([used >= 0, there], 2), none)

    def _best(self, k: int) -> Found:
        return self._ranked(k)

    def _log_partition(self) -> Tensor:
        return self._forest._log_partition()

    def _expectation(self, other: Self) -> Tensor:
        return self._forest._expectation(other._forest)
