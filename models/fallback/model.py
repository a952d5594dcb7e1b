"""A Transformers causal model taken apart as far as the contract needs it: its head, its layers, its cache's shapes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from contracts.errors import InvalidArgument
from models.fallback.storage import LayerShape
from models.passes import FINAL_NORM_TAP

# A dummy layer keeps nothing: it reads what an earlier one was given in the same call.
_PLAIN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


@dataclass
class ModelRows:
    """Of one call. logits float32 [W, vocab_size]; final [N, hidden_size], what the head reads; layers: the raw output of
    each layer asked for, [N, hidden_size].
    """

    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    final: Tensor = field(default_factory=lambda: torch.empty(0))
    layers: dict[int, Tensor] = field(default_factory=dict)


class CausalModel:
    """Raises InvalidArgument naming `config.model_type` where the model lacks what a tree pass needs."""

    def __init__(self, model: Any, family: str, device: str) -> None:
        self._model = model
        self._family = family
        self.device = device
        self.dtype: torch.dtype = model.dtype
        config = model.config.get_text_config()
        self.hidden_size = int(config.hidden_size)
        self.num_layers = int(config.num_hidden_layers)
        for part in model.modules():
            if hasattr(part, "warn_if_padding_and_no_attention_mask"):
                # It looks at the tokens of every call, and a slot has no padding.
                part.warn_if_padding_and_no_attention_mask = _nothing
        parameters = inspect.signature(model.forward).parameters
        if "position_ids" not in parameters:
            raise self._refusal("its forward takes no position_ids, so the siblings of a tree cannot share a position")
        # Renamed by Transformers, with a warning for the old name.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.takes_inputs = "inputs_embeds" in parameters and _width(model.get_input_embeddings()) == self.hidden_size
        head = model.get_output_embeddings()
        if head is None:
            raise self._refusal("it has no output head that could be told which rows are wanted")
        self._layers = _layer_list(model, self.num_layers)
        self._wanted: Tensor | None = None
        self._tapped: Collection[int] = ()
        self._rows = ModelRows()
        head.register_forward_pre_hook(self._before_head)
        for index, layer in enumerate(self._layers or ()):
            layer.register_forward_hook(self._after_layer(index))
        self.layer_shapes, self.vocab_size = self._probe()

    def __call__(
        self, rows: Tensor, positions: Tensor, cache: Cache, wanted: Tensor, layers: Collection[int] = ()
    ) -> ModelRows:
        """One pass over `cache`, within `attention.running`.

        rows: int64 [N], token ids, or [N, hidden_size] in place of their embeddings. positions int64 [N]; wanted int64 [W],
        rows whose logits are wanted; layers: those whose raw outputs are.
        """
        given = {"input_ids": rows[None]} if rows.dim() == 1 else {"inputs_embeds": rows[None]}
        with self._capturing(wanted, layers) as captured:
            output = self._model(
                **given, position_ids=positions[None], use_cache=True, return_dict=True, **{self._cache_name: cache}
            )
        captured.logits = output.logits[0].float()
        return captured

    def plain(self, tokens: Tensor) -> Tensor:
        """Transformers' own forward without a cache: int64 [B, n] to float32 [B, n, vocab_size]."""
        output = self._model(input_ids=tokens, use_cache=False, return_dict=True)
        return output.logits.float()  # type: ignore[no-any-return]

    def check_taps(self, taps: Sequence[str]) -> None:
        """Raises InvalidArgument for taps on layers that were not found."""
        if self._layers is None and any(tap != FINAL_NORM_TAP for tap in taps):
            raise InvalidArgument("taps", f"the layers of {self._family!r} are not one list; known: {FINAL_NORM_TAP}")

    @contextmanager
    def _capturing(self, wanted: Tensor, layers: Collection[int]) -> Iterator[ModelRows]:
        self._wanted, self._tapped, self._rows = wanted, layers, ModelRows()
        try:
            yield self._rows
        finally:
            self._wanted, self._tapped = None, ()

    def _before_head(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._wanted is None:
            return None
        self._rows.final = args[0][0]
        return (args[0][:, self._wanted], *args[1:])

    def _after_layer(self, index: int) -> Any:
        def capture(_: nn.Module, __: Any, output: Any) -> None:
            if index in self._tapped:
                self._rows.layers[index] = (output[0] if isinstance(output, tuple) else output)[0]

        return capture

    @torch.inference_mode()
    def _probe(self) -> tuple[list[LayerShape | None], int]:
        """The shapes that one token leaves in Transformers' own cache, and the width of its logits."""
        cache = DynamicCache(config=self._model.config)
        self._check_cache(cache)
        tokens = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        with self._capturing(tokens[0], range(self.num_layers)) as seen:
            logits = self._model(input_ids=tokens, use_cache=True, return_dict=True, **{self._cache_name: cache}).logits
        self._check_cache(cache)
        shapes = [_shape(layer) for layer in cache.layers]
        if not any(shapes):
            raise self._refusal("it keeps no keys and values in Transformers' cache")
        if seen.final.shape != (1, self.hidden_size):
            raise self._refusal(f"its head reads {tuple(seen.final.shape)} for one row, not (1, {self.hidden_size})")
        if len(seen.layers) != self.num_layers or any(x.shape != (1, self.hidden_size) for x in seen.layers.values()):
            self._layers = None
        return shapes, int(logits.shape[-1])

    def _check_cache(self, cache: DynamicCache) -> None:
        """Raises InvalidArgument for layers that keep what cannot branch: recurrent states, convolutions, indexes."""
        for layer in cache.layers:
            if type(layer) not in _PLAIN_LAYERS:
                raise self._refusal(f"its cache holds {type(layer).__name__}, and only keys and values can branch")

    def _refusal(self, why: str) -> InvalidArgument:
        return InvalidArgument("config.model_type", f"{self._family!r} does not run here: {why}")


def _shape(layer: Any) -> LayerShape | None:
    """None for a layer that the call wrote nothing into."""
    if layer.keys is None:
        return None
    return layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]


def _nothing(*_: Any) -> None:
    pass


def _width(embeddings: Any) -> int:
    return int(getattr(embeddings, "embedding_dim", 0))


def _layer_list(model: nn.Module, count: int) -> list[nn.Module] | None:
    """The decoder's layers: the one list of `count` modules that is in no other; None where that is not one."""
    found = {name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    outer = [
        part
        for name, part in found.items()
        if len(part) == count and not any(name.startswith(f"{other}.") for other in found)
    ]
    return list(outer[0]) if len(outer) == 1 else None
