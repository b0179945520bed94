"""What a user hands a lattice: arcs, final states, scores and n-best lists, brought into one form and checked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.structures.checks import at_least_float32, check_floating, objection, unfit
from structloss.structures.rows import Ints

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_LAST_STATE = 2**31 - 1


def as_rows(arcs: Sequence[Any], columns: str) -> list[Ints]:
    """(n_b, 3) of each example, from integers that stand in these columns."""
    try:
        rows = [np.asarray(a.cpu() if isinstance(a, Tensor) else a) for a in arcs]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"arcs: got {arcs!r:.60}, but wanted a list of integers (n, 3), one for each example"
        ) from error
    for b, a in enumerate(rows):
        if a.size and (a.ndim != 2 or a.shape[1] != 3):
            raise ValueError(f"arcs: arcs[{b}] has shape {a.shape}, but wanted (n, 3): {columns}")
        if a.size and not np.issubdtype(a.dtype, np.integer):
            raise TypeError(f"arcs: arcs[{b}] has {a.dtype}, but wanted integers: {columns}")
        rows[b] = np.ascontiguousarray(a.reshape(-1, 3), np.int64)
    return rows


def as_arcs(arcs: Sequence[Any], num_labels: int | None) -> tuple[list[Ints], int]:
    """(n_b, 3) of each example, and how many labels there are."""
    rows = as_rows(arcs, "source, target, label")
    if num_labels is None:
        num_labels = 1 + max((int(a[:, 2].max(initial=0)) for a in rows), default=0)
    elif not isinstance(num_labels, int) or num_labels < 1:
        raise ValueError(f"num_labels: got {num_labels!r}, but wanted a whole number of at least 1")
    for b, a in enumerate(rows):
        for wrong, wanted in (
            (((a[:, :2] < 0) | (a[:, :2] > _LAST_STATE)).any(1), f"states are numbers from 0 to {_LAST_STATE}"),
            ((a[:, 2] < -1) | (a[:, 2] >= num_labels), f"labels are 0 to {num_labels - 1}, or -1 for epsilon"),
        ):
            if wrong.any():
                i = int(wrong.argmax())
                raise ValueError(f"arcs: arcs[{b}][{i}] is {a[i].tolist()}, but {wanted}")
    return rows, num_labels


def as_final(final: Sequence[Iterable[int] | Mapping[int, float]] | None, arcs: list[Ints]) -> list[dict[int, float]]:
    """The final states of each example and their scores."""
    if final is None:
        return [dict.fromkeys(np.setdiff1d(np.append(a[:, 1], 0), a[:, 0]).tolist(), 0.0) for a in arcs]
    if len(final) != len(arcs):
        raise ValueError(f"final: got {len(final)}, but arcs has {len(arcs)} examples")
    result = []
    for b, (given, a) in enumerate(zip(final, arcs, strict=True)):
        try:
            pairs = given.items() if isinstance(given, Mapping) else [(state, 0.0) for state in given]
            scores = {int(state): float(score) for state, score in pairs}
        except (TypeError, ValueError) as error:
            raise TypeError(f"final: final[{b}] is {given!r:.60}, but wanted states, or a dict of scores") from error
        named = {0, *a[:, :2].reshape(-1).tolist()}
        for state, score in scores.items():
            if state not in named:
                raise ValueError(f"final: final[{b}] has state {state}, but no arc of arcs[{b}] leaves or enters it")
            if not score < math.inf:
                raise ValueError(
                    f"final: final[{b}] has the score {score} for state {state}, but wanted a number or -inf"
                )
        result.append({state: score for state, score in scores.items() if score > -math.inf})
    return result


def as_scores(scores: Tensor | Sequence[Tensor], sizes: Ints) -> Tensor:
    """(sum of n_b,), numbers or -inf."""
    if not isinstance(scores, Tensor):
        if len(scores) != len(sizes):
            raise ValueError(f"scores: got a list of {len(scores)}, but wanted {len(sizes)}, one for each example")
        for b, (own, size) in enumerate(zip(scores, sizes.tolist(), strict=True)):
            check_floating(own, f"scores[{b}]")
            if own.shape != (size,):
                raise ValueError(f"scores: scores[{b}] has shape {tuple(own.shape)}, but wanted ({size},)")
        scores = torch.cat(list(scores)) if len(scores) else torch.zeros(0)
    check_floating(scores, "scores")
    if scores.shape != (int(sizes.sum()),):
        raise ValueError(
            f"scores: got shape {tuple(scores.shape)}, but wanted ({int(sizes.sum())},), one for each of the arcs of "
            f"{len(sizes)} examples in order"
        )
    wrong = unfit(scores)
    if wrong.any():
        i = int(wrong.int().argmax())
        b = int(np.searchsorted(np.cumsum(sizes), i, side="right"))
        raise ValueError(f"scores: example {b} has {objection(scores[i], f' at arc {i - int(sizes[:b].sum())}')}")
    return at_least_float32(scores)


def as_list(
    strings: Sequence[Sequence[Sequence[int] | Tensor]], scores: Tensor | Sequence[Tensor]
) -> tuple[list[Ints], Tensor, list[list[int]]]:
    """The arcs, scores and final states of label sequences and their scores (B, n), or a list of (n_b,).

    Each string is a path of its own, whose first arc has its score.
    """
    arcs, final, firsts, seen = [], [], [], 0
    for b, texts in enumerate(strings):
        rows: list[tuple[int, int, int]] = []
        ends = []
        for i, text in enumerate(texts):
            labels = torch.as_tensor(text)
            if labels.dim() != 1 or (labels.numel() and labels.dtype not in _INTEGERS):
                raise TypeError(f"strings: strings[{b}][{i}] is {text!r:.60}, but wanted a sequence of labels")
            if labels.numel() and int(labels.min()) < 0:
                raise ValueError(f"strings: strings[{b}][{i}] has the label {int(labels.min())}, below 0")
            firsts.append(seen + len(rows))
            source = 0
            for label in labels.tolist() or [-1]:
                rows.append((source, len(rows) + 1, label))
                source = len(rows)
            ends.append(source)
        arcs.append(np.array(rows, np.int64).reshape(-1, 3))
        final.append(ends)
        seen += len(rows)
    sizes = np.array([len(texts) for texts in strings], np.int64)
    if isinstance(scores, Tensor):
        if scores.dim() != 2 or scores.shape[0] != len(sizes) or (sizes - scores.shape[1]).any():
            wanted = f"(B, n), where B = {len(sizes)} and the lists have {sizes.tolist()} strings"
            raise ValueError(f"scores: got shape {tuple(scores.shape)}, but wanted {wanted}")
        scores = scores.flatten()
    values = as_scores(scores, sizes)
    places = torch.tensor(firsts, dtype=torch.int64, device=values.device)
    return arcs, values.new_zeros(seen).index_copy(0, places, values), final
