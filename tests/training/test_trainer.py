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


# --- What is refused before it costs anything, and what an interrupt keeps


class Several:
    """A fabric as one of several processes sees it."""

    world_size, global_rank, is_global_zero = 2, 0, True


@pytest.mark.parametrize(("batch", "accumulation"), [(4, 4), (12, 4), (3, 1)])
def test_parts_that_processes_do_not_divide_are_refused(tmp_path, texts, batch, accumulation):
    """Chunks would be fewer than ``accumulation``, or unequal, and the gradients wrong."""
    config = replace(CONFIG, batch=batch, accumulation=accumulation)
    with pytest.raises(ResidlabError, match=rf"must divide batch = {batch}; got {accumulation} times 2$"):
        Trainer(config, tmp_path, texts, fabric=Several())
    Trainer(replace(CONFIG, batch=8, accumulation=4), tmp_path, texts, fabric=Several())


@pytest.mark.parametrize("most", [1, 64, 100, 208, 10**9])
def test_a_held_out_score_does_not_depend_on_the_batch(texts, most):
    model = Transformer(MODEL, seed=0)
    one, *others = (evaluate(model, texts.validation, 16, most=most, batch=batch) for batch in (1, 4, 5, 32))
    assert one.tokens == min(-(-most // 16) * 16, len(texts.validation))
    for other in others:
        assert (other.tokens, other.bytes) == (one.tokens, one.bytes)
        assert other.nats_per_token == pytest.approx(one.nats_per_token, rel=1e-6)


class Scripted(Trainer):
    """Losses and gradient norms from a list; ends before an update, as if it were interrupted there."""

    said: tuple[tuple[float, float], ...] = ()
    end: int | None = None
    done = 0

    def _update(self, model, plain, optimizer, ids):
        if self.done == self.end:
            raise KeyboardInterrupt
        self.done += 1
        return self.said[self.done - 1]


def test_spikes_after_going_on_are_those_of_an_unbroken_run(tmp_path, texts):
    said = [(3 + 0.001 * (step % 7), 1.0) for step in range(80)]
    for step in (20, 25):
        said[step] = (float("nan"), 1.0)
    said[30] = (2.0, float("inf"))  # skipped for its gradient alone
    said[52] = (9.0, 1.0)  # the 50th that counts: no spike yet
    said[60] = (9.0, 1.0)
    config = replace(CONFIG, steps=80, batch=1, checkpoint_every=40)

    def run(folder, done, end=None):
        trainer = Scripted(config, tmp_path / folder, texts)
        trainer.said, trainer.done, trainer.end = tuple(said), done, end
        trainer.run()

    run("whole", 0)
    with pytest.raises(KeyboardInterrupt):
        run("cut", 0, end=45)
    run("cut", 40)
    assert [line["step"] for line in lines(tmp_path / "whole") if line.get("spike")] == [61]
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_a_validation_text_without_a_window_is_found_before_training(tmp_path, texts):
    config = replace(CONFIG, model=replace(MODEL, context=len(texts.validation)))
    with pytest.raises(ResidlabError, match=r"validation.* fewer than a window"):
        Trainer(config, tmp_path / "run", texts)


def test_what_fails_in_the_last_evaluation_loses_no_weights(tmp_path, texts, monkeypatch):
    whole = Trainer(CONFIG, tmp_path / "whole", texts).run()

    def broken(*args, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate", broken)
        with pytest.raises(MemoryError):
            Trainer(CONFIG, tmp_path / "cut", texts).run()
    assert module.latest_checkpoint(tmp_path / "cut", None).step == 12
    assert Trainer(CONFIG, tmp_path / "cut", texts).run().evaluation == whole.evaluation
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.parametrize("steps", [7, 12])
def test_an_interrupt_saves_the_step_that_it_falls_into(tmp_path, texts, monkeypatch, steps):
    config = replace(CONFIG, checkpoint_every=0, evaluate_every=7, probe_every=7)
    whole = Trainer(config, tmp_path / "whole", texts).run()
    update, calls = Trainer._update, []

    def interrupted(self, *args):
        calls.append(None)
        if len(calls) == steps:
            signal.raise_signal(signal.SIGINT)
        return update(self, *args)

    monkeypatch.setattr(Trainer, "_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, tmp_path / "cut", texts).run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in (tmp_path / "cut").glob("step-*")] == [f"step-{steps:06}"]
    again = Trainer(config, tmp_path / "cut", texts).run()
    assert len(calls) == 12
    assert all(torch.equal(again.model.state_dict()[name], tensor) for name, tensor in weights(whole).items())
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_a_second_interrupt_is_not_held_back(tmp_path, texts, monkeypatch):
    def impatient(self, *args):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one came back")

    monkeypatch.setattr(Trainer, "_update", impatient)
    with pytest.raises(KeyboardInterrupt):
        Trainer(CONFIG, tmp_path / "run", texts).run()
    assert not list((tmp_path / "run").glob("step-*"))


@pytest.mark.parametrize("left", ["", "half"])
def test_metrics_that_do_not_reach_the_checkpoint_are_refused(tmp_path, texts, left):
    Trainer(CONFIG, tmp_path / "run", texts).run()
    file = tmp_path / "run" / "metrics.jsonl"
    before = file.read_text().splitlines(keepends=True)
    file.write_text("".join(before[:6]))
    if not left:
        file.unlink()
    step = 6 if left else 0
    with pytest.raises(ResidlabError, match=rf"metrics.jsonl ends at step {step}, the checkpoint .* is of step 12"):
        Trainer(CONFIG, tmp_path / "run", texts).run()
