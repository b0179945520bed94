"""One door for references and answers, one for lengths: brought into one form, and checked once.

A list of label sequences has its own lengths. In a tensor or an array (B, U), what is negative at the end of a row is
padding, and -100 inside is an unknown label: it agrees with every label, at no cost. A boolean tensor (B, U, K) says
which labels each position may have. It is the same in every structure, loss and metric.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.checks import UNKNOWN, first_bad_label

Labels: TypeAlias = Tensor | NDArray[Any] | Sequence[Sequence[int] | Tensor | NDArray[Any]]
String: TypeAlias = NDArray[np.int64]  # labels (n,), UNKNOWN where any will do; or sets of them (n, m), filled with -1

__all__ = [
    "UNKNOWN",
    "Labels",
    "Positions",
    "String",
    "as_aligned",
    "as_aligned_strings",
    "as_lengths",
    "as_padded",
    "as_pairs",
    "as_positions",
    "as_rows",
    "as_strings",
    "check_labels",
    "is_sets",
    "without_padding",
]  # fmt: skip

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


# --- Lengths ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Positions:
    """Which of the T positions of each example count: the first `lengths` of all, or of those that `index` lists."""

    lengths: Tensor  # (B,)
    width: int  # T
    index: Tensor | None = None  # (B, T): the positions that count first; None where they come first as it is

    @property
    def within(self) -> Tensor:
        """(B, T): the first `lengths`."""
        return torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]

    def examples(self, index: Tensor) -> "Positions":
        """Those of some examples."""
        return Positions(self.lengths[index], self.width, None if self.index is None else self.index[index])

    def compact(self, x: Tensor) -> Tensor:
        """x (B, T, ...) with the positions that count first."""
        return x if self.index is None else x[torch.arange(x.shape[0], device=x.device)[:, None], self.index]

    def compact_outputs(self, y: Tensor) -> Tensor:
        """y (..., B, T) with the positions that count first."""
        return y if self.index is None else y.gather(-1, self.index.expand(y.shape))

    def spread(self, x: Tensor) -> Tensor:
        """x (B, T, ...) back where it was, 0 at the positions that do not count."""
        if self.index is None:
            return x
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        return torch.zeros_like(x).index_put((rows, self.index), x)

    def spread_outputs(self, y: Tensor) -> Tensor:
        """y (..., B, T), -1 beyond a length, back where it was."""
        return y if self.index is None else y.scatter(-1, self.index.expand(y.shape), y)


def as_positions(
    lengths: Tensor | Sequence[int] | None, batch: int, width: int, device: torch.device, name: str = "lengths"
) -> Positions:
    """From lengths (B,); from a mask (B, T) of booleans or of 0 and 1, gaps allowed; or from None: all of T."""
    if lengths is None:
        return Positions(torch.full((batch,), width, dtype=torch.int64, device=device), width)
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths)
        if lengths.numel() == 0 and lengths.dim() == 1:
            lengths = lengths.to(torch.int64)
    if lengths.dtype not in (*_INTEGERS, torch.bool):
        raise TypeError(f"{name}: got {lengths.dtype}, but wanted integers (B,) or a mask (B, T)")
    if lengths.dim() == 2 or lengths.dtype == torch.bool:
        return _of_mask(lengths.to(device), batch, width, name)
    if lengths.shape != (batch,):
        raise ValueError(f"{name}: got shape {tuple(lengths.shape)}, but wanted ({batch},), one for each example")
    lengths = lengths.to(device=device, dtype=torch.int64)
    if not torch.compiler.is_compiling() and batch:
        on_cpu = lengths.cpu().numpy()
        if on_cpu.min() < 0 or on_cpu.max() > width:
            b = int(((on_cpu < 0) | (on_cpu > width)).argmax())
            raise ValueError(f"{name}: {name}[{b}] is {on_cpu[b]}, but wanted 0 to {width}, all that there are")
    return Positions(lengths, width)


def _of_mask(mask: Tensor, batch: int, width: int, name: str) -> Positions:
    if mask.shape != (batch, width):
        raise ValueError(f"{name}: got a mask of shape {tuple(mask.shape)}, but wanted ({batch}, {width})")
    compiling = torch.compiler.is_compiling()
    if mask.dtype != torch.bool:
        if not compiling and ((mask != 0) & (mask != 1)).any():
            raise ValueError(f"{name}: got a mask with {int(mask.max())} in it, but wanted 0 and 1, or booleans")
        mask = mask != 0
    lengths = mask.sum(1)
    if not compiling and torch.equal(mask, torch.arange(width, device=mask.device) < lengths[:, None]):
        return Positions(lengths, width)
    return Positions(lengths, width, torch.argsort(~mask, dim=1, stable=True))


def as_lengths(
    lengths: Tensor | Sequence[int] | None, batch: int, width: int, device: torch.device, name: str = "lengths"
) -> Tensor:
    """Lengths (B,), for what cannot skip a position: a mask must be True, then False."""
    found = as_positions(lengths, batch, width, device, name)
    if found.index is not None:
        gap = (found.within & (found.index != torch.arange(width, device=device))).any(1)
        if gap.any():
            b = int(gap.int().argmax())
            raise ValueError(f"{name}: the mask of example {b} has a gap, but wanted True, then False")
    return found.lengths


# --- Labels ----------------------------------------------------------------------------------------------------------


def as_padded(
    labels: Labels, name: str, device: torch.device | None = None, between: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Labels (..., B, U), int64, and for a list of sequences their lengths (B,), padded with -1.

    What may lie `between` frames may be floating-point, and is float64 then.
    """
    kinds = (*_INTEGERS, torch.float64, torch.float32) if between else _INTEGERS
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        labels = torch.from_numpy(np.ascontiguousarray(labels))
    if isinstance(labels, Tensor):
        if labels.dtype not in kinds:
            raise TypeError(f"{name}: got {labels.dtype}, but labels are integers")
        if labels.dim() < 2:
            raise ValueError(f"{name}: got shape {tuple(labels.shape)}, but wanted (B, T)")
        return _finite(labels, name).to(device=device, dtype=_kind([labels])), None
    try:
        # Python's floats are of float64, which torch would round.
        rows = [torch.as_tensor(np.asarray(row) if between and not isinstance(row, Tensor) else row) for row in labels]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: got {labels!r:.60}, but wanted a tensor (B, T) or a list of label sequences"
        ) from error
    for b, row in enumerate(rows):
        if row.dim() != 1 or (row.numel() and row.dtype not in kinds):
            raise TypeError(f"{name}: {name}[{b}] is {labels[b]!r:.60}, but wanted a sequence of integer labels")
    lengths = torch.tensor([row.numel() for row in rows], dtype=torch.int64, device=device)
    padded = torch.full((len(rows), max([row.numel() for row in rows], default=0)), -1, dtype=_kind(rows))
    for b, row in enumerate(rows):
        padded[b, : row.numel()] = _finite(row, name)
    return padded.to(device), lengths


def _kind(rows: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(row.is_floating_point() and row.numel() for row in rows) else torch.int64


def _finite(labels: Tensor, name: str) -> Tensor:
    if labels.is_floating_point() and not labels.isfinite().all():
        raise ValueError(f"{name}: got NaN or infinity, but wanted numbers")
    return labels


def without_padding(targets: Tensor, target_lengths: Tensor | Sequence[int]) -> list[Tensor]:
    """References from targets as torch's `ctc_loss` takes them: a list of labels (n,) for each example.

    Args:
        targets: integers (B, U), of which only the first target_lengths[b] of each row are read, whatever the padding
            is; or (sum of the lengths,), one target after another.
        target_lengths: (B,).

    Example:
        >>> import torch, structloss as sl
        >>> sl.without_padding(torch.tensor([[3, 1, 2], [2, 0, 0]]), [3, 1])
        [tensor([3, 1, 2]), tensor([2])]
    """
    if not isinstance(targets, Tensor) or targets.dim() not in (1, 2) or targets.dtype not in _INTEGERS:
        raise TypeError(f"targets: got {targets!r:.60}, but wanted a tensor of integers, (B, U) or in one row")
    sizes = [int(n) for n in target_lengths]
    if targets.dim() == 1:
        if min(sizes, default=0) < 0 or sum(sizes) != len(targets):
            raise ValueError(f"target_lengths: got a sum of {sum(sizes)}, but targets has {len(targets)} labels")
        return list(targets.split(sizes))
    batch, width = targets.shape
    if len(sizes) != batch or not all(0 <= n <= width for n in sizes):
        raise ValueError(f"target_lengths: got {sizes!r:.60}, but wanted {batch} lengths from 0 to {width}")
    return [row[:n] for row, n in zip(targets, sizes, strict=True)]


def as_rows(
    labels: Labels, sizes: Tensor, width: int, name: str, of: str | None = None, between: bool = False
) -> tuple[Tensor, bool]:
    """Rows (B, width) of a tensor, or of lists of each example's size, padded with -1; and whether they were lists."""
    padded, own = as_padded(labels, name, sizes.device, between)
    if own is not None:
        if len(own) != len(sizes):
            raise ValueError(f"{name}: got {len(own)} sequences, but the batch has {len(sizes)}")
        if (own != sizes).any():
            b = int((own != sizes).int().argmax())
            got, size = int(own[b]), int(sizes[b])
            has = f"labels, but the outputs have {size}" if of is None else f"entries, but example {b} has {size} {of}"
            raise ValueError(f"{name}: {name}[{b}] has {got} {has}")
        padded = torch.nn.functional.pad(padded, (0, width - padded.shape[1]), value=-1)
    wanted = (len(sizes), width)
    if padded.shape != wanted:
        raise ValueError(f"{name}: got shape {tuple(padded.shape)}, but wanted {wanted}, or a list of {wanted[0]}")
    return padded, own is not None


def is_sets(labels: Labels) -> bool:
    """Whether these are sets of labels, a boolean tensor (B, U, K)."""
    if isinstance(labels, Tensor):
        return labels.dtype is torch.bool
    return isinstance(labels, np.ndarray) and labels.dtype == np.bool_


def as_strings(labels: Labels, batch: int, name: str = "reference", positions: Positions | None = None) -> list[String]:
    """The label strings of a batch, each of its own length, for what compares strings.

    Of a tensor as wide as `positions`, those that count there are read.
    """
    if is_sets(labels):
        sets = _checked_sets(labels, batch, name)
        if positions is not None and sets.shape[1] == positions.width:
            sets = positions.compact(sets.to(positions.lengths.device)) & positions.within[:, :, None]
        return [_string_of_sets(row, name, b) for b, row in enumerate(sets.cpu().numpy())]
    if isinstance(labels, list) and any(isinstance(row, np.ndarray) and row.ndim == 2 for row in labels):
        return labels  # they have been here before
    padded, lengths = as_padded(labels, name)
    if padded.dim() != 2 or padded.shape[0] != batch:
        raise ValueError(
            f"{name}: got shape {tuple(padded.shape)}, but wanted ({batch}, T), or a list of {batch} sequences"
        )
    if lengths is None and positions is not None and padded.shape[1] == positions.width:
        padded = positions.compact_outputs(padded.to(positions.lengths.device))
        padded = torch.where(positions.within, padded, -1)
    rows = padded.cpu().numpy()
    sizes = _ends(rows >= 0) if lengths is None else lengths.tolist()
    wrong = (rows < 0) & (rows != UNKNOWN) & (np.arange(rows.shape[1]) < np.array(sizes, np.int64)[:, None])
    if wrong.any():
        b, t = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name}: {name}[{b}][{t}] is {rows[b, t]}, but labels are at least 0, or {UNKNOWN} for unknown"
        )
    strings = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    return strings


def as_aligned(labels: Labels, positions: Positions, num_labels: int, name: str = "reference") -> Tensor:
    """Labels (B, T), one for each position that counts, those first: 0 to K - 1, or UNKNOWN; or sets (B, T, K)."""
    batch, width, device = positions.lengths.shape[0], positions.width, positions.lengths.device
    if is_sets(labels):
        sets = _checked_sets(labels, batch, name).to(device)
        if sets.shape[1:] != (width, num_labels):
            wanted = (batch, width, num_labels)
            raise ValueError(f"{name}: got sets of labels of shape {tuple(sets.shape)}, but wanted {wanted}")
        sets = positions.compact(sets) | ~positions.within[:, :, None]
        if not torch.compiler.is_compiling() and not sets.any(2).all():
            b, t = (~sets.any(2)).nonzero()[0].tolist()
            raise ValueError(f"{name}: {name}[{b}, {t}] is a set without a label, but wanted at least one")
        return sets
    padded, listed = as_rows(labels, positions.lengths, width, name)
    padded = padded if listed else positions.compact_outputs(padded)
    if not torch.compiler.is_compiling():
        b, t = first_bad_label(padded.cpu().numpy(), positions.lengths.cpu().numpy(), num_labels, True)
        if b >= 0 and not listed and padded[b, t] < 0:  # padding at the end of a row: nothing is known there
            padded = torch.where(_is_padding(padded), UNKNOWN, padded)
        if b >= 0:
            check_labels(padded, positions.lengths, num_labels, name, allow_unknown=True)
    return padded


def as_aligned_strings(labels: Labels, positions: Positions, num_labels: int) -> list[String]:
    """The references that `as_aligned` reads, as strings of as many labels as there are positions."""
    rows = as_aligned(labels, positions, num_labels).cpu().numpy()
    strings = [row[:length] for row, length in zip(rows, positions.lengths.tolist(), strict=True)]
    if rows.dtype == bool:
        return [_string_of_sets(row, "reference", b) for b, row in enumerate(strings)]
    return strings


def as_pairs(
    y: Labels, labels: Labels, lengths: Tensor | Sequence[int] | None, between: bool = False
) -> tuple[Tensor, Tensor]:
    """Answers (..., B, T), -1 where they have no label, and references (B, T), or sets (B, T, K), place by place."""
    answers, own = as_padded(y, "y")
    by_rows = not isinstance(labels, Tensor | np.ndarray)
    if own is not None and isinstance(labels, Tensor | np.ndarray) and labels.ndim > 1:
        answers = torch.nn.functional.pad(answers, (0, max(0, labels.shape[1] - answers.shape[1])), value=-1)
    batch, width = answers.shape[-2:]
    if lengths is None and own is None and by_rows:
        lengths = _answered(answers)
    positions = as_positions(own if lengths is None else lengths, batch, width, answers.device)
    answers = torch.where(positions.within, positions.compact_outputs(answers), -1).clamp(min=-1)
    if is_sets(labels):
        sets = _checked_sets(labels, batch, "reference").to(answers.device)
        if sets.shape[1] != width:
            raise ValueError(f"reference: got sets for {sets.shape[1]} places, but y has {width}: wanted as many")
        return answers, positions.compact(sets)
    wanted, sizes = as_padded(labels, "reference", answers.device, between)
    if sizes is None:
        if wanted.shape != (batch, width):
            raise ValueError(
                f"reference: got shape {tuple(wanted.shape)} for answers of shape {tuple(answers.shape)}, which are "
                "compared position by position: wanted the same number of examples and labels"
            )
        wanted = positions.compact_outputs(wanted)
    else:
        if sizes.shape[0] != batch:
            raise ValueError(f"reference: got {sizes.shape[0]} references for {batch} answers")
        if (sizes != positions.lengths).any():
            b = int((sizes != positions.lengths).int().argmax())
            raise ValueError(
                f"reference: reference[{b}] has {int(sizes[b])} labels, but the answer has "
                f"{int(positions.lengths[b])}, and they are compared position by position"
            )
        wanted = torch.nn.functional.pad(wanted, (0, width - wanted.shape[1]), value=-1)
    if own is not None and sizes is None and lengths is None:
        longer = ((wanted >= 0) & ~positions.within).any(1)
        if longer.any():
            b = int(longer.int().argmax())
            raise ValueError(f"reference: reference[{b}] has labels beyond the {int(own[b])} of y: wanted as many")
    wrong = positions.within & _answered(answers) & (wanted < 0) & (wanted != UNKNOWN)
    if sizes is None:
        wrong = wrong & ~_is_padding(wanted)
    if wrong.any():
        b, t = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"reference: reference[{b}, {t}] is {wanted[b, t].item()}, but labels are at least 0, or {UNKNOWN}: unknown"
        )
    return answers, wanted


def _answered(answers: Tensor) -> Tensor:
    """Where some of the answers (..., B, T) has a label, (B, T)."""
    there = answers >= 0
    return there.flatten(0, -3).any(0) if answers.dim() > 2 else there


def check_labels(labels: Tensor, lengths: Tensor, num_labels: int, name: str, allow_unknown: bool) -> None:
    """Raise unless every label of (B, T) within its length is 0 to num_labels - 1 (or UNKNOWN, where allowed)."""
    if torch.compiler.is_compiling():
        return
    b, t = first_bad_label(labels.cpu().numpy(), lengths.cpu().numpy(), num_labels, allow_unknown)
    if b >= 0:
        unknown = f", or {UNKNOWN} for unknown" if allow_unknown else ""
        raise ValueError(
            f"{name}: {name}[{b}, {t}] is {int(labels[b, t])}, but labels are 0 to {num_labels - 1}{unknown}"
        )


def _checked_sets(sets: Labels, batch: int, name: str) -> Tensor:
    found = torch.as_tensor(sets)
    if found.dim() != 3 or found.shape[0] != batch:
        raise ValueError(f"{name}: got sets of labels of shape {tuple(found.shape)}, but wanted ({batch}, T, K)")
    return found


def _string_of_sets(sets: NDArray[np.bool_], name: str, b: int) -> String:
    """A string from sets (U, K); without a label at the end of a row is padding."""
    sets = sets[: _ends(np.atleast_2d(sets.any(1)))[0]]
    sizes = sets.sum(1)
    if (sizes == 0).any():
        t = int((sizes == 0).argmax())
        raise ValueError(f"{name}: {name}[{b}, {t}] is a set without a label, but wanted at least one")
    unknown = (sizes == sets.shape[1]) & (sizes > 1)
    first = np.where(unknown, UNKNOWN, sets.argmax(1)).astype(np.int64)
    sizes = np.where(unknown, 1, sizes)
    if (sizes == 1).all():
        return first
    members = np.argsort(~sets, axis=1, kind="stable")[:, : int(sizes.max())]
    members[:, 0] = first
    return np.where(np.arange(members.shape[1]) < sizes[:, None], members, -1)


def _is_padding(labels: Tensor) -> Tensor:
    """Which labels (B, U) are negative, with no others after them in the row."""
    return (labels >= 0).flip(1).cumsum(1).flip(1) == 0


def _ends(there: NDArray[np.bool_]) -> list[int]:
    """One more than where the last True of each row (B, U) stands."""
    ends: list[int] = (there * np.arange(1, there.shape[1] + 1)).max(1, initial=0).tolist()
    return ends
