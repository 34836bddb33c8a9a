"""``residlab inspect``: what a causal language model of Hugging Face's does to its stream, on one page.

A folder is read in three steps, and each refuses what it cannot do before the next one costs anything: `folder` looks
at the files (no weight is read), `memory` counts what the model would need, `measure` runs it; `page` writes the
report.
"""
