"""Losses as deterministic machines: the automaton, and the compilers that make one from a reference."""

from structloss.automata.automaton import LossAutomaton, TooManyStatesError
from structloss.automata.open import OpenAutomaton
from structloss.automata.transducer import Transducer

__all__ = ["LossAutomaton", "OpenAutomaton", "TooManyStatesError", "Transducer"]
