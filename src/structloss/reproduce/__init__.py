"""The papers' own algorithms, figures and tables, literally."""

from structloss.reproduce.gradients import grad_naive, grad_rational, grad_tropical

__all__ = ["grad_naive", "grad_rational", "grad_tropical"]
