"""A loss against one reference, drawn: the deterministic machine that reads a string and ends in its loss.

python examples/machines.py --loss smith-waterman:cap=3 --reference aba --alphabet ab --out machine.png
"""

import argparse
import itertools
from pathlib import Path

from structloss.naming import loss_of

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--loss", default="edit:cap=2", help="as the command line takes it, or the file of a transducer")
parser.add_argument("--reference", default="abc")
parser.add_argument("--alphabet", default="abcd")
parser.add_argument("--length", type=int, help="of the strings that it reads; by default the reference's")
parser.add_argument("--out", type=Path, help="draw into this file: png, svg or pdf")
arguments = parser.parse_args()

loss, alphabet = loss_of(arguments.loss), arguments.alphabet
reference = [alphabet.index(symbol) for symbol in arguments.reference]
length = len(reference) if arguments.length is None else arguments.length
machine = loss.automaton(reference, len(alphabet), length)
print(f"{loss} against {arguments.reference}: {machine.num_states} states, {machine.num_arcs} arcs")
for y in itertools.islice(itertools.product(range(len(alphabet)), repeat=length), 0, None, len(alphabet) + 3):
    assert abs(machine.weight(y) - loss([y], [reference]).item()) < 1e-5  # what the loss itself says
    print("".join(alphabet[label] for label in y), f"{machine.weight(y):g}")
if arguments.out:
    machine.draw(arguments.out, symbols=list(alphabet))
