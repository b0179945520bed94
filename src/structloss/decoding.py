"""Minimum Bayes risk decoding: the answer whose expected loss is least, rather than the most probable one."""

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.structures.base import Structure


@runtime_checkable
class WritesStrings(Protocol):
    """A structure that lists its best different strings."""

    def topk_strings(self, k: int) -> tuple[Tensor, list[list[list[int]]]]:
        """What they are worth (k, B), and the strings of each example."""


class Decoded(NamedTuple):
    """What `mbr` finds for each example."""

    strings: list[list[int]]
    risks: Tensor  # (B,), the expected loss of each, under the candidates' distribution


def mbr(
    structure: Structure,
    loss: Loss,
    candidates: int = 32,
    method: Literal["topk", "strings", "sample"] = "topk",
    generator: torch.Generator | None = None,
) -> Decoded:
    r"""The candidate of least expected loss against the others, y drawn with their probabilities.

    .. math:: \arg\min_{y \in \mathcal C} \sum_{r \in \mathcal C} P(r) L(y, r)

    Args:
        structure: a Chain, a Lattice or CTC.
        loss: any loss; each candidate is the answer in turn, the others are the references.
        candidates: how many outputs to compare.
        method: "topk", the best outputs, exactly, with the probabilities that the structure gives them; "strings", the
            best different strings of CTC or a Lattice, by what `topk_strings` says that they are worth; or "sample",
            outputs drawn from it, each counted as often as it was drawn. Outputs that write the same string are one.
        generator: for "sample".

    Cost: that of finding the candidates, and candidates**2 losses an example. Of several candidates with the same risk,
    the most probable one.

    Example:
        >>> import torch, structloss as sl
        >>> chain = sl.Lattice.nbest([[[0, 1], [2, 3], [2, 4]]], torch.tensor([[0.40, 0.35, 0.25]]).log())
        >>> sl.mbr(chain, sl.EditDistance()).strings, chain.decode()
        ([[2, 3]], [[0, 1]])
    """
    if method not in ("topk", "strings", "sample"):
        raise ValueError(f'method: got {method!r}, but wanted "topk", "strings" or "sample"')
    if method == "strings" and not isinstance(structure, WritesStrings):
        raise NotImplementedError(f"method: {type(structure).__name__} has no topk_strings; CTC and Lattice have")
    if candidates < 1:
        raise ValueError(f"candidates: got {candidates!r}, but wanted at least 1")
    with torch.no_grad():
        if isinstance(structure, WritesStrings) and method == "strings":
            scores, listed = structure.topk_strings(candidates)
            weights = scores.double().softmax(0)
            strings = [[row[i] if i < len(row) else [] for row in listed] for i in range(candidates)]
        elif method == "topk":
            scores, outputs = structure.topk(candidates)
            weights = scores.double().softmax(0)  # (n, B)
            strings = structure.decode(outputs)  # (n, B) of strings
        else:
            outputs = structure.sample(candidates, generator)
            weights = torch.full(outputs.shape[:2], 1 / candidates, dtype=torch.float64)
            strings = structure.decode(outputs)
        found: list[list[int]] = []
        risks = []
        for b in range(len(structure)):
            total: dict[tuple[int, ...], float] = {}
            for string, weight in zip((row[b] for row in strings), weights[:, b].tolist(), strict=True):
                if weight > 0:
                    total[tuple(string)] = total.get(tuple(string), 0.0) + weight
            if not total:  # no output at all
                found.append([])
                risks.append(float("nan"))
                continue
            answers, probability = list(total), torch.tensor(list(total.values()), dtype=torch.float64)
            # One row an answer: its losses against every candidate as the reference.
            table = torch.stack([loss([y] * len(answers), answers).double() for y in answers])
            risk = table @ probability
            best = min(range(len(answers)), key=lambda i: (round(risk[i].item(), 12), -probability[i].item()))
            found.append(list(answers[best]))
            risks.append(risk[best].item())
    return Decoded(found, torch.tensor(risks, dtype=torch.get_default_dtype()))
