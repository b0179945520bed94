"""Losses as deterministic machines: the automaton, and the compilers that make one from a reference."""

from structloss.automata.automaton import LossAutomaton, TooManyStatesError

__all__ = ["LossAutomaton", "TooManyStatesError"]
