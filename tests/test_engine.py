"""The native engine where programs put it: compiled graphs, forked workers, threads; and which engine is chosen."""

import concurrent.futures
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import structloss as sl

K = 4
LAYER = sl.ChainLayer(K)
OBJECTIVES = {
    "NegativeLogLikelihood": sl.NegativeLogLikelihood(),
    "SoftmaxMargin": sl.SoftmaxMargin(sl.Hamming()),
    "Perceptron": sl.Perceptron(),
    "Hinge": sl.Hinge(sl.Hamming()),
    "DirectLoss": sl.DirectLoss(sl.Hamming()),
    "Risk": sl.Risk(sl.Hamming()),
    "RewardAugmented": sl.RewardAugmented(sl.Hamming()),
}


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(6, 9, K, generator=generator, dtype=torch.float64)
    return emissions, torch.randint(0, K, (6, 9), generator=generator), torch.tensor([9, 0, 4, 1, 7, 9])


def step(objective: sl.Objective, seed: int) -> list[torch.Tensor]:
    emissions, labels, lengths = batch(seed)
    emissions.requires_grad_()
    value = objective(LAYER(emissions, lengths), labels)
    return [value.detach(), *torch.autograd.grad(value, [emissions, *LAYER.parameters()], allow_unused=True)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_whole_training_step_compiles_into_one_graph(name: str) -> None:
    objective = OBJECTIVES[name]
    emissions, labels, lengths = batch(0)
    emissions.requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(lambda e: objective(LAYER(e, lengths), labels), fullgraph=True, backend="aot_eager")
    value = compiled(emissions)
    found = [value.detach(), *torch.autograd.grad(value, [emissions, *LAYER.parameters()], allow_unused=True)]
    same(found, step(objective, 0))


def test_custom_operations_pass_torchs_own_checks() -> None:
    emissions, _, lengths = batch(0)
    transitions = torch.randn(K, K, dtype=torch.float64, requires_grad=True)
    parts = sl.Chain.from_emissions(emissions.requires_grad_(), transitions, lengths=lengths)._parts
    tensors = parts.tensors
    for name, arguments in {
        "chain_log_partition": tensors,
        "chain_expectation": (*tensors, *tensors),
        "chain_argmax": tensors,
    }.items():
        torch.library.opcheck(getattr(torch.ops.structloss, name).default, arguments, raise_exception=True)


class Scored(Dataset):
    """Runs the native engine inside a data loader's worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        emissions, _, lengths = batch(i)
        return sl.Chain(emissions.repeat(50, 1, 1), lengths.repeat(50)).log_partition().sum()


def test_forked_data_loader_workers_survive() -> None:
    big = torch.randn(400, 50, K)
    sl.Chain.from_emissions(big, torch.zeros(K, K)).log_partition()  # the parent's threads have run
    loader = DataLoader(Scored(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    found = torch.cat(list(loader))
    same([found], [torch.stack([Scored()[i] for i in range(8)])])


def test_several_threads_at_once() -> None:
    wanted = [step(sl.NegativeLogLikelihood(), seed) for seed in range(8)]
    big = torch.randn(64, 100, K)
    reference = sl.Chain.from_emissions(big, torch.zeros(K, K)).log_partition()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            same_step = list(pool.map(lambda seed: step(sl.NegativeLogLikelihood(), seed), range(8)))
            values = list(pool.map(lambda _: sl.Chain.from_emissions(big, torch.zeros(K, K)).log_partition(), range(8)))
            for a, b in zip(same_step, wanted, strict=True):
                same(a, b)
            for value in values:
                assert torch.equal(value, reference)


def test_engine_is_a_nested_context_and_is_local_to_a_thread() -> None:
    chain = sl.Chain(torch.zeros(1, 2, 2))
    assert chain._native
    with sl.engine("torch"):
        assert not chain._native
        with sl.engine("native"):
            assert chain._native
        assert not chain._native
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: chain._native).result()
    assert chain._native


def test_other_devices_take_the_torch_engine() -> None:
    chain = sl.Chain(torch.zeros(1, 2, 2, device="meta"))
    assert not chain._native
    with sl.engine("native"), pytest.raises(ValueError, match="meta"):
        _ = chain._native


def test_an_unknown_engine_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"'cuda'.*native.*torch"):
        sl.engine("cuda")


def test_half_precision_is_computed_in_float32() -> None:
    emissions = torch.randn(2, 5, 3, dtype=torch.bfloat16, requires_grad=True)
    value = sl.Chain(emissions).log_partition()
    assert value.dtype == torch.float32
    value.sum().backward()
    assert emissions.grad is not None
    assert emissions.grad.dtype == torch.bfloat16


def test_import_takes_the_light_road() -> None:
    heavy = ("lightning", "sklearn", "matplotlib", "pandas", "soundfile", "pynini", "torch._dynamo", "sympy")
    code = f"import sys, structloss; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
