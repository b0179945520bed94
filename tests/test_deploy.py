"""A decoder outside of Python, as docs/guide/deploy.md has it: exported, by ONNX, and networks of mixed precision."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import structloss as sl


class Decoder(torch.nn.Module):
    """As in docs/guide/deploy.md."""

    def __init__(self, layer: sl.ChainLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, emissions: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        with sl.engine("torch"):
            return self.layer(emissions, lengths).argmax()


POSITIONS = 7


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = int(torch.randint(1, 9, (), generator=generator))
    emissions = torch.randn(size, POSITIONS, 5, generator=generator)
    return emissions, torch.randint(0, POSITIONS + 1, (size,), generator=generator)


def layer(order: int = 2) -> sl.ChainLayer:
    torch.manual_seed(order)
    allowed = sl.iob_transitions(["O", "B-A", "I-A", "B-B", "I-B"]) if order == 2 else None
    found = sl.ChainLayer(5, order, allowed=allowed)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter)
    return found


def exported(decoder: Decoder) -> Callable[..., torch.Tensor]:
    sizes = {"emissions": {0: torch.export.Dim("batch")}, "lengths": {0: torch.export.Dim("batch")}}
    return torch.export.export(decoder, batch(3), dynamic_shapes=sizes).module()


def by_onnx(decoder: Decoder, path: Path) -> Callable[..., torch.Tensor]:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        pytest.skip("an older torch exports by TorchScript")
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    sizes = {"emissions": {0: torch.export.Dim("batch")}, "lengths": {0: torch.export.Dim("batch")}}
    torch.onnx.export(decoder, batch(3), path, dynamo=True, dynamic_shapes=sizes, verbose=False)
    session = runtime.InferenceSession(path)

    def run(emissions: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        (found,) = session.run(None, {"emissions": emissions.numpy(), "lengths": lengths.numpy()})
        return torch.from_numpy(found)

    return run


def check_same(found: Callable[..., torch.Tensor], own: sl.ChainLayer, number: int) -> None:
    for seed in range(number):
        emissions, lengths = batch(seed)
        assert torch.equal(found(emissions, lengths), own(emissions, lengths).argmax()), seed


def test_an_exported_decoder_gives_the_same_labels() -> None:
    check_same(exported(Decoder(layer()).eval()), layer(), 20)


def test_an_exported_decoder_takes_masks_with_gaps() -> None:
    own, size = layer(), torch.export.Dim("batch")
    masks = torch.rand(2, 5, POSITIONS, generator=torch.Generator().manual_seed(0)) < 0.6
    emissions = torch.randn(5, POSITIONS, 5)
    program = torch.export.export(Decoder(own), (emissions, masks[0]), dynamic_shapes=({0: size}, {0: size}))
    assert torch.equal(program.module()(emissions[:3], masks[1, :3]), own(emissions[:3], masks[1, :3]).argmax())


def test_onnx_gives_the_same_labels(tmp_path: Path) -> None:
    check_same(by_onnx(Decoder(layer()).eval(), tmp_path / "decoder.onnx"), layer(), 20)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_thousand_batches_give_the_same_labels(order: int, tmp_path: Path) -> None:
    check_same(exported(Decoder(layer(order)).eval()), layer(order), 1000)
    check_same(by_onnx(Decoder(layer(order)).eval(), tmp_path / "decoder.onnx"), layer(order), 1000)


# --- Automatic mixed precision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["native", "torch"])
@pytest.mark.parametrize("loss", [None, sl.EditDistance(cap=2)])
def test_autocast_lowers_the_network_and_nothing_of_the_sums(name: str, loss: sl.Loss | None) -> None:
    torch.manual_seed(0)
    network, own = torch.nn.Linear(8, 5), sl.ChainLayer(5)
    objective = sl.NegativeLogLikelihood() if loss is None else sl.SoftmaxMargin(loss)
    inputs, labels, lengths = torch.randn(3, 6, 8), torch.randint(0, 5, (3, 6)), torch.tensor([6, 2, 4])
    with torch.autocast("cpu", torch.bfloat16), sl.engine(name):
        emissions = network(inputs)
        value = objective(own(emissions, lengths), labels)
        value.backward()
    assert emissions.dtype == torch.bfloat16
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, objective(own(emissions.detach().double(), lengths), labels).float())
    for parameter in (*network.parameters(), *own.parameters()):
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.abs().sum() > 0
