"""What a user gives a factor graph, checked and brought into blocks."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from structloss.structures.checks import at_least_float32, check_floating, objection, unfit
from structloss.structures.graph_parts import Factors, Ints, Variables

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


def variables_block(scores: Ragged) -> Variables:
    """From scores (B, N, K), or (N, K) of each example."""
    rows = as_rows(scores, "scores", 1, "N, K")
    counts = np.full(len(rows), rows.shape[1]) if isinstance(rows, Tensor) else np.array([len(row) for row in rows])
    flat = rows.flatten(0, 1) if isinstance(rows, Tensor) else torch.cat(rows)
    if flat.shape[1] == 0:
        raise ValueError("scores: got no labels, but a variable has at least one")
    return Variables(counts.astype(np.int64), flat)


def factors_block(
    scopes: Tensor | Sequence[Sequence[int]] | Sequence[Tensor], scores: Ragged, visible: Ints, sizes: Sequence[Ints]
) -> Factors:
    """From scopes (F, arity) for all, or of each example, and scores (B, F, K, ...), or (F, K, ...) of each.

    sizes[b] says how many labels the variables of example b have, of which there are visible[b].
    """
    batch = len(visible)
    ragged = not isinstance(scores, Tensor)
    own = [torch.as_tensor(x) for x in scopes] if ragged else [torch.as_tensor(scopes)] * batch
    if len(own) != batch:
        raise ValueError(f"scopes: got {len(own)} examples, but the graph has {batch}: scores are a list, so is this")
    if len(scores) != batch:
        raise ValueError(f"scores: got {len(scores)} examples, but the graph has {batch}")
    arrays: list[Ints] = []
    for b, x in enumerate(own if ragged else own[:1]):
        if x.dim() != 2 or x.is_floating_point():
            raise ValueError(f"scopes: got {x.dtype} of shape {tuple(x.shape)}, but wanted integers (F, arity)")
        arrays.append(x.cpu().numpy().astype(np.int64))
        _check_scopes(arrays[-1], b, visible)
    if not ragged:
        for b in range(1, batch):
            _check_scopes(arrays[0], b, visible)
    arity = arrays[0].shape[1]
    rows = as_rows(scores, "scores", arity, "F" + ", K" * arity)
    each = [len(x) for x in (arrays if ragged else arrays * batch)]
    extents = tuple(rows[0].shape[1:])
    for b in range(batch):
        scope = arrays[b if ragged else 0]
        if len(rows[b]) != len(scope):
            raise ValueError(f"scores: example {b} has scores of {len(rows[b])} factors, but scopes of {len(scope)}")
        wrong = (sizes[b][scope] != np.array(extents)).any(1)
        if wrong.any():
            f = int(wrong.argmax())
            wanted = tuple(sizes[b][scope[f]].tolist())
            raise ValueError(
                f"scores: got a table {extents} for a factor over the variables {tuple(scope[f].tolist())} of example "
                f"{b}, which have {wanted} labels"
            )
        if not ragged and (sizes[b] is sizes[0]):
            break
    flat = rows.reshape(-1, *extents) if isinstance(rows, Tensor) else torch.cat(rows)
    stacked = np.concatenate(arrays) if ragged else np.tile(arrays[0], (batch, 1))
    return Factors(np.array(each, np.int64), stacked, flat.reshape(len(flat), -1))


def _check_scopes(scope: Ints, b: int, visible: Ints) -> None:
    if scope.shape[1] == 0:
        raise ValueError("scopes: got a factor over no variable")
    unknown = (scope < 0) | (scope >= visible[b])
    if unknown.any():
        raise ValueError(
            f"scopes: got variable {scope[unknown][0]}, but example {b} has the variables 0 to {visible[b] - 1}"
        )
    ordered = np.sort(scope, 1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if twice.any():
        raise ValueError(f"scopes: got {tuple(scope[int(twice.argmax())].tolist())}, which names a variable twice")


def grid_edges(height: int, width: int) -> tuple[Tensor, Tensor]:
    """The pairs of neighbours in a row, from left to right, and in a column, from above, (n, 2) each."""
    numbers = torch.arange(height * width).reshape(height, width)
    across = torch.stack([numbers[:, :-1].reshape(-1), numbers[:, 1:].reshape(-1)], 1)
    down = torch.stack([numbers[:-1].reshape(-1), numbers[1:].reshape(-1)], 1)
    return across, down
