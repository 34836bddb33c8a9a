"""Transformers, ours and Hugging Face's."""
