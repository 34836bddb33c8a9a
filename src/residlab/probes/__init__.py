"""What we look at inside any ``nn.Module``, without changing what it computes."""
