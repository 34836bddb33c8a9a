"""Scores by hand: sums of log-softmax, whatever the batch, the padding, the window; text from the likeliest tokens."""

import math

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.experiments.scoring import TextScorer, windows
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training.tokenizers import BPETokenizer, ByteTokenizer

END = 256


def model(kind="bhyt", context=32, vocabulary=257, **options):
    config = ModelConfig(
        depth=2, width=16, heads=2, vocabulary=vocabulary, context=context, norm=norm_options(kind, **options),
        init_std=0.3,
    )  # fmt: skip
    return Transformer(config, seed=1).double().eval()


def by_hand(model, ids, scored):
    """One sequence, no batch, no padding: log-softmax, token by token."""
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]]))[0]
    places = range(len(ids) - 1 - scored, len(ids) - 1)
    each = [float(logits[at].log_softmax(-1)[ids[at + 1]]) for at in places]
    return sum(each), all(int(logits[at].argmax()) == ids[at + 1] for at in places)


# --- Windows


def test_windows_of_the_harness():
    """The example in its documentation, and its utility `get_rolling_token_windows` by another route."""
    found = list(windows(["end"], list(range(10)), 4))
    assert [(w.ids[:-1], w.ids[1:][-w.scored :]) for w in found] == [
        (("end", 0, 1, 2), (0, 1, 2, 3)),
        ((3, 4, 5, 6), (4, 5, 6, 7)),
        ((5, 6, 7, 8), (8, 9)),
    ]


@pytest.mark.parametrize("context", [1, 3, 8])
@pytest.mark.parametrize("prefix", [1, 2, 5, 20])
@pytest.mark.parametrize("targets", [0, 1, 3, 8, 9, 30])
def test_every_target_once_none_without_a_token_in_front(context, prefix, targets):
    for stride in range(1, context + 1):
        ids = list(range(prefix + targets))
        seen = []
        for window in windows(ids[:prefix], ids[prefix:], context, stride):
            assert 2 <= len(window.ids) <= context + 1
            assert 1 <= window.scored <= len(window.ids) - 1
            first = window.ids[0]
            assert list(window.ids) == list(range(first, first + len(window.ids)))
            assert first == 0 or len(window.ids) == context + 1  # nothing that fits is left away
            seen += window.ids[-window.scored :]
        assert seen == ids[prefix:]


def test_windows_refuse_what_makes_none():
    with pytest.raises(ResidlabError, match="at least one token in front"):
        windows([], [1], 4)
    with pytest.raises(ResidlabError, match=r"stride must be in .1, context = 4.; got 5"):
        windows([0], [1], 4, 5)


# --- Scores


@pytest.mark.parametrize("norm", ["rmsnorm", "bhyt", "peri-ln", "dyt"])
def test_a_continuation_is_a_sum_of_log_softmax(norm):
    net = model(norm)
    (score,) = TextScorer(net, ByteTokenizer()).continuations([("The cat", " sat.")])
    want, greedy = by_hand(net, [END, *b"The cat sat."], 5)
    assert score.log_likelihood == pytest.approx(want, rel=1e-12)
    assert (score.tokens, score.greedy) == (5, greedy)


PAIRS = [("a", "b"), ("", "empty context"), ("The cat ", "sat"), ("x" * 50, "long"), ("k", "y" * 70), ("none", "")]


def test_no_score_depends_on_its_neighbours():
    net = model()
    alone = [TextScorer(net, ByteTokenizer(), batch=1).continuations([pair])[0] for pair in PAIRS]
    for batch in (2, 16):
        together = TextScorer(net, ByteTokenizer(), batch=batch).continuations(PAIRS)
        for one, other in zip(alone, together, strict=True):
            assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-12)
            assert (other.tokens, other.greedy) == (one.tokens, one.greedy)


def test_an_empty_context_and_an_empty_continuation():
    net = model()
    first, none = TextScorer(net, ByteTokenizer()).continuations([("", "ab"), ("ab", "")])
    assert first.log_likelihood == pytest.approx(by_hand(net, [END, *b"ab"], 2)[0], rel=1e-12)
    assert (none.log_likelihood, none.tokens, none.greedy) == (0, 0, True)


def test_white_space_at_the_end_of_a_context_is_scored():
    scorer = TextScorer(model(), ByteTokenizer())
    one, other = scorer.continuations([("The cat ", "sat"), ("The cat", " sat")])
    assert one == other


def test_a_long_context_loses_its_beginning():
    net, text = model(context=16), b"0123456789" * 4
    (score,) = TextScorer(net, ByteTokenizer()).continuations([(text[:-3].decode(), text[-3:].decode())])
    want, _ = by_hand(net, list(text[-17:]), 3)
    assert score.log_likelihood == pytest.approx(want, rel=1e-12)


def test_a_long_continuation_is_scored_in_windows():
    net, text = model(context=16), bytes(range(60, 100))
    (score,) = TextScorer(net, ByteTokenizer()).continuations([("", text.decode())])
    parts = [([END, *text[:16]], 16), (list(text[15:32]), 16), (list(text[23:40]), 8)]
    assert score.log_likelihood == pytest.approx(sum(by_hand(net, *part)[0] for part in parts), rel=1e-12)
    assert score.tokens == 40


def test_stride_gives_every_token_more_in_front():
    net, text = model(context=16), bytes(range(60, 90))
    (score,) = TextScorer(net, ByteTokenizer()).texts([text.decode()], stride=1)
    ids = [END, *text]
    want = by_hand(net, ids[:17], 16)[0]
    want += sum(by_hand(net, ids[at - 16 : at + 1], 1)[0] for at in range(17, len(ids)))
    assert score.log_likelihood == pytest.approx(want, rel=1e-12)


def test_greedy_is_said_of_what_the_model_writes_and_of_nothing_else():
    net = model()
    scorer = TextScorer(net, ByteTokenizer())
    ids = [END, *b"Once"]
    with torch.no_grad():
        for _ in range(4):
            ids.append(int(net(torch.tensor([ids]))[0, -1, :128].argmax()))  # within ASCII, to be a text
            best = int(net(torch.tensor([ids[:-1]]))[0, -1].argmax()) == ids[-1]
            (score,) = scorer.continuations([("Once", bytes(ids[5:]).decode())])
            assert score.greedy == (best and by_hand(net, ids, len(ids) - 5)[1])


def test_a_bpe_continuation_is_what_stands_behind_the_context_in_both_encoded_as_one():
    pytest.importorskip("tokenizers")
    tokenizer = BPETokenizer.train(["the cat sat on the mat, the cat sat still. " * 20], 280)
    net = model(vocabulary=tokenizer.vocabulary)
    (score,) = TextScorer(net, tokenizer).continuations([("the cat ", "sat on")])
    whole, front = tokenizer.encode("the cat sat on"), tokenizer.encode("the cat")
    ids = [tokenizer.end, *map(int, whole)]
    assert score.log_likelihood == pytest.approx(by_hand(net, ids, len(whole) - len(front))[0], rel=1e-12)


# --- Texts


def test_continues_greedily_up_to_a_stop():
    net = model()
    scorer = TextScorer(net, ByteTokenizer())
    ids = [END, *b"Once upon"]
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(net(torch.tensor([ids]))[0, -1].argmax()))
    written = ids[10:]
    text = ByteTokenizer().decode(written[: written.index(END)] if END in written else written)
    assert scorer.continued("Once upon", new_tokens=12) == text
    assert scorer.continued("Once upon", new_tokens=12, until=[text[2:4]]) == text[: text.find(text[2:4])]
    assert scorer.continued("Once upon", new_tokens=12, until=["", text[0]]) == ""


def test_continues_behind_a_context_that_does_not_fit():
    scorer = TextScorer(model(context=16), ByteTokenizer())
    assert scorer.continued("x" * 100 + "Once", new_tokens=8) == scorer.continued("x" * 90 + "Once", new_tokens=8)
    assert len(scorer.continued("abc", new_tokens=1000).encode()) >= 1
    assert scorer.continued("abc", temperature=1.0) == scorer.continued("abc", temperature=1.0)


def test_refuses_another_vocabulary_and_other_numbers():
    with pytest.raises(ResidlabError, match="the tokenizer has 257 tokens, the model a vocabulary of 300"):
        TextScorer(model(vocabulary=300), ByteTokenizer())
    for options in ({"context": 33}, {"context": 0}, {"batch": 0}):
        with pytest.raises(ResidlabError, match=r"context must be in .1, 32. and batch >= 1"):
            TextScorer(model(), ByteTokenizer(), **options)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary():
    net = model()
    with torch.no_grad():
        net.final_norm.gamma.zero_()
    (score,) = TextScorer(net, ByteTokenizer()).texts(["any text at all, longer than the context of the model"])
    assert score.log_likelihood / score.tokens == pytest.approx(-math.log(257), rel=1e-12)


class Joining(ByteTokenizer):
    """Bytes, but ``20`` and ``24`` are one token where they meet."""

    def encode(self, text):
        return super().encode(text.replace("2024", "\x01"))


def test_a_continuation_that_its_context_swallows_is_scored_apart():
    net = model()
    (score,) = TextScorer(net, Joining()).continuations([("20", "24")])
    want, greedy = by_hand(net, [END, *b"20", *b"24"], 2)
    assert score.log_likelihood == pytest.approx(want, rel=1e-12)
    assert (score.tokens, score.greedy) == (2, greedy)
