"""The law: every structure times every loss times every objective is right against enumeration, or says why not."""

import pytest
import torch

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
            assert law.differences(name, loss, objective, 100 * seed + i) == []
        assert law.direct_differences(name, loss, seed) == []
        return
    world = law.STRUCTURES[name](torch.Generator().manual_seed(seed))
    reference = [world.write(b, outputs[0]) for b, outputs in enumerate(world.outputs)]
    for objective, (called, _) in oracle.objectives(case.loss).items():
        if objective not in ("NegativeLogLikelihood", "Perceptron"):
            with pytest.raises((TypeError, ValueError, NotImplementedError), match=sentence):
                called(world.build(), torch.tensor([o[0] for o in world.outputs]) if world.covers else reference)


def test_the_counts() -> None:
    """Nothing is neither right nor refused with a sentence."""
    refused = sum(law.refusal(name, law.LOSSES[loss]) is not None for name, loss in PAIRS)
    assert (len(PAIRS) - refused, refused) == (len(PAIRS) - 40, 40)
