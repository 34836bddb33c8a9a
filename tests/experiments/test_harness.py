"""The lm-evaluation-harness on our models: what it is told, and, where it is installed, the harness itself."""

import json
import math

import pytest
import yaml

from residlab.errors import ResidlabError
from residlab.experiments import harness
from residlab.experiments.scoring import TextScorer
from residlab.experiments.training_run import run_hash, train, trained
from residlab.models.config import ModelConfig, norm_options
from residlab.models.files import save_model
from residlab.models.transformer import Transformer
from residlab.training.config import TrainConfig
from residlab.training.tokenizers import ByteTokenizer

MODEL = ModelConfig(depth=1, width=16, heads=2, vocabulary=257, context=64, norm=norm_options("bhyt"))
QUESTIONS = [
    {"question": f"{n} plus one is", "choices": [f"{n + 1}", f"{n + 2}", "a fish"], "label": 0, "text": f"{n} is {n}."}
    for n in range(5)
]


@pytest.fixture
def folder(tmp_path):
    save_model(Transformer(MODEL, seed=0), tmp_path / "model")
    return tmp_path / "model"


def test_a_model_by_its_folder_or_by_its_run(tmp_path, folder, text):
    cache = tmp_path / "cache"
    config = TrainConfig(model=MODEL, corpus=str(text), steps=2, batch=2, evaluation_tokens=64)
    train("base", config, cache=cache)
    by_run = harness.scorer(run=run_hash(config, cache=cache), cache_dir=str(cache), batch_size="3")
    assert by_run.batch == 3
    pair = [("The", " cat")]
    assert by_run.continuations(pair) == TextScorer(trained(config, cache=cache), ByteTokenizer()).continuations(pair)
    assert harness.scorer(path=str(folder), context=8).context == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "run=HASH or path=FOLDER, one of them"),
        ({"run": "0123456789abcdef", "path": "x"}, "one of them"),
        ({"run": "0123456789abcdef"}, "is not in the cache"),
        ({"path": "nowhere"}, "holds no model"),
        ({"tokenizer": "nowhere.json"}, "tokenizer must be bytes or a file; nowhere.json cannot be read"),
        ({"batch_size": "auto"}, "batch_size must be a whole number; got 'auto'"),
    ],
)
def test_says_what_is_wrong_with_the_arguments(tmp_path, folder, arguments, said):
    if {"tokenizer", "batch_size"} & arguments.keys():
        arguments = {"path": str(folder), **arguments}
    with pytest.raises(ResidlabError, match=said):
        harness.scorer(cache_dir=str(tmp_path), **arguments)


def test_options_of_a_generation():
    assert harness.generation_options({"until": ["\n"], "max_gen_toks": 5, "do_sample": False, "temperature": 0.7}) == {
        "until": ["\n"],
        "new_tokens": 5,
        "temperature": 0.0,
    }
    assert harness.generation_options({"until": "stop"})["until"] == ["stop"]
    assert harness.generation_options({"do_sample": True, "temperature": 0.7})["temperature"] == 0.7
    with pytest.raises(ResidlabError, match="got top_k"):
        harness.generation_options({"top_k": 3})


def test_without_the_harness_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    with pytest.raises(ResidlabError, match="python -m pip install lm-eval"):
        harness.register()


@pytest.mark.filterwarnings("default")  # the harness's own, and those of what it brings
def test_the_harness_itself_on_a_local_task(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    lm_eval = pytest.importorskip("lm_eval", reason="not run: pip install lm-eval")
    from lm_eval.tasks import TaskManager

    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
    }
    tasks = {
        "local_choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "label",
            "metric_list": [{"metric": "acc"}],
        },
        "local_rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}],
        },
        "local_writing": {
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {"until": ["."], "max_gen_toks": 4},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, task in tasks.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **common, **task}))
    harness.register()
    assert harness.register() is harness.register()
    found = lm_eval.simple_evaluate(
        model="residlab",
        model_args=f"path={folder},tokenizer=bytes",
        tasks=list(tasks),
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        batch_size=2,
        device="cuda:0",  # the default of its command line, wherever it runs
        log_samples=True,
        bootstrap_iters=0,
    )
    scorer = harness.scorer(path=str(folder))
    correct = []
    for row in QUESTIONS:
        scores = scorer.continuations([(row["question"], f" {choice}") for choice in row["choices"]])
        likelihoods = [score.log_likelihood for score in scores]
        correct.append(likelihoods.index(max(likelihoods)) == row["label"])
    assert found["results"]["local_choice"]["acc,none"] == pytest.approx(sum(correct) / len(correct))
    nats = -sum(score.log_likelihood for score in scorer.texts([row["text"] for row in QUESTIONS]))
    words = sum(len(row["text"].split()) for row in QUESTIONS)
    assert found["results"]["local_rolling"]["word_perplexity,none"] == pytest.approx(math.exp(nats / words), rel=1e-6)
    written = [sample["resps"][0][0] for sample in found["samples"]["local_writing"]]
    assert written == [scorer.continued(row["question"], until=["."], new_tokens=4) for row in QUESTIONS]
