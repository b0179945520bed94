"""Machines of OpenFst's Python module, as pynini's wheel carries it: read, with their symbol tables, and made."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from structloss.automata.openfst_text import Labels

Fst = Any
Table = dict[int, str]


def openfst() -> Any:
    """pywrapfst, which pynini's wheel carries."""
    try:
        import pywrapfst
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("OpenFst is missing: pip install 'structloss[fst]'") from error
    return pywrapfst


class Machine(NamedTuple):
    """What an OpenFst object holds: weights are costs, symbols are numbers, 0 being epsilon."""

    arc_type: str
    start: int
    arcs: list[tuple[int, int, int, int, float]]  # source, target, reads, writes, cost
    final: dict[int, float]
    tables: tuple[Table | None, Table | None]  # the names of what it reads and of what it writes


def read(fst: Fst, name: str, wanted: str) -> Machine:
    """The machine of a pywrapfst or pynini object; a TypeError says what was `wanted` for anything else."""
    if not all(hasattr(fst, own) for own in ("states", "arcs", "final", "start", "arc_type", "input_symbols")):
        raise TypeError(f"{name}: got {fst!r:.60}, but wanted {wanted}")
    arcs = [
        (state, arc.nextstate, arc.ilabel, arc.olabel, float(arc.weight))
        for state in fst.states()
        for arc in fst.arcs(state)
    ]
    final = {state: float(fst.final(state)) for state in fst.states()}
    ends = {state: cost for state, cost in final.items() if cost != math.inf}
    return Machine(fst.arc_type(), fst.start(), arcs, ends, (_table(fst.input_symbols()), _table(fst.output_symbols())))


def _table(symbols: Any) -> Table | None:
    return None if symbols is None else dict(iter(symbols))


def labels_of(
    tables: tuple[Table | None, Table | None], symbols: Sequence[str] | None, name: str
) -> tuple[Callable[[int], int | None], Callable[[int], int | None]]:
    """From the numbers of what is read, and of what is written, to labels; None for epsilon.

    With names the labels are theirs, through the tables. Without, label y is symbol y + 1 of both, whose names, where
    both have a table, must then be the same.
    """
    reads, writes = tables
    if symbols is None:
        for number in (reads or {}).keys() & (writes or {}).keys():
            a, b = (reads or {})[number], (writes or {})[number]
            if a != b and number:
                raise ValueError(
                    f"{name}: its symbol {number} is {a!r} where it reads and {b!r} where it writes; pass "
                    "symbols=, the names of labels 0, 1, ..."
                )
        return _number, _number
    names = Labels(symbols)
    return _named(reads, names, f"{name}: what it reads"), _named(writes, names, f"{name}: what it writes")


def _number(symbol: int) -> int | None:
    return symbol - 1 if symbol else None


def _named(table: Table | None, names: Labels, where: str) -> Callable[[int], int | None]:
    if table is None:
        raise ValueError(
            f"symbols: got names, but {where} has no symbol table; give it one (set_input_symbols, "
            "set_output_symbols), or leave symbols out: label y is then its symbol y + 1"
        )

    def label(symbol: int) -> int | None:
        if symbol == 0:
            return None
        if symbol not in table:
            raise ValueError(f"{where} has the symbol {symbol}, but its symbol table has no such number")
        return names.of(table[symbol], where)

    return label


def make(
    states: int, start: int, arcs: Iterable[tuple[int, int, int, int, float]], final: dict[int, float], arc_type: str,
    symbols: Sequence[str] | None = None,
) -> Fst:  # fmt: skip
    """An OpenFst object from costs and symbols, with a table of names on both sides where labels have any."""
    wrap = openfst()
    fst = wrap.VectorFst(arc_type=arc_type)
    for _ in range(states):
        fst.add_state()
    if states:
        fst.set_start(start)
    kind = fst.weight_type()
    for source, target, reads, writes, cost in arcs:
        fst.add_arc(source, wrap.Arc(reads, writes, wrap.Weight(kind, cost), target))
    for state, cost in final.items():
        fst.set_final(state, wrap.Weight(kind, cost))
    if symbols is not None:
        table = wrap.SymbolTable()
        for name in ("<eps>", *symbols):
            table.add_symbol(name)
        fst.set_input_symbols(table)
        fst.set_output_symbols(table)
    return fst
