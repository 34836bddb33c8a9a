"""Generation against a loop without a cache, and sampling against the law it promises."""

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.models.config import NORMS, ModelConfig, norm_options
from residlab.models.generation import generate
from residlab.models.transformer import Transformer


def make(kind="bhyt", **values):
    config = {"depth": 2, "width": 32, "heads": 4, "kv_heads": 2, "vocabulary": 40, "context": 24, "init_std": 0.5}
    return Transformer(ModelConfig(**{**config, **values}, norm=norm_options(kind)), seed=0).double()


def without_cache(model, prompt, new_tokens):
    tokens = torch.tensor([prompt])
    for _ in range(new_tokens):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return tokens[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("position", ["rope", "learned"])
def test_greedy_generation_is_the_loop_without_a_cache(kind, position):
    model = make(kind, position=position)
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    assert generate(model, prompts, 10) == [without_cache(model, prompt, 10) for prompt in prompts]


def test_prompts_may_be_a_tensor():
    model = make()
    prompts = torch.tensor([[1, 2], [3, 4]])
    assert generate(model, prompts, 4) == generate(model, prompts.tolist(), 4)


def test_nothing_to_do():
    assert generate(make(), [], 5) == []
    assert generate(make(), [[1]], 0) == [[]]


def test_a_stop_token_ends_its_own_text_only():
    model = make()
    prompts = [[3, 1, 4], [9], [2, 6]]
    whole = generate(model, prompts, 10)
    stop = whole[0][3]
    expected = [text[: text.index(stop)] if stop in text else text for text in whole]
    assert generate(model, prompts, 10, stop_token=stop) == expected


def test_a_seed_decides_what_is_sampled():
    model = make()
    first, again, other = (generate(model, [[1, 2]], 16, temperature=1.0, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def shares(model, prompt, draws, **options):
    counts = torch.zeros(model.config.vocabulary)
    for (token,) in generate(model, [prompt] * draws, 1, seed=1, **options):
        counts[token] += 1
    return counts / draws


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.6}, {"top_k": 5, "top_p": 0.6}, {"temperature": 0.5}]
)
def test_sampling_follows_the_truncated_law(options):
    model, prompt, draws = make(init_std=0.2), [7, 8], 4000
    options = {"temperature": 1.0, **options}
    probabilities = (model(torch.tensor([prompt]))[0, -1].detach() / options["temperature"]).softmax(0).tolist()
    if "top_k" in options:
        kept = sorted(probabilities)[-options["top_k"] :]
        probabilities = [p if p in kept else 0 for p in probabilities]
        probabilities = [p / sum(probabilities) for p in probabilities]
    if "top_p" in options:
        total, kept = 0, []
        for p in sorted(probabilities, reverse=True):
            if total < options["top_p"]:
                kept.append(p)
            total += p
        probabilities = [p / sum(kept) if p in kept else 0 for p in probabilities]
    expected = torch.tensor(probabilities, dtype=torch.float32)
    got = shares(model, prompt, draws, **options)
    assert ((got > 0) <= (expected > 0)).all()
    assert ((got - expected).abs() <= 4.5 * (expected * (1 - expected) / draws).sqrt() + 1e-9).all()


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        ([[]], {}, "a prompt needs at least one token; prompt 0 has none"),
        ([[1], [99]], {}, r"token ids must be in \[0, 40\); got 99"),
        ([[1] * 20], {"new_tokens": 5}, "the model's context is 24 tokens; prompt and continuation need 25"),
        ([[1]], {"new_tokens": -1}, "new_tokens must be >= 0; got -1"),
        ([[1]], {"temperature": -1.0}, "temperature must be finite and >= 0; got -1.0"),
        ([[1]], {"temperature": 1.0, "top_k": 0}, "top_k must be >= 1; got 0"),
        ([[1]], {"temperature": 1.0, "top_p": 1.5}, r"top_p must be in \(0, 1\]; got 1.5"),
    ],
)
def test_wrong_input_is_refused(prompts, options, said):
    with pytest.raises(ResidlabError, match=said):
        generate(make(), prompts, **{"new_tokens": 2, **options})


def test_a_temperature_next_to_zero_picks_the_likeliest():
    model = make()
    greedy = generate(model, [[1, 2, 3]], 5)
    assert generate(model, [[1, 2, 3]], 5, temperature=1e-310, seed=0) == greedy
