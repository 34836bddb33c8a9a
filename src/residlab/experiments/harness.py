"""EleutherAI's lm-evaluation-harness on our models.

    python -m pip install lm-eval
    python -m residlab.experiments.harness run --model residlab --model_args run=0123456789abcdef --tasks arc_easy

The harness is in none of our extras: it brings some forty packages, and nothing else here needs it. Nor does it look
for models in other packages; so this module makes the model ``residlab`` known to it, and then is its command line.
From Python, call `register` and pass ``model="residlab"`` to ``lm_eval.simple_evaluate``.

``--model_args``:

========================= ==============================================================================================
``run=HASH``              a finished run in the cache, by the sixteen digits of its record; its tokenizer comes with it
``path=FOLDER``           or a folder of `residlab.models.files.save_model`, and with it
``tokenizer=bytes``       bytes (the default), or a file that `BPETokenizer.to_json` wrote
``cache_dir=FOLDER``      the cache (default: the user's)
``context=N``             inputs of a forward (default: the model's context)
========================= ==============================================================================================

and the harness's own ``--batch_size`` and ``--device``. What is computed is in `residlab.experiments.scoring`.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from residlab.errors import ResidlabError
from residlab.experiments.scoring import NEW_TOKENS, TextScorer
from residlab.experiments.training_run import started, texts_of
from residlab.models.files import checked_device, load_model, load_weights
from residlab.models.transformer import Transformer
from residlab.training.config import TrainConfig
from residlab.training.tokenizers import BPETokenizer, ByteTokenizer, Tokenizer

NAME = "residlab"


def scorer(
    *,
    run: str | None = None,
    path: str | None = None,
    tokenizer: str = "bytes",
    cache_dir: str | None = None,
    context: int | None = None,
    batch_size: int | str | None = None,
    device: str | None = None,
) -> TextScorer:
    """Return the model that ``--model_args`` names.

    Raises
    ------
    ResidlabError
        If neither or both of ``run`` and ``path`` are given, or what they name cannot be read.
    """
    if (run is None) == (path is None):
        raise ResidlabError(f"model_args must name run=HASH or path=FOLDER, one of them; got run={run}, path={path}")
    where = checked_device(device or "cpu")
    if run is not None:
        cache = None if cache_dir is None else Path(cache_dir)
        found = started(str(run), cache=cache)
        config = TrainConfig.from_dict(found.config)
        model, words = Transformer(config.model), texts_of(config, cache=cache).tokenizer
        load_weights(model, found.model)
    else:
        model, words = load_model(str(path)), _tokenizer(tokenizer)
    try:
        batch = int(batch_size or 16)
    except ValueError as error:
        raise ResidlabError(f"batch_size must be a whole number; got {batch_size!r}") from error
    return TextScorer(model.to(where), words, context=None if context is None else int(context), batch=batch)


def _tokenizer(name: str) -> Tokenizer:
    if name == "bytes":
        return ByteTokenizer()
    try:
        return BPETokenizer.from_json(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ResidlabError(f"tokenizer must be bytes or a file; {name} cannot be read: {error.strerror}") from error


def generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the harness's options of a generation as those of `TextScorer.continued`.

    Raises
    ------
    ResidlabError
        If an option would change the text and is not known here.
    """
    options = dict(options)
    until = options.pop("until", None) or []
    most = options.pop("max_gen_toks", options.pop("max_new_tokens", NEW_TOKENS))
    sampled = options.pop("do_sample", None)
    temperature = float(options.pop("temperature", 0.0))
    if options:
        raise ResidlabError(
            f"generation knows until, max_gen_toks, do_sample and temperature; got {', '.join(sorted(options))}"
        )
    stops = [until] if isinstance(until, str) else list(until)
    return {"until": stops, "new_tokens": int(most), "temperature": temperature if sampled is not False else 0.0}


def register() -> type:
    """Make the model ``residlab`` known to the harness, once, and return its class.

    Raises
    ------
    ResidlabError
        If lm-eval is not installed.
    """
    try:
        importlib.import_module("lm_eval.models")  # or the harness would take ours for all there are
        api: Any = importlib.import_module("lm_eval.api.model")
        registry: Any = importlib.import_module("lm_eval.api.registry")
    except ImportError as error:
        raise ResidlabError(f"the harness is missing: python -m pip install lm-eval ({error})") from error
    if NAME in registry.MODEL_REGISTRY:
        known: type = registry.get_model(NAME)
        return known

    class ResidlabLM(api.LM):  # type: ignore[misc]
        """A `TextScorer` as the harness calls it."""

        def __init__(self, max_batch_size: int | None = None, device: str | None = None, **arguments: Any) -> None:
            super().__init__()
            if device == "cuda:0" and not torch.cuda.is_available():  # what its command line says when asked nothing
                device = None
            self.scorer = scorer(device=device, **arguments)

        tokenizer_name = NAME

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            scores = self.scorer.continuations([request.args for request in requests])
            return [(score.log_likelihood, score.greedy) for score in scores]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            return [score.log_likelihood for score in self.scorer.texts([request.args[0] for request in requests])]

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return [
                self.scorer.continued(context, **generation_options(options))
                for context, options in (request.args for request in requests)
            ]

    registry.register_model(NAME)(ResidlabLM)
    return ResidlabLM


def main() -> None:
    """Run the harness's command line with our model known to it."""
    register()
    importlib.import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    try:
        main()
    except ResidlabError as error:
        sys.exit(f"residlab: error: {error}")
