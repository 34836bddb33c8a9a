"""The paper's own setting on a few kilobytes: pairs, their loss, perplexities by definition."""

import json
import math

import pytest
import torch

from residlab.data import cache as storage
from residlab.errors import ResidlabError
from residlab.experiments import paper_setting as setting
from residlab.experiments.scoring import TextScorer
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training.tokenizers import ByteTokenizer

MODEL = ModelConfig(depth=1, width=32, heads=2, vocabulary=257, context=96, norm=norm_options("bhyt"))
PAIRS = [setting.Pair(f"Say {n}", f"It is {n}.") for n in range(8)]
QUICK = setting.FineTuning(lr=3e-3, epochs=12, batch=4, context=96)


def test_the_model_is_the_authors_size():
    config = setting.paper_model(norm_options("bhyt"), 128_256)
    with torch.device("meta"):
        count = sum(p.numel() for p in Transformer(config).parameters())
    assert count == pytest.approx(374e6, rel=0.01)


def test_pairs_from_a_list_and_from_lines(tmp_path):
    rows = [{"instruction": "Say 1", "output": "1"}, {"instruction": "Add", "input": "1 and 1", "output": "2"}]
    listed, lines = tmp_path / "pairs.json", tmp_path / "pairs.jsonl"
    listed.write_text(json.dumps(rows))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    want = [setting.Pair("Say 1", "1"), setting.Pair("Add\n1 and 1", "2")]
    assert setting.read_pairs(listed) == setting.read_pairs(lines) == want


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "neither a JSON list nor JSON lines"),
        ('[{"instruction": "a"}]', "pair 1: needs the texts instruction and output"),
        ("[3]", "pair 1: needs the texts"),
    ],
)
def test_says_what_is_wrong_with_a_file_of_pairs(tmp_path, text, said):
    file = tmp_path / "pairs.json"
    file.write_text(text)
    with pytest.raises(ResidlabError, match=said):
        setting.read_pairs(file)
    with pytest.raises(ResidlabError, match="cannot be read"):
        setting.read_pairs(tmp_path / "none.json")


def test_only_the_response_and_its_end_are_targets():
    tokenizer = ByteTokenizer()
    inputs, targets = setting.encoded(setting.Pair("Say 1", "It is 1."), tokenizer, 1000)
    text = b"### Instruction:\nSay 1\n\n### Response:\nIt is 1."
    assert inputs == [256, *text]
    kept = [target for target in targets if target != setting.IGNORED]
    assert kept == [*b"It is 1.", 256]
    assert targets[-9:] == kept
    assert len(inputs) == len(targets)
    cut = setting.encoded(setting.Pair("Say 1", "It is 1."), tokenizer, 20)
    assert cut == (inputs[:20], targets[:20])


def test_the_loss_is_the_response_s_mean_whatever_the_padding():
    model, tokenizer = Transformer(MODEL, seed=0), ByteTokenizer()
    pairs = [setting.Pair("Say 1", "1"), setting.Pair("Say two hundred and one", "It is two hundred and one.")]
    nats, count = 0.0, 0
    for pair in pairs:
        inputs, targets = setting.encoded(pair, tokenizer, 96)
        with torch.no_grad():
            logs = model(torch.tensor([inputs]))[0].log_softmax(-1)
        kept = [(at, target) for at, target in enumerate(targets) if target != setting.IGNORED]
        nats -= sum(float(logs[at, target]) for at, target in kept)
        count += len(kept)
    how = setting.FineTuning(lr=0.0, epochs=1, batch=2, context=96)
    assert setting.fine_tune(model, pairs, tokenizer, how) == pytest.approx([nats / count], rel=1e-5)


def test_fine_tuning_learns_to_answer_and_is_a_function_of_its_seed():
    runs = []
    for _ in range(2):
        model = Transformer(MODEL, seed=0)
        losses = setting.fine_tune(model, PAIRS, ByteTokenizer(), QUICK)
        runs.append((losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])
    assert len(runs[0][0]) == 24
    assert runs[0][0][-1] < 0.7 * runs[0][0][0]


def test_refuses_pairs_without_a_response_in_the_context():
    model = Transformer(MODEL, seed=0)
    with pytest.raises(ResidlabError, match="none of 8 pairs has a response within 10 tokens"):
        setting.fine_tune(model, PAIRS, ByteTokenizer(), setting.FineTuning(context=10))
    with pytest.raises(ResidlabError, match="context must be at most the model's, 96; got 2048"):
        setting.fine_tune(model, PAIRS, ByteTokenizer())


def test_perplexities_by_definition():
    scorer = TextScorer(Transformer(MODEL, seed=0).double(), ByteTokenizer())
    texts = ["Two words", "and  four more of them"]
    found = setting.perplexity(scorer, texts)
    nats = -sum(score.log_likelihood for score in scorer.texts(texts))
    assert (found.tokens, found.words, found.bytes) == (31, 7, 31)
    assert found.per_token == pytest.approx(math.exp(nats / 31))
    assert found.per_word == pytest.approx(math.exp(nats / 7))
    assert found.bits_per_byte == pytest.approx(nats / 31 / math.log(2))
    assert setting.perplexity(scorer, ["word " * 60], stride=8).per_token != pytest.approx(
        setting.perplexity(scorer, ["word " * 60]).per_token, rel=1e-9
    )
    with pytest.raises(ResidlabError, match="at least one word"):
        setting.perplexity(scorer, [" \n"])


def test_wikitext_is_its_rows_joined(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="not run: pip install datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(storage, "cache_dir", lambda: tmp_path / "cache")
    folder = tmp_path / "wikitext"
    folder.mkdir()
    rows = ["", " = A title = \n", "", " Some words . \n"]
    (folder / "test.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    assert setting.wikitext2(source=f"hf:{folder}") == "\n\n".join(rows)
