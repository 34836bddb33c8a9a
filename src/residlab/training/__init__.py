"""Training: text in, a model and its record out."""
