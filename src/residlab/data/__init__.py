"""Texts and weights: fetched once, checked by hash, read offline afterwards."""
