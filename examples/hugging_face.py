"""Names of people and places by BERT and a chain: Hugging Face's Trainer, and a plain loop, on any objective."""

# %% [markdown]
# # BERT and a chain, in Hugging Face
#
# A tagger of names whose last layer is a chain over the labels of the *words*, trained by `Trainer` in bfloat16, saved
# and loaded, and trained again by a plain PyTorch loop on another objective. BERT is tiny and random and the data are
# made here, so nothing is downloaded. It needs `transformers`, `accelerate`, `seqeval` and `matplotlib`.

# %% script
import argparse

# %%
import random
import tempfile
from collections import Counter

import matplotlib.pyplot as plt
import torch
from seqeval.metrics import f1_score
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    BertPreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    logging,
)

import structloss as sl
from structloss.tasks.tagging.chunks import chunk_score

# %% script
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", help="draw F1 over the epochs into this file")
arguments = parser.parse_args()

# %% [markdown]
# ## Data
#
# Names are made of syllables and put into templates; most of the test's are new. *Hall*, *Ford* and *Wells* are people
# or places.

# %%
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEMPLATES = """PER was born in LOC . | PER and PER met near LOC . | trains from LOC to LOC are late , said PER . | LOC
is larger than LOC . | in LOC , PER wrote to PER about LOC . | the town of LOC thanked PER . | PER left for LOC
with PER . | nobody knows PER here . | it rained . | the mayor of LOC , PER , met PER ."""
ONSETS, VOWELS = ["b", "br", "d", "f", "g", "k", "l", "m", "n", "r", "st", "t", "v"], ["a", "e", "i", "o", "u", "ay"]
SURNAMES, TOWNS, BOTH = ["son", "sen", "ley"], ["ton", "ville", "burg"], ["ford", "hall", "wells"]


def made_up(kind: str, rng: random.Random) -> list[str]:
    """A person or a place of one to three words."""
    stem = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(2))
    if kind == "PER":
        first = (rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice("lnrst")).title()
        return [first, *rng.choice([[], ["van"]]), rng.choice([stem + rng.choice(SURNAMES), rng.choice(BOTH)]).title()]
    place = rng.choice([stem + rng.choice(TOWNS), rng.choice(BOTH)]).title()
    return rng.choice([[place], ["New", place], [place, "Bay"]])


def sentences(number: int, seed: int) -> list[tuple[list[str], list[int]]]:
    """Words, and a label for each."""
    rng, made = random.Random(seed), []
    for template in rng.choices([t.split() for t in TEMPLATES.split("|")], k=number):
        words, labels = [], []
        for word in template:
            named = word in ("PER", "LOC")
            words += (found := made_up(word, rng) if named else [word])
            labels += [f"{'I' if i else 'B'}-{word}" if named else "O" for i in range(len(found))]
        made.append((words, [LABELS.index(label) for label in labels]))
    return made


train, test = sentences(600, seed=1), sentences(300, seed=2)

# %% [markdown]
# ## Sub-words
#
# The first piece of each word stands for it. `words` is 1 there and 0 at other pieces, [CLS], [SEP] and padding: a mask
# with gaps. Labels are -100 wherever it is 0, as everywhere in Hugging Face.

# %%
SPECIAL, counts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], Counter()
for word in (word for words, _ in train for word in words):
    inside = (("##" if i else "") + word[i : i + n] for i in range(len(word)) for n in (1, 2, 3))
    counts.update({word, *inside})
vocabulary = SPECIAL + sorted(piece for piece, n in counts.items() if n >= 50 or len(piece.removeprefix("##")) == 1)
pieces = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
pieces.pre_tokenizer = pre_tokenizers.Whitespace()
pieces.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=pieces, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
)


def collate(batch: list[tuple[list[str], list[int]]]) -> dict[str, torch.Tensor]:
    """Sentences as tensors (B, T)."""
    found = tokenizer([words for words, _ in batch], is_split_into_words=True, padding=True, return_tensors="pt")
    owners = [[-1 if word is None else word for word in found.word_ids(b)] for b in range(len(batch))]
    owner = torch.tensor(owners)  # which word a piece belongs to
    first = (owner >= 0) & (owner != owner.roll(1, dims=1))
    labels = torch.full_like(owner, -100)
    labels[first] = torch.tensor([label for _, row in batch for label in row])
    return {
        "input_ids": found["input_ids"],
        "attention_mask": found["attention_mask"],
        "words": first.long(),
        "labels": labels,
    }


print(" ".join(tokenizer.tokenize(train[0][0], is_split_into_words=True)))

# %% [markdown]
# ## The model
#
# What `BertForTokenClassification` is, with a `ChainLayer` on top. `from_pretrained` of a BERT without a chain leaves
# the chain's scores to `_init_weights`.


# %%
class Tagger(BertPreTrainedModel):
    """BERT, a score for each label at each piece, and a chain over the pieces that begin a word."""

    def __init__(self, config: BertConfig, objective: sl.Objective | None = None) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.emissions = nn.Linear(config.hidden_size, config.num_labels)
        self.chain = sl.ChainLayer(config.num_labels)
        self.objective = objective or sl.NegativeLogLikelihood()
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, sl.ChainLayer):
            module.reset_parameters()

    def structure(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, words: torch.Tensor) -> sl.Chain:
        """The chain: all label sequences of the words, with their scores."""
        return self.chain(self.emissions(self.bert(input_ids, attention_mask).last_hidden_state), words)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        words: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        chain, found = self.structure(input_ids, attention_mask, words), {}
        if labels is not None:
            found["loss"] = self.objective(chain, labels)
        if not self.training:
            found["predictions"] = chain.argmax()  # (B, T), -1 where no word begins
        return found


config = BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
    id2label=dict(enumerate(LABELS)),
    label2id={label: i for i, label in enumerate(LABELS)},
)


def scores(predictions, labels) -> dict[str, float]:
    """Chunk F1 of labels (B, T), tensors or arrays, by seqeval and by structloss, in percent."""
    pairs = [(p[r >= 0], r[r >= 0]) for p, r in zip(predictions, labels, strict=True)]  # of words alone
    predicted, right = ([[LABELS[i] for i in row] for row in rows] for rows in zip(*pairs, strict=True))
    theirs, ours = 100 * f1_score(right, predicted), 100 * chunk_score(predicted, right).f1
    assert abs(theirs - ours) < 1e-9
    return {"seqeval": theirs, "structloss": ours}


# %% [markdown]
# ## A mask with gaps is the batch without its gaps
#
# Skipped positions take no part: value and gradient are those of the words alone, packed.

# %%
torch.manual_seed(0)
model, batch = Tagger(config), collate(train[:16])
model.eval()  # no dropout
inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "words")}
objective = sl.SoftmaxMargin(sl.Hamming())

with_gaps = objective(model.structure(**inputs), batch["labels"])
hidden, is_word = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state, batch["words"].bool()
packed = nn.utils.rnn.pad_sequence([h[m] for h, m in zip(hidden, is_word, strict=True)], batch_first=True)
chain = model.chain(model.emissions(packed), lengths=is_word.sum(1))
without_gaps = objective(chain, [labels for _, labels in train[:16]])

torch.testing.assert_close(with_gaps, without_gaps)
parameters = [p for p in model.parameters() if p.requires_grad]
apart = [torch.autograd.grad(value, parameters) for value in (with_gaps, without_gaps)]
torch.testing.assert_close(*apart)
print(f"{len(is_word)} sentences, {is_word.numel()} positions, {int(is_word.sum())} words: a mask with gaps gives")
print(f"the value {with_gaps:.4f}, the packed batch {without_gaps:.4f}; gradients agree, too")

# %% [markdown]
# ## Trainer, in bfloat16

# %%
logging.disable_progress_bar()
torch.manual_seed(0)
folder = tempfile.TemporaryDirectory()
model = Tagger(config)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        folder.name,
        num_train_epochs=6,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=100,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        bf16=True,
        use_cpu=True,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,  # sentences are read by collate
        dataloader_pin_memory=False,
    ),
    train_dataset=train,
    eval_dataset=test,
    data_collator=collate,
    compute_metrics=lambda found: scores(found.predictions, found.label_ids),
)
trainer.remove_callback(PrinterCallback)
trainer.train()
curves = {"Trainer, likelihood": [log["eval_seqeval"] for log in trainer.state.log_history if "eval_seqeval" in log]}
found = trainer.predict(test)
by = scores(found.predictions, found.label_ids)
print(f"Trainer, bf16, likelihood: F1 {by['seqeval']:.2f} by seqeval, {by['structloss']:.2f} by structloss")

# %% [markdown]
# ## Save and load

# %%
trainer.save_model(folder.name)
tokenizer.save_pretrained(folder.name)
loaded, batch = Tagger.from_pretrained(folder.name), collate(test)
for key, value in model.state_dict().items():
    assert torch.equal(loaded.state_dict()[key], value)
with torch.no_grad():
    by = scores(loaded(**batch)["predictions"], batch["labels"])
print(f"saved as safetensors and loaded: every weight is the same; in float32 F1 {by['seqeval']:.2f}")

# %% [markdown]
# ## A plain loop, on another objective
#
# Softmax-margin: a likelihood in which an answer weighs e times as much for each wrong word. `Risk`, `Hinge` and the
# others go in the same place, and any loss in that of `Hamming`.

# %%
torch.manual_seed(0)
model = Tagger(config, sl.SoftmaxMargin(sl.Hamming()))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = torch.utils.data.DataLoader(train, batch_size=16, shuffle=True, collate_fn=collate)
curve = curves["plain loop, softmax-margin"] = []
for _ in range(6):
    model.train()
    for step in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = model(**step)["loss"]
        value.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        by = scores(model(**batch)["predictions"], batch["labels"])
    curve.append(by["seqeval"])
print(f"plain loop, bf16, softmax-margin: F1 {by['seqeval']:.2f} by seqeval, {by['structloss']:.2f} by structloss")

# %% [markdown]
# ## F1 over the epochs

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, curve in curves.items():
    axes.plot(range(1, len(curve) + 1), curve, marker="o", markersize=3, label=name)
axes.set(xlabel="epoch", ylabel="chunk F1 of the test", ylim=(0, 100))
axes.grid(alpha=0.3)
axes.legend()

# %% script
if arguments.out:
    figure.savefig(arguments.out, dpi=110)
