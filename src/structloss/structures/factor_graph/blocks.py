"""What a user gives a factor graph, checked and brought into blocks."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.structures.checks import at_least_float32, check_floating, objection, unfit
from structloss.structures.factor_graph.parts import Block, Ints

Ragged = Tensor | Sequence[Tensor]


def check_numbers(x: Tensor, name: str, b: int | None = None) -> None:
    """Raise if a score is NaN, +inf or too large; x is of example b, or has the examples as its first axis."""
    wrong = unfit(x)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        score = x[tuple(place)]
        example, place = (place[0], place[1:]) if b is None else (b, place)
        raise ValueError(f"{name}: example {example} has {objection(score, f' at {tuple(place)}')}")


def as_rows(scores: Ragged, name: str, dims: int, axes: str) -> list[Tensor] | Tensor:
    """Scores of a batch (B, n, ...), or of each example (n, ...); with `dims` axes after n."""
    if isinstance(scores, Tensor):
        check_floating(scores, name)
        if scores.dim() != dims + 2:
            raise ValueError(f"{name}: got shape {tuple(scores.shape)}, but wanted (B, {axes})")
        scores = at_least_float32(scores)
        check_numbers(scores, name)
        return scores
    rows = list(scores)
    if not rows:
        raise ValueError(f"{name}: got an empty list, but wanted a tensor for each example")
    for b, row in enumerate(rows):
        check_floating(row, f"{name}[{b}]")
        if row.dim() != dims + 1 or row.shape[1:] != rows[0].shape[1:]:
            raise ValueError(f"{name}: {name}[{b}] has shape {tuple(row.shape)}, but wanted ({axes}), as {name}[0] has")
        if row.dtype != rows[0].dtype:
            raise TypeError(f"{name}: {name}[{b}] is {row.dtype}, but {name}[0] is {rows[0].dtype}")
        check_numbers(row, name, b)
    return [at_least_float32(row) for row in rows]


def variables_block(scores: Ragged) -> Block:
    """From scores (B, N, K), or (N, K) of each example."""
    rows = as_rows(scores, "scores", 1, "N, K")
    counts = [rows.shape[1]] * len(rows) if isinstance(rows, Tensor) else [len(row) for row in rows]
    flat = rows if isinstance(rows, Tensor) else torch.cat(rows)
    if flat.shape[-1] == 0:
        raise ValueError("scores: got no labels, but a variable has at least one")
    owner = np.repeat(np.arange(len(counts)), counts)
    return Block.variables(owner, np.full(len(owner), flat.shape[-1]), flat.reshape(-1))


def factors_block(scopes: Any, scores: Ragged, batch: int, sizes: Sequence[Ints]) -> Block:
    """From scopes (F, arity) for all, or of each example, and scores (B, F, K, ...), or (F, K, ...) of each.

    sizes[b] says how many labels the variables of example b have; where examples are alike there is only sizes[0].
    """
    shared = isinstance(scores, Tensor)
    own = [_as_scopes(x) for x in ([scopes] if shared else scopes)]
    if not shared and len(own) != batch:
        raise ValueError(f"scopes: got {len(own)} examples, but the graph has {batch}: scores are a list, so is this")
    if len(scores) != batch:
        raise ValueError(f"scores: got {len(scores)} examples, but the graph has {batch}")
    arity = own[0].shape[1]
    rows = as_rows(scores, "scores", arity, "F" + ", K" * arity)
    counts = [rows.shape[1]] if isinstance(rows, Tensor) else [len(row) for row in rows]
    extents = tuple(rows.shape[2:] if isinstance(rows, Tensor) else rows[0].shape[1:])
    for b in range(max(len(own), len(sizes))):
        scope, count = own[b if len(own) > 1 else 0], counts[b if len(counts) > 1 else 0]
        if count != len(scope):
            raise ValueError(f"scores: example {b} has scores of {count} factors, but scopes of {len(scope)}")
        _check_scopes(scope, sizes[b if len(sizes) > 1 else 0], extents, b)
    each = own * batch if shared else own
    owner = np.repeat(np.arange(batch), [len(x) for x in each])
    stacked = np.concatenate([own[0][:0].ravel(), *(x.ravel() for x in each)])
    flat = rows if isinstance(rows, Tensor) else torch.cat(rows)
    full = np.ones_like(owner)
    return Block(owner, math.prod(extents) * full, flat.reshape(-1), arity * full, stacked)


def _as_scopes(scopes: Tensor | Sequence[Sequence[int]]) -> Ints:
    """(F, arity)"""
    x = torch.as_tensor(scopes)
    if x.dim() != 2 or x.is_floating_point():
        raise ValueError(f"scopes: got {x.dtype} of shape {tuple(x.shape)}, but wanted integers (F, arity)")
    if x.shape[1] == 0:
        raise ValueError("scopes: got a factor over no variable")
    return x.cpu().numpy().astype(np.int64)


def _check_scopes(scope: Ints, sizes: Ints, extents: tuple[int, ...], b: int) -> None:
    """Raise unless the variables of scopes (F, arity) are those of the example, once each, with so many labels."""
    unknown = (scope < 0) | (scope >= len(sizes))
    if unknown.any():
        raise ValueError(
            f"scopes: got variable {scope[unknown][0]}, but example {b} has the variables 0 to {len(sizes) - 1}"
        )
    ordered = np.sort(scope, 1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if twice.any():
        raise ValueError(f"scopes: got {tuple(scope[int(twice.argmax())].tolist())}, which names a variable twice")
    wrong = (sizes[scope] != np.array(extents)).any(1)
    if wrong.any():
        f = int(wrong.argmax())
        raise ValueError(
            f"scores: got a table {extents} for a factor over the variables {tuple(scope[f].tolist())} of example {b}, "
            f"which have {tuple(sizes[scope[f]].tolist())} labels"
        )


def grid_edges(height: int, width: int) -> tuple[Tensor, Tensor]:
    """The pairs of neighbours in a row, from left to right, and in a column, from above, (n, 2) each."""
    numbers = torch.arange(height * width).reshape(height, width)
    across = torch.stack([numbers[:, :-1].reshape(-1), numbers[:, 1:].reshape(-1)], 1)
    down = torch.stack([numbers[:-1].reshape(-1), numbers[1:].reshape(-1)], 1)
    return across, down
