"""Training small models: text, optimizers, the trainer."""
