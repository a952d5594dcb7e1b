"""From a checkpoint directory of any family to a checked backend: safetensors only, and no code that comes with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from contracts.errors import DataLoss, DraftproofError, InvalidArgument
from models.backend import BackendInfo
from models.build import build_of
from models.checkpoint import digest, weight_files
from models.fallback.attention import ATTENTION
from models.fallback.backend import TransformersBackend
from models.fallback.check import ROWS, check_tree
from models.fallback.model import CausalModel
from models.fallback.refusals import MASK_ONLY, context_length, refuse

_log = logging.getLogger(__name__)

# Old exports carry these buffers; they follow from the configuration.
_DERIVED_SUFFIXES = (
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)


def load_fallback(
    directory: Path, *, dtype: torch.dtype, device: str, kv_budget_tokens: int, poison: bool
) -> TransformersBackend:
    """dtype: float32 or bfloat16; the model computes in it throughout.

    Raises InvalidArgument for a family that cannot branch or fails the check at load, for weights that are pickled,
    quantised, missing or left over; DataLoss for unreadable files.
    """
    weight_files(directory)
    with _quiet():
        config = _config(directory)
        refuse(config)
        model = _model(directory, config, dtype).to(device)
    family = str(config.model_type)
    try:
        causal = CausalModel(model, family, device)
        info = BackendInfo(
            family=family,
            vocab_size=causal.vocab_size,
            context_length=context_length(config),
            hidden_size=causal.hidden_size,
            num_layers=causal.num_layers,
            dtype=str(dtype).removeprefix("torch."),
            backend="transformers",
            checkpoint_digest=digest(directory),
            row_invariant_up_to=0,
            build=build_of("transformers"),
        )
        check_tree(TransformersBackend(info, causal, kv_budget_tokens=ROWS), causal)
    except Exception as error:
        if isinstance(error, DraftproofError) and repr(family) in error.message:
            raise
        # Whatever a model's code raises when it is called as it was not written to be: better at load than in a round.
        raise InvalidArgument("config.model_type", f"{family!r} does not run here: {_told(error)}") from error
    _log.warning(
        "%s runs through Transformers' own modules (backend transformers): slower than a decoder of ours", family
    )
    return TransformersBackend(info, causal, kv_budget_tokens=kv_budget_tokens, poison=poison)


def _told(error: Exception) -> str:
    return error.message if isinstance(error, DraftproofError) else f"{type(error).__name__}: {error}"


def _config(directory: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        known = f"Transformers {transformers.__version__}"
        raise InvalidArgument(
            "config.model_type", f"{known} cannot read {directory / 'config.json'} without code of its own: {error}"
        ) from error


def _model(directory: Path, config: Any, dtype: torch.dtype) -> Any:
    masked = config.model_type in MASK_ONLY
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            attn_implementation="eager" if masked else ATTENTION,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            # Reported below, by name, instead of raised from within.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (SafetensorError, OSError) as error:
        raise DataLoss("model", f"{directory} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, ImportError, AttributeError, RuntimeError) as error:
        raise InvalidArgument("config.model_type", f"{config.model_type!r} is not loaded: {error}") from error
    model, report = loaded
    _refuse_report(report)
    if masked:
        # Its attention was chosen when it was built; from now on its masks are ours.
        model.config._attn_implementation = ATTENTION
    return model.eval().requires_grad_(False)


def _refuse_report(report: Mapping[str, Any]) -> None:
    """Transformers fills what is missing with random numbers and drops what is left over; both are refused."""
    left = [name for name in report["unexpected_keys"] if not name.endswith(_DERIVED_SUFFIXES)]
    for names, what in (
        (report["missing_keys"], "the checkpoint lacks tensors"),
        (left, "the checkpoint holds tensors that no layer of the configuration uses"),
        ([str(item) for item in report["mismatched_keys"]], "tensors have another shape than the configuration says"),
    ):
        if names:
            raise InvalidArgument("model", f"{what}: {', '.join(sorted(names)[:5])} ({len(names)} in all)")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and load reports, which would go among the logs of a service."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
