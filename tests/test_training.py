"""structloss train, predict and evaluate, on small files made on the spot."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")

from structloss import NegativeLogLikelihood, Objective, Structure
from structloss.cli import app
from structloss.naming import objective_of
from structloss.tasks import TASKS
from structloss.training.batches import nodes
from structloss.training.directory import load, save
from structloss.training.experiment import Data
from structloss.training.experiment import run as experiment
from structloss.training.fit import Training, _MovingAverage
from structloss.training.plan import Plan
from structloss.training.task import DataError


def made(sentences: int, seed: int) -> str:
    """Chunks: a determiner begins one, nouns and adjectives go on, verbs are outside."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(sentences):
        inside = False
        for _ in range(generator.integers(2, 9)):
            kind = generator.choice(["D", "N", "A", "V"])
            label = "O" if kind == "V" else "B-NP" if kind == "D" or not inside else "I-NP"
            inside = kind != "V"
            lines.append(f"{kind.lower()}{generator.integers(0, 5)} {kind} {label}")
        lines.append("")
    return "\n".join(lines) + "\n"


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(made(150, 0))
    (tmp_path / "dev.txt").write_text(made(40, 1))
    return tmp_path


def run(*arguments: object):
    return CliRunner().invoke(app, [str(x) for x in arguments])


def train(files: Path, out: str, *more: object):
    return run(
        "train", "tagging", "--train", files / "train.txt", "--dev", files / "dev.txt", "--out", files / out,
        "--no-progress", *more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "asked", "wanted"),
    [("nll", False, 2.0), ("direct", False, 0.0), ("direct", True, 2.0), ("0.1*nll+direct", False, 2.0)],
)
def test_direct_loss_has_no_penalty_unless_one_is_asked_for(
    objective: str, asked: bool, wanted: float, files: Path
) -> None:
    task = TASKS["tagging"]
    data = Data.read(task, files / "train.txt", files / "dev.txt", None)
    model = task.build(task.configure(data.train, task.settings))
    plan = Plan(l2=2.0 * len(data.train), l2_asked=asked, warm_up=1)
    training = Training(task, model, objective_of(objective, "hamming"), data.train, data.dev, plan)
    optimizers = training.configure_optimizers()
    training._penalise(optimizers, NegativeLogLikelihood())  # as while it warms up
    assert [group["weight_decay"] for group in optimizers[0].param_groups] == [2.0]
    training._penalise(optimizers, training.objective)
    assert [group["weight_decay"] for group in optimizers[0].param_groups] == [wanted]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (("--objective", "nll"), 0), (("--objective", "risk"), 4), (("--objective", "0.1*nll+risk"), 4),
        (("--objective", "risk", "--warm-up", 1), 1), (("--objective", "risk", "--init", "trained"), 0),
    ],
)  # fmt: skip
def test_risk_warms_up_unless_told_otherwise_and_nothing_stops_before_it_began(
    more: tuple[object, ...], wanted: int, files: Path
) -> None:
    if "--init" in more:
        assert train(files, "trained", "--epochs", 1, "--overwrite").exit_code == 0
        more = (*more[:-1], files / "trained")
    result = train(files, "warm", "--epochs", 6, "--patience", 1, "--lr", 1e-9, "--overwrite", *more)
    assert result.exit_code == 0, result.output
    found = json.loads((files / "warm" / "result.json").read_text())
    assert found["made"]["warm_up"] == wanted
    assert len(found["history"]) == wanted + 2  # nothing gets better: one epoch of the objective, and one in vain


def test_train_evaluate_predict(files: Path) -> None:
    result = train(files, "model", "--epochs", 8, "--test", files / "dev.txt")
    assert result.exit_code == 0, result.output
    assert "test" in result.output
    evaluated = json.loads(run("evaluate", files / "model", files / "dev.txt", "--json").output)
    assert evaluated["f1"] > 0.95
    again = run("predict", files / "model", files / "dev.txt", "-o", files / "out.txt")
    assert again.exit_code == 0, again.output
    lines, wanted = (files / "out.txt").read_text().splitlines(), (files / "dev.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [line.split()[:2] for line in wanted]
    right = sum(a == b for a, b in zip(lines, wanted, strict=True) if a)
    assert right / sum(map(bool, lines)) == pytest.approx(evaluated["accuracy"])
    assert run("predict", files / "model", files / "dev.txt", "--nbest", 2).output.startswith("# probability = ")
    marginals = run("predict", files / "model", files / "dev.txt", "--marginals").output.splitlines()
    for plain, line in zip(lines, marginals, strict=True):
        assert line.startswith(plain)
        if plain:
            pairs = [pair.rsplit(":", 1) for pair in line.split()[-1].split(",")]
            assert sum(float(p) for _, p in pairs) == pytest.approx(1, abs=0.01)
    _, model = load(files / "model", TASKS)
    assert sorted(p.name for p in (files / "model").iterdir()) == [
        "checkpoints", "config.json", "logs", "metrics.json", "model.safetensors", "result.json",
    ]  # fmt: skip
    assert not model.training
    logs = sorted(p.name for p in (files / "model" / "logs").iterdir())
    assert logs[0].startswith("events.out.tfevents")  # TensorBoard's
    assert "metrics.csv" in logs


def test_a_run_says_one_line_an_epoch_and_how_to_go_on(files: Path) -> None:
    result = train(files, "model", "--epochs", 2)
    lines = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"], result.stderr
    assert "dev f1" in lines[0]
    assert lines[0].endswith("the best so far")
    assert f"next: structloss predict {files / 'model'} new.txt" in result.stdout
    assert f"structloss evaluate {files / 'model'} {files / 'dev.txt'}" in result.stdout


def test_a_run_says_nothing_or_json_where_it_is_asked_to(files: Path) -> None:
    quiet = train(files, "quiet", "--epochs", 2, "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")
    said = train(files, "json", "--epochs", 2, "--json")
    assert said.stderr == ""
    written = json.loads((files / "json" / "result.json").read_text())
    assert json.loads(said.stdout) == {"model": str(files / "json"), **written}


def test_labels_that_the_model_lacks_are_an_error_of_evaluate_too(files: Path) -> None:
    assert train(files, "model", "--epochs", 1).exit_code == 0
    text = (files / "dev.txt").read_text()
    row = next(line for line in text.splitlines() if line)
    (files / "other.txt").write_text(text.replace(row, f"{row.rpartition(' ')[0]} B-NEW", 1))
    refused = run("evaluate", files / "model", files / "other.txt")
    assert refused.exit_code == 2
    assert "got the label 'B-NEW', which the training data lack" in " ".join(refused.stderr.split())
    counted = run("evaluate", files / "model", files / "other.txt", "--unknown-labels", "--json")
    assert json.loads(counted.stdout)["accuracy"] < 1


def test_a_bilstm_under_softmax_margin_with_edit_distance(files: Path) -> None:
    more = ("--set", "model=bilstm", "--set", "width=16", "--objective", "softmax-margin", "--loss", "edit:cap=2")
    result = train(files, "model", "--epochs", 4, *more)
    assert result.exit_code == 0, result.output
    assert json.loads((files / "model" / "metrics.json").read_text())["dev_f1"] > 0.8


def test_a_config_file_stands_behind_the_command_line(files: Path) -> None:
    config = {"train": str(files / "train.txt"), "epochs": 1, "batch-size": 8, "seed": 5}
    (files / "config.json").write_text(json.dumps(config))
    result = run("train", "tagging", "--config", files / "config.json", "--out", files / "m", "--no-progress")
    assert result.exit_code == 0, result.output
    (files / "config.json").write_text('{"epoch": 1}')
    result = run("train", "tagging", "--config", files / "config.json", "--out", files / "m")
    assert result.exit_code == 2
    assert "'epoch', which is no option" in result.output


ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(files: Path, out: str, *more: object) -> list[str]:
    arguments = ("train", "tagging", "--train", files / "train.txt", "--dev", files / "dev.txt", "--out", files / out)
    return [str(Path(sys.executable).with_name("structloss")), *map(str, (*arguments, "--no-progress", *more))]


@pytest.mark.slow
def test_two_processes_that_share_each_batch(files: Path) -> None:
    """The same batches, halved: only the order of sums differs, and on small data a label or two."""
    settings = ("--epochs", 3, "--seed", 1, "--batch-size", 8, "--set", "model=bilstm", "--set", "dropout=0.0")
    for devices in (1, 2):
        done = subprocess.run(
            command(files, f"on{devices}", *settings, "--devices", devices),
            capture_output=True,
            text=True,
            timeout=600,
            env=ALONE,
        )
        assert done.returncode == 0, done.stderr
    one, two = (json.loads((files / f"on{n}" / "metrics.json").read_text()) for n in (1, 2))
    assert two["dev_f1"] == pytest.approx(one["dev_f1"], abs=0.05)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("train.txt", "", "train.txt, line 1: got no token at all"),
        ("train.txt", "a b\nc\n", "train.txt, line 2: got 1 columns, but line 1 has 2"),
        ("train.txt", b"a D B-NP\n\xff\xfe D O\n", "train.txt, line 2: is not UTF-8"),
        ("train.txt", "x" * (1 << 20) + "\n", "train.txt, line 1: is longer than"),
        (
            "dev.txt",
            "a D B-NP\n\nc D O\nb D B-XX\n",
            "dev.txt, line 4: got the label 'B-XX', which the training data lack",
        ),
    ],
)
def test_bad_files_leave_nothing_behind(files: Path, name: str, content: str | bytes, sentence: str) -> None:
    (files / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    result = train(files, "model")
    assert result.exit_code == 2
    assert sentence in result.output.replace("\n", " ")
    assert not (files / "model").exists()


def test_a_line_of_100_megabytes_is_refused_without_being_read(files: Path) -> None:
    with (files / "train.txt").open("wb") as file:
        file.truncate(100 * 2**20)  # of zeros, without a line break
    result = train(files, "model")
    assert result.exit_code == 2
    assert "train.txt, line 1: is longer than 1048576 bytes" in result.output.replace("\n", " ")
    assert not (files / "model").exists()


def test_labels_that_training_lacks_may_count_as_wrong(files: Path) -> None:
    (files / "dev.txt").write_text("d1 D B-NP\nd2 D B-XX\n")
    assert train(files, "model", "--epochs", 1).exit_code == 2
    result = train(files, "model", "--epochs", 1, "--unknown-labels")
    assert result.exit_code == 0, result.output
    assert json.loads((files / "model" / "metrics.json").read_text())["dev_accuracy"] <= 0.5


def test_weights_are_averaged_and_a_resumed_run_goes_on_with_the_average(files: Path) -> None:
    task, objective = TASKS["tagging"], objective_of("nll")
    data = Data.read(task, files / "train.txt", files / "dev.txt", None)
    config = task.configure(data.train, {**task.settings, "model": "bilstm", "width": 8})
    plan = Plan(epochs=4, patience=9, lr=0.01, average=0.9, decays=True, progress=False)
    whole = experiment(task, data, config, objective, files / "whole", plan)
    experiment(task, data, config, objective, files / "parts", replace(plan, stop_after=2))
    parts = experiment(task, data, config, objective, files / "parts", replace(plan, resume=True))
    assert whole is not None
    assert parts is not None
    assert (parts.history, parts.metrics) == (whole.history, whole.metrics)
    plain = experiment(task, data, config, objective, files / "plain", replace(plan, average=0.0))
    assert plain is not None
    assert plain.history[0]["train_objective"] == whole.history[0]["train_objective"]
    (a, b) = (load(files / name, TASKS)[1].state_dict() for name in ("whole", "plain"))
    assert not all(torch.equal(a[key], b[key]) for key in a)


def test_machines_are_counted_from_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert nodes() == 1
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert nodes() == 3


def test_a_moving_average_forgets_the_beginning() -> None:
    average = _MovingAverage(0.5)
    assert float(average(torch.tensor(1.0), torch.tensor(2.0), 0)) == pytest.approx(1.9)
    assert float(average(torch.tensor(1.0), torch.tensor(2.0), 1000)) == pytest.approx(1.5)


def test_bad_options_are_named(files: Path) -> None:
    for more, sentence in (
        (("--objective", "svm"), "objective: got 'svm'"),
        (("--loss", "edits", "--objective", "risk"), "loss: got 'edits'"),
        (("--set", "model=gpt"), "model: got 'gpt', but wanted sparse or bilstm"),
        (("--set", "size=3"), "--set: got 'size=3'"),
        (("--set", "order=x"), "order is int"),
    ):
        result = train(files, "model", *more)
        assert result.exit_code == 2
        assert sentence in result.output
    assert "task: got 'translation'" in run("train", "translation", "--train", files / "train.txt").output
    assert "--train: wanted the file" in run("train", "tagging").output
    assert "is not there" in run("evaluate", files / "nothing", files / "dev.txt").output


def test_a_model_without_times_and_a_truncated_model_directory(files: Path) -> None:
    assert train(files, "model", "--epochs", 1).exit_code == 0
    refused = run("predict", files / "model", files / "dev.txt", "--times")
    assert refused.exit_code == 2
    assert "--times: a " in refused.output
    weights, config = files / "model" / "model.safetensors", files / "model" / "config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"model.safetensors: does not hold the weights"):
        load(files / "model", TASKS)
    weights.write_bytes(whole)
    text = config.read_text()
    config.write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match=r"config.json, line 1: is no JSON"):
        load(files / "model", TASKS)
    config.write_text('{"task": "tagging", "model": {}}')
    with pytest.raises(DataError, match=r"config.json, line 1: is no model's config"):
        load(files / "model", TASKS)
    config.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"config.json: is no model's config"):
        load(files / "model", TASKS)
    changed = json.loads(text)
    changed["model"]["labels"] = changed["model"]["labels"][::-1]  # of the same size, and wrong
    config.write_text(json.dumps(changed))
    with pytest.raises(DataError, match=r"model.safetensors: does not hold the weights that config.json was written"):
        load(files / "model", TASKS)


def test_model_files_are_those_of_one_model_whenever_their_writer_is_killed(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for seed in (1, 2):
        assert train(files, f"model{seed}", "--epochs", 1, "--seed", seed).exit_code == 0
        models.append(load(files / f"model{seed}", TASKS)[1])
    assert not torch.equal(*(next(iter(model.state_dict().values())) for model in models))
    out, task, kept = files / "out", TASKS["tagging"], ("replace", "fsync", "unlink")

    class KilledError(BaseException):
        pass

    def killed_after(calls: int) -> bool:
        """Save the second model over the first, and kill the writer after so many calls to the system."""
        left = [calls]

        def counted(original):
            def call(*arguments, **more):
                if left[0] == 0:
                    raise KilledError
                left[0] -= 1
                return original(*arguments, **more)

            return call

        with monkeypatch.context() as patched:
            for name in kept:
                owner = os if name == "fsync" else Path
                patched.setattr(owner, name, counted(getattr(owner, name)))
            try:
                save(out, task, models[1], {"number": 1})
            except KilledError:
                return True
        return False

    seen, calls = set(), 0
    save(out, task, models[0], {"number": 0})
    while killed_after(calls):
        _, found = load(out, TASKS)
        number = json.loads((out / "config.json").read_text())["metrics"]["number"]
        for key, weights in models[number].state_dict().items():
            assert torch.equal(found.state_dict()[key], weights)
        seen.add(number)
        calls += 1
        if calls % 2:  # who comes next may find what was left, or a whole model
            save(out, task, models[0], {"number": 0})
            assert torch.equal(*(next(iter(m.state_dict().values())) for m in (load(out, TASKS)[1], models[0])))
    assert seen == {0, 1}
    assert calls > 8
    # The files of two models are no model, though their shapes agree.
    (out / "model.safetensors").write_bytes((files / "model1" / "model.safetensors").read_bytes())
    with pytest.raises(DataError, match=r"one of the two is damaged, was changed or is of another model"):
        load(out, TASKS)


class Picky(Objective):
    """The likelihood, infinite for sentences of two tokens."""

    def values(self, s: Structure, r: object) -> torch.Tensor:
        return torch.where(s.lengths == 2, torch.inf, NegativeLogLikelihood().values(s, r))


def test_what_is_impossible_is_skipped_and_counted_or_named(files: Path) -> None:
    task = TASKS["tagging"]
    data = Data.read(task, files / "train.txt", files / "dev.txt", None)
    config = task.configure(data.train, {**task.settings, "model": "bilstm", "width": 8})
    twos = [example.where for example in data.train if len(example.y) == 2]
    plan = Plan(epochs=2, patience=9, lr=0.01, progress=False)
    rows: list[dict[str, float]] = []
    experiment(task, data, config, Picky(impossible="skip"), files / "skip", plan, on_epoch=rows.append)
    assert [row["skipped"] for row in rows] == [len(twos)] * 2
    with pytest.raises(DataError, match=r"line \d+: objective: example \d+ has the value inf") as said:
        experiment(task, data, config, Picky(), files / "error", plan)
    assert str(said.value).split(": objective")[0] in twos


def test_training_for_f1_follows_dev_and_is_resumed(files: Path) -> None:
    task, data = TASKS["tagging"], Data.read(TASKS["tagging"], files / "train.txt", files / "dev.txt", None)
    config = task.configure(data.train, dict(task.settings))
    plan = Plan(lr=0.1, epochs=4, progress=False)

    def objective() -> Objective:
        return objective_of("hinge", "f1", config["labels"])

    whole = experiment(task, data, config, objective(), files / "whole", plan)
    assert whole is not None
    for row in whole.history:
        assert row["false_alarm"] == pytest.approx(row["dev_f1"])
        assert row["miss"] == pytest.approx(2 - row["dev_f1"])
    experiment(task, data, config, objective(), files / "parts", replace(plan, stop_after=2))
    parts = experiment(task, data, config, objective(), files / "parts", replace(plan, resume=True))
    assert parts is not None
    assert parts.history == whole.history


def test_a_loss_without_an_objective_is_trained_on(files: Path) -> None:
    run("train", "tagging", "--train", files / "train.txt", "--loss", "f1", "--out", files / "m", "--epochs", 2)
    made = json.loads((files / "m" / "result.json").read_text())["made"]
    assert made["objective"].startswith("Hinge(")
