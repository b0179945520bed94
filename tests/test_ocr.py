"""Handwritten words: reading, folds, errors, and models that train and come back."""

import io
import os
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from structloss.naming import objective_of
from structloss.tasks import TASKS
from structloss.training.directory import load, save
from structloss.training.fit import fit
from structloss.training.plan import Plan
from structloss.training.task import DataError, Example, predict

OCR = TASKS["ocr"]
WORDS = ("an", "ant", "nat", "a", "tan")
FOLDS = (0, 1, 1, 2, 4)
DATA = Path(os.environ.get("STRUCTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")) / "ocr" / "letters.npz"


def arrays(**changed: Any) -> dict[str, Any]:
    """Some words: letter k is k ones and then zeros."""
    labels = np.array([ord(letter) - ord("a") for word in WORDS for letter in word], np.uint8)
    pixels = (np.arange(128) < labels[:, None]).astype(np.uint8)
    made = {
        "bits": np.packbits(pixels, axis=1),
        "labels": labels,
        "lengths": np.array([len(word) for word in WORDS], np.uint8),
        "folds": np.array(FOLDS, np.uint8),
    }
    return {key: value for key, value in {**made, **changed}.items() if value is not None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.savez_compressed(tmp_path / "a.npz", **arrays())
    return tmp_path / "a.npz"


def words(path: Path, folds: str = "") -> list[str]:
    return ["".join(example.y) for example in OCR.read(path.with_name(path.name + folds))]


def test_reading(path: Path) -> None:
    examples = OCR.read(path)
    assert ["".join(example.y) for example in examples] == list(WORDS)
    assert [example.x.sum(1).tolist() for example in examples[:2]] == [[0, 13], [0, 13, 19]]
    assert examples[0].x.shape == (2, 128)
    assert examples[0].x.dtype == np.uint8
    assert OCR.read(path.with_name("a.npz:1"))[1].where == f"{path}, word 3"
    assert list(OCR.write(examples[1], ("t", "a", "n"))) == ["tan"]


def test_arrays_of_other_widths_and_orders(path: Path) -> None:
    made = arrays()
    made["bits"] = np.asfortranarray(made["bits"])
    np.savez(path, **made | {key: made[key].astype(">i8") for key in ("labels", "lengths", "folds")})
    assert words(path) == list(WORDS)
    assert OCR.read(path)[1].x.sum(1).tolist() == [0, 13, 19]


@pytest.mark.parametrize(
    ("folds", "expected"),
    [
        ("", WORDS),
        (":1", ["ant", "nat"]),
        (":0-2", ["an", "ant", "nat", "a"]),
        (":1-4", ["ant", "nat", "a", "tan"]),  # there is no fold 3
        (":all-but-1", ["an", "a", "tan"]),
        (":all-but-1-4", ["an"]),
    ],
)
def test_folds(path: Path, folds: str, expected: list[str]) -> None:
    assert words(path, folds) == list(expected)


def test_a_file_with_a_colon_in_its_name_is_meant_itself(path: Path) -> None:
    path.rename(path.with_name("a.npz:1"))
    assert words(path, ":1") == list(WORDS)
    assert words(path, ":1:2") == ["a"]


@pytest.mark.parametrize(
    ("folds", "sentence"),
    [
        (":3", r"a.npz: got fold 3, but it has folds 0, 1, 2, 4$"),
        (":1-9", r"a.npz: got fold 9, but it has"),
        (":1-999999", r"a.npz: got fold 999999, but it has"),
        (":all-but-7", r"a.npz: got fold 7, but it has"),
        (":all-but-0-4", r"a.npz: got the folds 'all-but-0-4', which leave no word"),
        (":4-1", r"a.npz: got the folds '4-1', but wanted the lower one first"),
        (":", r"a.npz: got the folds '', but wanted such as 1, 1-9 or all-but-1"),
        (":one", r"a.npz: got the folds 'one', but wanted"),
        (":-1", r"a.npz: got the folds '-1', but wanted"),
        (":12345678901", r"a.npz: got the folds '12345678901', but wanted"),
    ],
)
def test_folds_that_are_not_there(path: Path, folds: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        words(path, folds)


def test_the_folds_of_a_file_are_said_shortly(path: Path) -> None:
    np.savez(path, **arrays(folds=np.full(5, 6)))
    with pytest.raises(DataError, match=r"got fold 1, but it has only fold 6$"):
        words(path, ":1")
    np.savez(path, **arrays(folds=np.arange(5)))
    with pytest.raises(DataError, match=r"got fold 5, but it has folds 0 to 4$"):
        words(path, ":5")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"folds": None}, r"a.npz: got bits, labels, lengths, but wanted an npz with bits, labels, lengths, folds"),
        ({"bits": np.zeros((12, 128), np.uint8)}, r"bits: got the shape \(12, 128\), but wanted \(12, 16\)"),
        ({"bits": np.zeros((), np.uint8)}, r"bits: got the shape \(\), but wanted \(0, 16\)"),
        ({"bits": np.zeros((12, 16), np.int64)}, r"bits: got int64, but wanted uint8"),
        ({"labels": np.zeros(11, np.uint8)}, r"labels: got the shape \(11,\), but wanted \(12,\)"),
        ({"labels": np.full(12, 26)}, r"labels: got 26, but wanted numbers from 0 to 25"),
        ({"labels": np.full(12, -1)}, r"labels: got -1, but wanted numbers from 0 to 25"),
        ({"labels": np.zeros(12)}, r"labels: got float64, but wanted whole numbers"),
        ({"labels": np.array(list("antantnataan"))}, r"labels: got <U1, but wanted whole numbers"),
        ({"labels": np.array([{}] * 12)}, r"labels: got object, but wanted whole numbers"),
        ({"folds": np.zeros(4, np.uint8)}, r"folds: got the shape \(4,\), but wanted \(5,\)"),
        ({"folds": np.full(5, -1)}, r"folds: got -1, but wanted numbers from 0"),
        ({"lengths": np.array([2, 3, 3, 1, 4])}, r"lengths: got words of 13 letters together, but bits has 12"),
        ({"lengths": np.array([2, 3, 3, 0, 4])}, r"lengths: got 0, but wanted numbers from 1 to 1024"),
        ({"lengths": np.full(5, 2**64 - 1, np.uint64)}, r"lengths: got 18446744073709551615, but wanted"),
        ({"lengths": np.zeros(0, np.uint8), "folds": np.zeros(0, np.uint8)}, r"lengths: got no word at all"),
    ],
)
def test_arrays_that_are_wrong(path: Path, changed: dict[str, Any], sentence: str) -> None:
    np.savez(path, **arrays(**changed))
    with pytest.raises(DataError, match=sentence):
        OCR.read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    for name in ("b.npz", "b.npz:1"):
        with pytest.raises(DataError, match=r"b.npz: is not there, but wanted an npz of handwritten words"):
            OCR.read(tmp_path / name)
    with pytest.raises(DataError, match=r"is not there"):
        OCR.read(tmp_path)


def test_a_broken_zip(path: Path) -> None:
    whole = path.read_bytes()
    for content in (b"", b"no zip", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a.npz: cannot be read as an npz"):
            OCR.read(path)
    for i in range(len(whole)):  # a wrong byte anywhere is a DataError, or does not matter
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :])
        with suppress(DataError):
            assert len(OCR.read(path)) == len(WORDS)


def test_a_header_that_lies_allocates_nothing(path: Path) -> None:
    def written(members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, content in members.items():
                archive.writestr(f"{key}.npy", content)

    members = {}
    for key, array in arrays().items():
        np.save(stream := io.BytesIO(), array)
        members[key] = stream.getvalue()
    written(members)
    assert words(path) == list(WORDS)

    def npy(header: bytes, version: bytes = b"\1\0") -> bytes:
        return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header

    large = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,)}\n"
    for header in (large, large.replace(b"|u1", b"|x7"), large[:20] + b"\n", b"((" * 500, b"\n", b"a:\n    b\n  c\n"):
        written(members | {"labels": npy(header)})
        with pytest.raises(DataError, match=r"a.npz: cannot be read as an npz"):
            OCR.read(path)
    written(members | {"labels": npy(large, b"\3\0")})
    with pytest.raises(DataError, match=r"a.npz, labels: got version \(3, 0\)"):
        OCR.read(path)
    written(members | {"labels": bytes((1 << 25) + 1)})
    with pytest.raises(DataError, match=r"a.npz, labels: has 33554433 bytes, more than 33554432"):
        OCR.read(path)


def made_words(count: int) -> list[Example]:
    """Words whose letters have a pattern of pixels each, of which one pixel in ten is wrong."""
    random = np.random.default_rng(0)
    patterns = random.random((26, 128)) < 0.5
    examples = []
    for i in range(count):
        labels = random.integers(0, 4, 1 + i % 4)
        pixels = (patterns[labels] ^ (random.random((len(labels), 128)) < 0.1)).astype(np.uint8)
        examples.append(Example(pixels, tuple("abcd"[k] for k in labels), None, f"made, word {i + 1}"))
    return examples


@pytest.mark.parametrize(
    "given",
    [
        {"model": "linear"},
        {"model": "linear", "order": 1, "window": 1},
        {"model": "mlp", "width": 16, "window": 2},
        {"model": "cnn", "width": 32, "dropout": 0.1},
    ],
)
def test_a_model_trains_and_comes_back_from_its_directory(tmp_path: Path, given: dict[str, Any]) -> None:
    settings, examples = {**OCR.settings, **given}, made_words(40)
    model = OCR.build(OCR.configure(examples, settings))
    plan = Plan(epochs=12, batch_size=4, lr=0.1 if given["model"] == "linear" else 0.005, progress=False)
    history = fit(OCR, model, objective_of("nll", OCR.loss), examples, examples, tmp_path / "model", plan, {})
    assert max(row["dev_letters"] for row in history) > 0.9
    task, best = load(tmp_path / "model", TASKS)
    assert task is OCR
    metrics = OCR.evaluate(examples, predict(best, examples))
    assert metrics["letters"] == max(row["dev_letters"] for row in history)
    save(tmp_path / "again", OCR, best, metrics)
    assert predict(load(tmp_path / "again", TASKS)[1], examples) == predict(best, examples)


def test_a_word_is_read_alike_alone_and_among_longer_ones() -> None:
    examples = made_words(8)
    model = OCR.build(OCR.configure(examples, {**OCR.settings, "model": "mlp", "width": 8, "window": 1})).eval()
    model.emissions.reset_parameters()
    with torch.no_grad():
        together = model.structure([model.encode(example) for example in examples]).log_partition()
        alone = torch.cat([model.structure([model.encode(example)]).log_partition() for example in examples])
    torch.testing.assert_close(together, alone)


def test_metrics() -> None:
    examples = [Example(None, tuple(word), None, "") for word in ("ant", "a")]
    assert OCR.evaluate(examples, [tuple("and"), tuple("a")]) == {"letters": 0.75, "words": 0.5}
    assert OCR.evaluate([], []) == {"letters": 1.0, "words": 1.0}
    assert OCR.metric == next(iter(OCR.evaluate([], [])))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": "deep"}, "model: got 'deep', but wanted linear, mlp or cnn"),
        ({"order": 0}, "order: got 0, but wanted 1 to 4"),
        ({"width": 0}, "width: got 0, but wanted 1 to 4096"),
        ({"dropout": 1.0}, r"dropout: got 1.0, but wanted 0.0 to 0.99"),
        ({"dropout": float("nan")}, r"dropout: got nan, but wanted"),
        ({"window": -1}, "window: got -1, but wanted 0 to 8"),
    ],
)
def test_settings_that_are_wrong(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        OCR.configure([], {**OCR.settings, **given})


@pytest.mark.skipif(not DATA.is_file(), reason="the handwritten words are not there: see $STRUCTLOSS_DATA")
def test_the_real_data() -> None:
    examples = OCR.read(DATA)
    assert (len(examples), sum(len(example.y) for example in examples)) == (6877, 52152)
    assert examples[0].y == tuple("ommanding")
    assert {letter for example in examples for letter in example.y} == set("abcdefghijklmnopqrstuvwxyz")
    assert len(OCR.read(DATA.with_name(f"{DATA.name}:1"))) == 704
    assert len(OCR.read(DATA.with_name(f"{DATA.name}:all-but-1"))) == 6877 - 704
