"""The cost of norms: counts against what torch and the kernels do, intervals on made-up samples, the recording."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch.utils.flop_counter import FlopCounterMode

from residlab.bench import cost
from residlab.bench.command import BY_NAME, SUITES, run
from residlab.bench.cost_record import CostRecord, Ratio
from residlab.bench.timing import race
from residlab.bench.traffic import Counter, block_traffic, passes
from residlab.errors import ResidlabError
from residlab.kernels import compiled
from residlab.models.config import NORMS
from residlab.models.generation import generate
from residlab.models.transformer import Transformer, next_token_loss
from residlab.theory.cost import BLOCK, SITE

TINY = cost.Settings(
    cells=((16, 1), (32, 2)), depth=2, head_dim=8, vocabulary=32, tokens=8, prompt=3, new_tokens=4, seconds=0.0
)

# --- Counts


@pytest.mark.parametrize("kind", list(NORMS))
def test_eager_passes_are_those_that_the_dispatcher_sees(kind):
    assert passes(kind) == BLOCK[kind].eager


def test_traffic_grows_as_its_passes():
    small, large = (block_traffic("rmsnorm", 32, d).bytes for d in (64, 128))
    per_token = 2 * 4 * 32 * (2 + 2 + 2 + 1)  # of each statistic: written, read and written twice more, read
    gain = 2 * 4 * 64
    assert small == 4 * 14 * 32 * 64 + gain + per_token - 2 * 4 * 32
    assert large - small == 4 * 14 * 32 * 64 + gain


def test_the_counter_sees_what_a_product_moves():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    with Counter() as counter:
        a @ b
    assert (counter.traffic.calls, counter.traffic.bytes) == (1, 4 * (15 + 35 + 21))
    with Counter() as counter:
        a.view(15).t().expand(2, 15)
    assert counter.traffic.calls == 0


@pytest.mark.skipif(not compiled.available(), reason="not run: no C++ compiler")
@pytest.mark.parametrize("kind", list(SITE))
def test_fused_passes_are_the_tensors_that_a_kernel_takes(kind, monkeypatch):
    if kind == "layernorm":
        return  # torch's own
    moved = []

    def launch(norm, *, backward, kappa, eps, **tensors):
        moved.append(sum(t.numel() for t in tensors.values() if t is not None and t.numel() == 16 * 24) / (16 * 24))
        return original(norm, backward=backward, kappa=kappa, eps=eps, **tensors)

    original = compiled.OPERATORS.launch
    monkeypatch.setattr(compiled, "OPERATORS", compiled.OPERATORS._replace(launch=launch))
    arguments = cost.Arguments.draw(16, 24, torch.float32)
    run_once = cost._norm_passes(arguments, TINY)[kind, "fused"]
    run_once()
    assert moved == [SITE[kind].fused]


@pytest.mark.parametrize("workload", ["training", "prefill"])
def test_matrix_operations_are_those_that_torch_counts(workload):
    settings = replace(TINY, cells=((32, 2),))
    model = Transformer(settings.config("rmsnorm", 32))
    data = torch.randint(32, (2, 8))
    with FlopCounterMode(display=False) as counter:
        loss = next_token_loss(model(data), data)
        if workload == "training":
            loss.backward()
    found = counter.get_flop_counts()["Global"]
    attention = sum(n for op, n in found.items() if "attention" in str(op))
    counted = cost.model_counts(settings, workload, 32, 2)["matrix_operations"]
    times = 3 if workload == "training" else 1
    scores = times * settings.depth * 2 * 2 * 8 * 9 * 32  # torch counts the masked half as well, and a recomputation
    assert counted - scores == counter.get_total_flops() - attention


def test_operations_of_decoding_are_those_of_the_new_tokens():
    settings = replace(TINY, cells=((32, 2),))
    model = Transformer(settings.config("rmsnorm", 32))
    prompts = torch.randint(32, (2, 3)).tolist()

    def counted(new):
        with FlopCounterMode(display=False) as counter:
            generate(model, prompts, new)
        return sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))

    # generate's first forward is the prompt; each further one is a new token
    one_token = counted(3) - counted(2)
    counts = cost.model_counts(settings, "decode", 32, 2)
    scores = 4 * 2 * sum(3 + step + 1 for step in range(4)) * settings.depth * 32
    assert counts["matrix_operations"] == 4 * one_token + scores
    assert counts["matrix_bytes"] == 4 * 4 * cost.matrix_parameters(settings.config("rmsnorm", 32))


def test_a_model_has_the_norms_of_its_blocks_and_a_final_one():
    counts = cost.model_counts(TINY, "prefill", 16, 1)["norms"]
    assert counts["rmsnorm"]["operations"] == 8 * 5 * (4 * 16 + 3)
    assert counts["bhyt"] == {
        "operations": 8 * (2 * (6 * 16 + 9) + 4 * 16 + 3),
        "tanhs": 8 * 16 * 4,
        "fused_bytes": 8 * 16 * 4 * (2 * 4 + 2),
    }
    training = cost.model_counts(TINY, "training", 16, 1)["norms"]["rmsnorm"]
    assert training["fused_bytes"] == 8 * 16 * 4 * 5 * 5


# --- Contenders


@pytest.mark.parametrize("kind", list(NORMS))
def test_every_kernel_of_a_norm_computes_the_same(kind):
    data = torch.randint(32, (2, 8))
    outputs = []
    for kernel in cost.kernels_of(kind):
        torch.manual_seed(0)
        model = cost.made(TINY, kind, kernel, 32)
        with torch.no_grad():
            outputs.append(model(data))
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=1e-4, atol=1e-4)


def test_nobody_is_kept_from_a_kernel():
    assert all(cost.kernels_of(kind, "cuda")[1:2] == ("fused",) for kind in NORMS if kind != "layernorm")
    assert [kind for kind in NORMS if "torch" in cost.kernels_of(kind)] == ["rmsnorm", "peri-ln", "lns"]


def test_only_one_contender_measures_its_constant_at_each_step():
    assert TINY.config("bhyt", 16).norm.refresh == "frozen"
    assert TINY.config(cost.REFRESHED, 16).norm.refresh == "forward"


def test_half_precision_runs_too():
    settings = replace(TINY, dtype="bfloat16", cells=((16, 1),))
    model = cost.made(settings, "bhyt", "eager", 16)
    data = torch.randint(32, (1, 8))
    for contender in (cost._training, cost._prefill, cost._decode):
        contender(model, data, settings)()


# --- Reading a record


def made_up(seconds, blocks=3):
    points = [
        {"workload": workload, "width": 8, "batch": batch, "seconds": seconds}
        for workload in cost.WORKLOADS
        for batch in (1, 2)
    ]
    return CostRecord({"points": points, "blocks": blocks}, {})


def test_a_ratio_is_paired_by_round_and_its_interval_students_over_blocks():
    slow = [[1.0, 10.0, 2.0], [1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]  # a machine that is busy at times
    gains = [1.1, 1.2, 1.3]
    fast = [[s / gain for s in block] for block, gain in zip(slow, gains, strict=True)]
    record = made_up({"rmsnorm/eager": slow, "dyt/eager": fast})
    got = record.ratio("dyt", "training")
    logs = [math.log(gain) for gain in gains]
    low, high = stats.t.interval(0.95, 2, loc=sum(logs) / 3, scale=stats.sem(logs))
    assert got == pytest.approx((math.prod(gains) ** (1 / 3), math.exp(low), math.exp(high)))
    assert record.ratio("rmsnorm", "training", over="dyt").middle == pytest.approx(1 / got.middle)
    assert record.cells == [(8, 1), (8, 2)]


def test_the_best_kernel_is_chosen_on_the_other_blocks():
    lucky = {
        "rmsnorm/eager": [[1.0], [1.0], [1.0]],
        "rmsnorm/fused": [[0.1], [1.5], [1.5]],  # lucky once
        "dyt/eager": [[1.0], [1.0], [1.0]],
    }
    record = made_up(lucky)
    assert record.chosen("rmsnorm", "decode", (8, 1), "best", 0) == "rmsnorm/eager"
    assert record.chosen("rmsnorm", "decode", (8, 1), "best", 1) == "rmsnorm/fused"
    assert record.chosen("rmsnorm", "decode", (8, 1), "eager", 1) == "rmsnorm/eager"
    assert record.seconds("rmsnorm", "decode", (8, 1)) == 1.0
    assert record.fused_gain("dyt", "decode") == (1, 1, 1)


@pytest.mark.parametrize(
    ("ratio", "word"),
    [
        (Ratio(1.2, 1.1, 1.3), "holds"),
        (Ratio(0.8, 0.7, 0.9), "does not hold"),
        (Ratio(1.1, 0.9, 1.3), "undecided"),
        (Ratio(1.0, 1.0, 1.0), "undecided"),
    ],
)
def test_a_verdict_needs_the_whole_interval(ratio, word):
    assert ratio.verdict == word


def test_what_is_not_in_a_record_is_said(tmp_path):
    record = made_up({"rmsnorm/eager": [[1.0]] * 3})
    with pytest.raises(ResidlabError, match="no 'dyt' in training"):
        record.ratio("dyt", "training")
    with pytest.raises(ResidlabError, match="no training at width 9, batch 1"):
        record.ratio("rmsnorm", "training", cells=[(9, 1)])
    with pytest.raises(ResidlabError, match="residlab bench cost --json"):
        CostRecord.read(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ResidlabError, match="is no record of residlab bench cost"):
        CostRecord.read(tmp_path / "other.json")


# --- Recording


def test_a_shuffled_race_takes_turns():
    calls = []
    race({name: lambda name=name: calls.append(name) for name in "abcd"}, 5, warmup=0, shuffle=3)
    rounds = [calls[i : i + 4] for i in range(0, 20, 4)]
    assert all(sorted(each) == list("abcd") for each in rounds)
    assert len({tuple(each) for each in rounds}) > 2


@pytest.mark.skipif(not compiled.available(), reason="not run: no C++ compiler")
def test_the_command_records_all_that_a_chapter_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cost, "settings_here", lambda: TINY)
    monkeypatch.setattr(cost, "limits", lambda settings: (1e9, 1e9))
    original = cost.operator_points
    small = {"rows": 8, "width": 8, "repeats": 2}
    monkeypatch.setattr(cost, "operator_points", lambda settings, advance: original(settings, **small, advance=advance))
    file = tmp_path / "cost.json"
    assert run(Namespace(suites=["cost"], threads=1, repeats=2, no_compile=False, json=file)) == 0
    assert "bhyt" in capsys.readouterr().out
    record = CostRecord.read(file)
    assert record.cells == [(16, 1), (32, 2)]
    assert {"machine", "versions", "hardware", "commit", "time"} == record.around.keys()
    for workload in cost.WORKLOADS:
        for kind in NORMS:
            ratio = record.ratio(kind, workload)
            assert 0 < ratio.low <= ratio.middle <= ratio.high
            assert record.kernels(kind, workload, (16, 1)) != []
    assert record.ratio(cost.REFRESHED, "training").middle > 0
    samples = record.point("prefill", (16, 1))["seconds"].values()
    assert {(len(blocks), len(blocks[0])) for blocks in samples} == {(2, TINY.rounds[0])}
    assert {point["kernel"] for point in record.found["operators"]} == {"eager", "fused", "torch"}
    assert json.loads(file.read_text())["cost"]["duration"] > 0


def test_one_block_makes_no_interval():
    with pytest.raises(ResidlabError, match="at least 2 blocks, --repeats 2; got 1"):
        cost.measure(TINY, blocks=1)


def test_what_takes_ten_minutes_runs_by_name_only():
    assert set(BY_NAME) < set(SUITES)
