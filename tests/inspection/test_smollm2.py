"""What is known of SmolLM2 (chapters 1, 11 and 12) is found by `residlab inspect`."""

from __future__ import annotations

import pytest

from residlab.data.fetch import status
from residlab.inspection.inspect import inspect
from residlab.models.hf import converted_smollm2


@pytest.mark.smollm2
def test_smollm2():
    if status("smollm2").state != "present":
        pytest.skip("not run: residlab fetch smollm2")
    # A short reading, in the memory that the command may take.
    seen = inspect(converted_smollm2(), tokens=256, max_memory="3GB")
    assert (seen.depth, seen.model["parameters"], seen.model["width"]) == (30, 134_515_008, 576)
    assert 2.5 < seen.nats < 4.5
    # The massive activation: dimension 507 of token 0, written by block 12, taken away by the last two.
    top = seen.massive[0]
    assert (top.channel, top.begins, top.ends, top.first) == (507, 12, 28, 1.0)
    assert top.value == pytest.approx(22_552, rel=0.2)
    assert seen.sinks is not None
    assert (seen.sinks.heads, 50 < seen.sinks.count < 130) == (270, True)
    early = [value for block in range(1, 13) for value in seen.sinks.mass[block]]
    assert max(early) < 0.5  # no sink before the activation is there
    assert seen.stream.excess_kurtosis["all"][20] > 100 * seen.stream.excess_kurtosis["rest"][20]
    worst = min(seen.inputs, key=lambda each: each.sqnr["rest"]["int8"])
    assert (worst.block, worst.kind) == (12, "mlp.down_proj")
    assert worst.sqnr["rest"]["int8"] < 1 < 10 < worst.sqnr["apart"]["int8"]
    assert len(seen.inputs) == 120
    bf16, fp16 = (seen.growth.results[f"{name} products"] for name in ("bf16", "fp16"))
    # Eight bits of significand and eleven.
    assert 4 < bf16["rest"][-1] / fp16["rest"][-1] < 16
    assert bf16["rest"][-1] > 3 * bf16["rest"][1]
    torch_16 = seen.growth.results["bfloat16 by torch"]
    assert torch_16["rest"][-1] == pytest.approx(bf16["rest"][-1], rel=0.25)
