"""The trainer: it learns, it says what happened, and killing it at any moment changes no bit of the result."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training import trainer as module
from residlab.training.config import TrainConfig
from residlab.training.corpus import corpus_of
from residlab.training.evaluation import evaluate
from residlab.training.optimizers import SETTINGS, OptimizerConfig
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import tokenized
from residlab.training.trainer import Trainer

MODEL = ModelConfig(depth=2, width=16, heads=2, vocabulary=257, context=16, norm=norm_options("bhyt"))
CONFIG = TrainConfig(
    model=MODEL, steps=12, batch=4, evaluation_tokens=200, checkpoint_every=4, optimizer=OptimizerConfig(lr=0.01)
)
DOCUMENTS = [f"Document {n} says: {n} times {n} is {n * n}, and then some more words follow. " * 3 for n in range(40)]


@pytest.fixture
def texts(tmp_path):
    return tokenized(corpus_of("numbers", DOCUMENTS), ByteTokenizer(), cache=tmp_path / "cache")


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(result):
    return {name: tensor.clone() for name, tensor in result.model.state_dict().items()}


def test_it_learns_and_says_how(tmp_path, texts):
    config = replace(CONFIG, steps=60, evaluate_every=20, checkpoint_every=0)
    result = Trainer(config, tmp_path / "run", texts).run()
    start = evaluate(Transformer(MODEL, seed=0), texts.validation, 16, most=200)
    assert result.evaluation.bits_per_byte < 0.8 * start.bits_per_byte
    assert start.bits_per_byte == pytest.approx(8, abs=0.2)
    assert [line["step"] for line in lines(tmp_path / "run") if "evaluation" in line] == [20, 40, 60]
    steps = [line for line in lines(tmp_path / "run") if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 61))
    assert tuple(line["loss"] for line in steps) == result.losses
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-000060"]


def test_accumulation_changes_rounding_only(tmp_path, texts):
    config = replace(CONFIG, steps=3, clip=None)
    whole = Trainer(config, tmp_path / "a", texts).run()
    parts = Trainer(replace(config, accumulation=4), tmp_path / "b", texts).run()
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(parts.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    assert parts.losses == pytest.approx(whole.losses, rel=1e-5)


def test_bfloat16_trains_with_float32_weights(tmp_path, texts):
    result = Trainer(replace(CONFIG, precision="bfloat16"), tmp_path / "run", texts).run()
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert result.losses[-1] < result.losses[0]


def test_probes_see_the_model_and_change_no_bit(tmp_path, texts):
    seen = []

    def probe(model, ids):
        seen.append(tuple(ids.shape))
        return {"rms": float(model.embedding.weight.square().mean().sqrt())}

    plain = Trainer(CONFIG, tmp_path / "a", texts).run()
    probed = Trainer(replace(CONFIG, probe_every=5), tmp_path / "b", texts, probes={"size": probe}).run()
    assert seen == [(4, 16)] * 2
    assert [line["step"] for line in lines(tmp_path / "b") if "probes" in line] == [5, 10]
    assert all(torch.equal(probed.model.state_dict()[name], tensor) for name, tensor in weights(plain).items())


def poisoned(monkeypatch, bad):
    """Make the loss of some updates infinite."""
    update, calls = Trainer._update, []

    def once_bad(self, model, plain, optimizer, ids):
        calls.append(None)
        if len(calls) in bad:
            plain.final_norm.gamma.register_hook(lambda gradient: gradient * float("nan"))
            hooks = plain.final_norm.gamma._backward_hooks
            result = update(self, model, plain, optimizer, ids)
            hooks.clear()
            return result
        return update(self, model, plain, optimizer, ids)

    monkeypatch.setattr(Trainer, "_update", once_bad)


def test_an_update_that_is_not_finite_is_skipped(tmp_path, texts, monkeypatch):
    poisoned(monkeypatch, {3, 7})
    result = Trainer(CONFIG, tmp_path / "run", texts).run()
    assert result.skipped == 2
    assert [line["step"] for line in lines(tmp_path / "run") if line.get("skipped")] == [3, 7]
    assert all(p.isfinite().all() for p in result.model.parameters())


def test_updates_that_stay_bad_end_training(tmp_path, texts, monkeypatch):
    poisoned(monkeypatch, set(range(6, 99)))
    with pytest.raises(ResidlabError, match=r"step 8: .* the 3th update in a row that is not finite"):
        Trainer(replace(CONFIG, bad_steps=2), tmp_path / "run", texts).run()
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-000004"]
    assert [line["step"] for line in lines(tmp_path / "run") if line.get("skipped")] == [6, 7, 8]


def test_spikes_are_written_down():
    recent = module.deque([2.0 + 0.01 * (n % 5) for n in range(50)], maxlen=50)
    assert module._is_spike(2.6, recent)
    assert not module._is_spike(2.4, recent)
    assert not module._is_spike(9.0, module.deque([2.0] * 49))


def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path, texts):
    with pytest.raises(ResidlabError, match="the tokenizer has 257 tokens, the model a vocabulary of 300"):
        Trainer(replace(CONFIG, model=replace(MODEL, vocabulary=300)), tmp_path, texts)


# --- Going on


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_run_that_was_ended_goes_on_bit_for_bit(tmp_path, texts, monkeypatch, kind):
    if kind == "kl-shampoo":
        pytest.importorskip("heavyball")
    config = replace(CONFIG, optimizer=OptimizerConfig(kind=kind), clip=0.5)
    whole = Trainer(config, tmp_path / "whole", texts).run()
    save, ended = Trainer._save, []

    def end_after(self, model, optimizer, step, losses, skipped):
        save(self, model, optimizer, step, losses, skipped)
        if step == 4 and not ended:
            ended.append(step)
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_save", end_after)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, tmp_path / "cut", texts).run()
    torch.rand(17)  # somebody else draws in between
    again = Trainer(config, tmp_path / "cut", texts).run()
    assert again.losses == whole.losses
    assert all(torch.equal(again.model.state_dict()[name], tensor) for name, tensor in weights(whole).items())
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_trainer as t
from residlab.training.corpus import corpus_of
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import tokenized
from residlab.training.trainer import Trainer
folder = Path(sys.argv[1])
texts = tokenized(corpus_of("numbers", t.DOCUMENTS), ByteTokenizer(), cache=folder / "cache")
Trainer(t.replace(t.CONFIG, steps=int(sys.argv[2]), checkpoint_every=10), folder / "run", texts).run()
"""


def test_kill_9_changes_nothing(tmp_path, texts):
    steps = 120
    whole = Trainer(replace(CONFIG, steps=steps, checkpoint_every=10), tmp_path / "whole", texts).run()
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(steps), str(Path(__file__).parent)]
    folder, kills = tmp_path / "run", 0
    for wanted in (20, 50, 80):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ))
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if any(int(path.name[5:]) >= wanted for path in folder.glob("step-*")):
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.wait()
    assert kills >= 1
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    saved = module.latest_checkpoint(folder, None)
    assert saved.step == steps
    assert all(torch.equal(saved.model[name], tensor) for name, tensor in weights(whole).items())
    assert lines(folder) == lines(tmp_path / "whole")


def test_another_configuration_in_the_same_folder_is_refused(tmp_path, texts):
    Trainer(CONFIG, tmp_path / "run", texts).run()
    with pytest.raises(ResidlabError, match=r"these differ: seed \(0, now 1\)"):
        Trainer(replace(CONFIG, seed=1), tmp_path / "run", texts).run()


def test_a_finished_run_is_not_trained_again(tmp_path, texts):
    first = Trainer(CONFIG, tmp_path / "run", texts).run()
    before = lines(tmp_path / "run")
    again = Trainer(CONFIG, tmp_path / "run", texts).run()
    assert again.evaluation == first.evaluation
    assert again.losses == first.losses
    assert lines(tmp_path / "run") == before


def test_nothing_is_printed_without_a_terminal(tmp_path, texts, capfd):
    Trainer(CONFIG, tmp_path / "run", texts).run()
    assert capfd.readouterr() == ("", "")
