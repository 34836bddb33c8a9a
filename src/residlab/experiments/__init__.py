"""Experiments: a frozen configuration in, a record with its provenance out."""
