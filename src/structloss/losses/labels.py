"""Batches of label sequences, as tensors or as lists, brought into one form and checked once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.checks import UNKNOWN, first_bad_label

Labels = Tensor | NDArray[np.integer] | Sequence[Sequence[int] | Tensor]

__all__ = ["UNKNOWN", "Labels", "as_lengths", "as_padded", "check_labels", "check_unknown"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def as_lengths(lengths: Tensor | Sequence[int] | None, batch: int, positions: int, device: torch.device) -> Tensor:
    """Lengths (B,) from lengths, from a boolean mask (B, T) that is True on a prefix, or from None: all of T."""
    if lengths is None:
        return torch.full((batch,), positions, dtype=torch.int64, device=device)
    if not isinstance(lengths, Tensor):
        lengths = torch.as_tensor(lengths)
        if lengths.numel() == 0:
            lengths = lengths.to(torch.int64)
    if lengths.dtype == torch.bool:
        return _lengths_of_mask(lengths, batch, positions).to(device)
    if lengths.dim() == 2:
        raise TypeError(f"lengths: got a mask of {lengths.dtype}, but a mask (B, T) must be torch.bool")
    if lengths.dtype not in _INTEGERS:
        raise TypeError(f"lengths: got {lengths.dtype}, but wanted integers (B,) or a boolean mask (B, T)")
    if lengths.shape != (batch,):
        raise ValueError(
            f"lengths: got shape {tuple(lengths.shape)}, but wanted ({batch},), one length for each example"
        )
    lengths = lengths.to(device=device, dtype=torch.int64)
    if not torch.compiler.is_compiling() and batch:
        on_cpu = lengths.cpu().numpy()
        if on_cpu.min() < 0 or on_cpu.max() > positions:
            b = int(((on_cpu < 0) | (on_cpu > positions)).argmax())
            raise ValueError(
                f"lengths: lengths[{b}] is {on_cpu[b]}, but wanted 0 to {positions}, the number of positions"
            )
    return lengths


def _lengths_of_mask(mask: Tensor, batch: int, positions: int) -> Tensor:
    if mask.shape != (batch, positions):
        raise ValueError(f"lengths: got a mask of shape {tuple(mask.shape)}, but wanted ({batch}, {positions})")
    lengths = mask.sum(1)
    if not torch.compiler.is_compiling():
        prefix = torch.arange(positions, device=mask.device) < lengths[:, None]
        wrong = (mask != prefix).any(1)
        if wrong.any():
            raise ValueError(
                f"lengths: the mask of example {int(wrong.int().argmax())} has a gap, but wanted True, then False"
            )
    return lengths


def as_padded(labels: Labels, name: str, device: torch.device | None = None) -> tuple[Tensor, Tensor | None]:
    """Labels (..., B, T), and for a list of sequences their lengths (B,), padded with UNKNOWN.

    An array is as a tensor: it has one width, and its padding is what is negative at the end of a row.
    """
    if isinstance(labels, np.ndarray) and np.issubdtype(labels.dtype, np.integer):
        labels = torch.from_numpy(labels.astype(np.int64))
    if isinstance(labels, Tensor):
        if labels.dtype not in _INTEGERS:
            raise TypeError(f"{name}: got {labels.dtype}, but labels are integers")
        if labels.dim() < 2:
            raise ValueError(f"{name}: got shape {tuple(labels.shape)}, but wanted (B, T)")
        return labels.to(device=device, dtype=torch.int64), None
    try:
        rows = [torch.as_tensor(row) for row in labels]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: got {labels!r:.60}, but wanted a tensor (B, T) or a list of label sequences"
        ) from error
    for b, row in enumerate(rows):
        if row.dim() != 1 or (row.numel() and row.dtype not in _INTEGERS):
            raise TypeError(f"{name}: {name}[{b}] is {labels[b]!r:.60}, but wanted a sequence of integer labels")
    lengths = torch.tensor([row.numel() for row in rows], dtype=torch.int64, device=device)
    padded = torch.full((len(rows), max([row.numel() for row in rows], default=0)), UNKNOWN, dtype=torch.int64)
    for b, row in enumerate(rows):
        padded[b, : row.numel()] = row
    return padded.to(device), lengths


def check_unknown(labels: Tensor, lengths: Tensor | None, name: str) -> None:
    """Raise for a negative label of (B, T) that neither is UNKNOWN nor padding.

    Padding is what is beyond the length of a list, and what is negative at the end of a tensor's row (lengths None).
    """
    if torch.compiler.is_compiling() or not labels.numel():
        return
    places = torch.arange(1, labels.shape[-1] + 1, device=labels.device)
    if lengths is None:
        lengths = torch.where(labels >= 0, places, 0).amax(-1)
    wrong = (places <= lengths[..., None]) & (labels < 0) & (labels != UNKNOWN)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}: {name}{place} is {int(labels[tuple(place)])}, but labels are at least 0, or {UNKNOWN} for unknown"
        )


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
