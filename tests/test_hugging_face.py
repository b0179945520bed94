"""Sub-words: a chain under a mask with gaps is the chain of the words alone, through BERT and back."""

import pytest
import torch
from torch import Tensor, nn

import structloss as sl

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not there")

OBJECTIVES = {
    "likelihood": sl.NegativeLogLikelihood("none"),
    "softmax-margin": sl.SoftmaxMargin(sl.Hamming(), reduction="none"),
    "softmax-margin of the edit distance": sl.SoftmaxMargin(sl.EditDistance(cap=2), reduction="none"),
    "hinge": sl.Hinge(sl.Hamming(), reduction="none"),
    "risk": sl.Risk(sl.Hamming(), "none"),
}
# Of four sentences the pieces that begin a word: [CLS] first, sub-words between, [SEP] and padding at the end; the last
# has no word at all.
WORDS = torch.tensor(
    [
        [0, 1, 0, 0, 1, 1, 0, 1, 0],
        [0, 1, 1, 1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
)
ATTENTION = torch.tensor([[1] * 9, [1] * 5 + [0] * 4, [1] * 9, [1] * 2 + [0] * 7])
K = 3


class Model(nn.Module):
    """A tiny BERT, emissions, and a chain."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.emissions, self.chain = nn.Linear(8, K), sl.ChainLayer(K)
        self.eval()  # no dropout

    def hidden(self, ids: Tensor) -> Tensor:
        return self.bert(ids, ATTENTION).last_hidden_state

    def forward(self, ids: Tensor) -> sl.Chain:
        return self.chain(self.emissions(self.hidden(ids)), WORDS)


def batch() -> tuple[Tensor, Tensor]:
    """Pieces, and labels as Hugging Face has them: -100 wherever no word begins."""
    labels = torch.where(WORDS == 1, torch.randint(0, K, WORDS.shape), -100)
    return torch.randint(0, 20, WORDS.shape), labels


@pytest.mark.parametrize("unknown", [False, True], ids=["known", "a word's label unknown"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_mask_with_gaps_gives_the_value_and_gradient_of_the_packed_batch(
    name: str, unknown: bool, engine: str
) -> None:
    model, (ids, labels) = Model().double(), batch()
    if unknown:
        labels[0, 4] = -100  # the second word of the first sentence
    rows, is_word = model.hidden(ids), WORDS.bool()
    packed = nn.utils.rnn.pad_sequence([row[m] for row, m in zip(rows, is_word, strict=True)], batch_first=True)
    lists = [row[m].tolist() for row, m in zip(labels, is_word, strict=True)]
    with_gaps, without = model(ids), model.chain(model.emissions(packed), lengths=is_word.sum(1))

    values = OBJECTIVES[name](with_gaps, labels), OBJECTIVES[name](without, lists)
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)
    weights = torch.tensor([1.0, 0.3, -2.0, 0.7], dtype=torch.float64)
    gradients = [torch.autograd.grad(weights @ v, list(model.parameters())) for v in values]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    assert any(g.abs().max() > 1e-3 for g in gradients[0])

    best = with_gaps.argmax()
    assert (best[~is_word] == -1).all()
    assert best[is_word].tolist() == without.argmax()[without.argmax() >= 0].tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_autocast_leaves_the_chain_in_float32(name: str, engine: str) -> None:
    model, (ids, labels) = Model(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        emissions = model.emissions(model.hidden(ids))
        value = OBJECTIVES[name](model.chain(emissions, WORDS), labels)
    assert emissions.dtype == torch.bfloat16
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, OBJECTIVES[name](model.chain(emissions.float(), WORDS), labels))
    value.sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
    assert model.chain.transitions.grad.dtype == torch.float32


def test_constraints_stand_in_a_model_that_is_loaded(tmp_path) -> None:
    """transformers makes a model without content first, and fills in what a checkpoint has."""
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )

    class Tagger(transformers.BertPreTrainedModel):
        def __init__(self, config) -> None:
            super().__init__(config)
            self.bert = transformers.BertModel(config, add_pooling_layer=False)
            self.chain = sl.ChainLayer(3, allowed=sl.iob_transitions(["O", "B-X", "I-X"]))
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            super()._init_weights(module)
            if isinstance(module, sl.ChainLayer):
                module.reset_parameters()

    Tagger(config).save_pretrained(tmp_path / "whole")
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "without a chain")
    wants_inside = torch.tensor([[[0.0, 0.0, 9.0]] * 3])
    for name in ("whole", "without a chain"):
        loaded = Tagger.from_pretrained(tmp_path / name)
        assert loaded.chain.transitions.abs().max() <= 0.1
        assert loaded.chain(wants_inside).argmax().tolist() == [[1, 2, 2]]
