"""What an inspected model reads: a text that comes with the package, or one's own, cut into windows of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENS = 2048
"""How many are read by default."""
WINDOW = 512
"""The longest window: what attention costs grows with its square."""
LEAST = 16


@dataclass(frozen=True, eq=False)
class Reading:
    """Windows of tokens.

    Attributes
    ----------
    name : str
        Of the text.
    ids : Tensor, int64, shape (windows, tokens)
        Each window begins with the tokenizer's first special token, if it sets one in front of a text.
    begin : str
        That token; empty if there is none.
    """

    name: str
    ids: Tensor
    begin: str

    @property
    def tokens(self) -> int:
        """How many are read in all."""
        return self.ids.numel()


def packaged_text() -> str:
    """Return ten short essays on everyday things, written for this purpose: 12 kB of plain English, MIT licence."""
    return (files("residlab.inspection") / "text.txt").read_text(encoding="utf-8")


def own_text(file: Path) -> str:
    """Return the text in a file.

    Raises
    ------
    ResidlabError
        If it cannot be read as UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResidlabError(f"--text {file} cannot be read: {error}") from error


def check_tokens(tokens: int) -> None:
    """Refuse too few tokens.

    Raises
    ------
    ResidlabError
        If there are fewer than 16.
    """
    if tokens < LEAST:
        raise ResidlabError(f"--tokens must be >= {LEAST}; got {tokens}")


def window_shape(tokens: int, context: int | None) -> tuple[int, int]:
    """Return how many windows of how many tokens ``tokens`` makes: as few as `WINDOW` and the context allow.

    Raises
    ------
    ResidlabError
        If there are fewer than 16 tokens, or the context is shorter.
    """
    check_tokens(tokens)
    if context is not None and context < LEAST:
        raise ResidlabError(f"the model's context is {context} tokens: fewer than {LEAST} cannot be measured")
    length = min(tokens, WINDOW, context or WINDOW)
    return tokens // length, length


def read(text: str, name: str, tokenizer: PreTrainedTokenizerBase, shape: tuple[int, int], vocabulary: int) -> Reading:
    """Return the first windows of a text; fewer, or one shorter one, where the text ends before.

    Raises
    ------
    ResidlabError
        If the text has fewer than 16 tokens, or the tokenizer gives ids that the model does not have.
    """
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a")["input_ids"])
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
    first = whole[: min(starts, default=0)][:1]
    windows, length = shape
    if len(plain) + len(first) < LEAST:
        raise ResidlabError(f"{name} has {len(plain)} tokens: at least {LEAST} are needed")
    length = min(length, len(plain) + len(first))
    step = length - len(first)
    rows = [first + plain[i * step : (i + 1) * step] for i in range(min(windows, len(plain) // step))]
    ids = torch.tensor(rows)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise ResidlabError(
            f"the tokenizer gives id {wrong}, but the model's vocabulary is {vocabulary:,}: not its own?"
        )
    return Reading(name, ids, str(tokenizer.convert_ids_to_tokens(first)[0]) if first else "")
