"""One of two processes that train together; writes the gradients it ends up with."""

import os
import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss


def make(kind: str) -> Transformer:
    """Return the model of the test."""
    config = ModelConfig(depth=2, width=16, heads=2, vocabulary=30, context=12, init_std=0.3, norm=norm_options(kind))
    return Transformer(config, seed=0).double()


def data() -> torch.Tensor:
    """Return the whole batch, (4, 12)."""
    return torch.randint(0, 30, (4, 12), generator=torch.Generator().manual_seed(0))


def main(rank: int, port: str, kind: str, file: str) -> None:
    """Train on half of the batch."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DistributedDataParallel(make(kind))
    tokens = data()[2 * rank : 2 * rank + 2]
    next_token_loss(model(tokens), tokens).backward()
    save_file({name: p.grad for name, p in model.module.named_parameters()}, f"{file}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
