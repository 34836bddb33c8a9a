"""Finite precision: formats, rounding, summation, products, quantization."""
