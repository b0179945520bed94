"""The law: every structure times every loss times every objective is right against enumeration, or says why not."""

from pathlib import Path

import pytest
import torch

import differential
import law
import oracle

OBJECTIVES = tuple(oracle.objectives(law.LOSSES["Hamming"].loss))
PAIRS = [(name, loss) for name in law.STRUCTURES for loss in law.LOSSES]


@pytest.mark.parametrize(("name", "loss"), PAIRS)
def test_every_structure_carries_every_loss_or_says_why_not(name: str, loss: str, engine: str) -> None:
    case, seed = law.LOSSES[loss], PAIRS.index((name, loss))
    sentence = law.refusal(name, case)
    if sentence is None:
        for i, objective in enumerate(OBJECTIVES):
            if law.is_for(objective, name):
                assert law.differences(name, loss, objective, 100 * seed + i) == []
        assert law.direct_differences(name, loss, seed) == []
        return
    world = law.STRUCTURES[name](torch.Generator().manual_seed(seed))
    reference = [world.write(b, outputs[0]) for b, outputs in enumerate(world.outputs)]
    for objective, (called, _) in oracle.objectives(case.loss).items():
        if objective not in ("NegativeLogLikelihood", "Perceptron") and law.is_for(objective, name):
            with pytest.raises((TypeError, ValueError, NotImplementedError), match=sentence):
                called(world.build(), torch.tensor([o[0] for o in world.outputs]) if world.covers else reference)


def test_the_table_is_in_the_docs() -> None:
    page = Path(__file__).parent.parent / "docs" / "guide" / "law.md"
    assert law.table() in page.read_text(), "python tests/law.py prints the table that docs/guide/law.md wants"


def test_a_few_random_cases() -> None:
    done, wrong = differential.run(seed=1, number=150)
    assert (done, wrong) == (150, [])
