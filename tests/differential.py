"""Random small structures, losses and references in every form against enumeration: python tests/differential.py.

Prints what is wrong with the seed that shows it, and counts. A small number runs in tests/test_law.py.
"""

import argparse
import random
import time

import torch

import law
import oracle
import structloss as sl

OBJECTIVES = tuple(oracle.objectives(law.LOSSES["Hamming"].loss))
PAIRS = [(name, loss) for name in law.STRUCTURES for loss in law.LOSSES if law.refusal(name, law.LOSSES[loss]) is None]


def run(seed: int, number: int, seconds: float = float("inf")) -> tuple[int, list[str]]:
    """How many cases were tried, and what was wrong."""
    pick, wrong, done, begin = random.Random(seed), [], 0, time.monotonic()
    for done in range(number):
        if time.monotonic() - begin > seconds:
            return done, wrong
        name, loss = pick.choice(PAIRS)
        own = pick.randrange(2**31)
        with sl.engine(pick.choice(["native", "torch"])):
            if pick.random() < 0.2:
                wrong += law.direct_differences(name, loss, own)
            else:
                possible = [objective for objective in OBJECTIVES if law.is_for(objective, name)]
                wrong += law.differences(name, loss, pick.choice(possible), own)
    return number, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done, wrong = run(arguments.seed, arguments.number, arguments.seconds)
    for line in wrong[:20]:
        print(line)
    print(f"{done} cases, {len(wrong)} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
