"""Two processes with half of the batch each have the gradients of one process with all of it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.models.ddp_worker import data, make

from residlab.models.transformer import next_token_loss

WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.mark.parametrize("kind", ["bhyt"])
def test_two_processes_are_one(tmp_path, kind):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    workers = [
        subprocess.Popen([sys.executable, WORKER, str(rank), port, kind, tmp_path / "grads"], stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for worker in workers:
        _, said = worker.communicate(timeout=120)
        assert worker.returncode == 0, said.decode()
    model, tokens = make(kind), data()
    next_token_loss(model(tokens), tokens).backward()
    for rank in (0, 1):
        together = load_file(tmp_path / f"grads-{rank}.safetensors")
        alone = {name: p.grad for name, p in model.named_parameters()}
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-13)
