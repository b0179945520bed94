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


def as_rows(scores: Ragged, name: str, dims: int, axes: str) -> tuple[Tensor, list[int]]:
    """Scores (B, n, ...), or (n, ...) of each example, with `dims` axes after n, as one tensor; each example's n."""
    if isinstance(scores, Tensor):
        check_floating(scores, name)
        if scores.dim() != dims + 2:
            raise ValueError(f"{name}: got shape {tuple(scores.shape)}, but wanted (B, {axes})")
        flat, counts = scores.flatten(0, 1), [scores.shape[1]] * len(scores)
    else:
        rows = list(scores)
        if not rows:
            raise ValueError(f"{name}: got an empty list, but wanted a tensor for each example")
        for b, row in enumerate(rows):
            check_floating(row, f"{name}[{b}]")
            if row.dim() != dims + 1 or row.shape[1:] != rows[0].shape[1:]:
                shape = tuple(row.shape)
                raise ValueError(f"{name}: {name}[{b}] has shape {shape}, but wanted ({axes}), as {name}[0] has")
            if row.dtype != rows[0].dtype:
                raise TypeError(f"{name}: {name}[{b}] is {row.dtype}, but {name}[0] is {rows[0].dtype}")
        flat, counts = torch.cat(rows), [len(row) for row in rows]
    flat = at_least_float32(flat)
    wrong = unfit(flat)
    if wrong.any():
        i, *place = wrong.nonzero()[0].tolist()
        b = int(np.searchsorted(np.cumsum(counts), i, side="right"))
        where = f" at {(i - sum(counts[:b]), *place)}"
        raise ValueError(f"{name}: example {b} has {objection(flat[(i, *place)], where)}")
    return flat, counts


def variables_block(scores: Ragged) -> Block:
    """From scores (B, N, K), or (N, K) of each example."""
    flat, counts = as_rows(scores, "scores", 1, "N, K")
    if flat.shape[1] == 0:
        raise ValueError("scores: got no labels, but a variable has at least one")
    owner = np.repeat(np.arange(len(counts)), counts)
    return Block.variables(owner, np.full(len(owner), flat.shape[1]), flat.reshape(-1))


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
    flat, counts = as_rows(scores, "scores", arity, "F" + ", K" * arity)
    for b, count in enumerate(counts[: max(len(own), len(sizes))]):
        scope = own[b % len(own)]
        if count != len(scope):
            raise ValueError(f"scores: example {b} has scores of {count} factors, but scopes of {len(scope)}")
        _check_scopes(scope, sizes[b % len(sizes)], tuple(flat.shape[1:]), b)
    stacked = np.concatenate([own[0][:0].ravel(), *(x.ravel() for x in (own * batch if shared else own))])
    owner = np.repeat(np.arange(batch), counts)
    full = np.ones_like(owner)
    return Block(owner, math.prod(flat.shape[1:]) * full, flat.reshape(-1), arity * full, stacked)


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
