"""Where EAGLE starts: the least-squares map from fused rows to the next feature, and the target's last layer, turned down.

The closed form costs one pass over the data and gives at once what thousands of gradient steps would have to find: with
SmolLM2-135M a quarter of all second tokens. Targets are features before the final norm's gain, divided by their root mean
square, which is what the head's own norm undoes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from models.weights import DecoderWeights
from proposer.heads.eagle import FINAL, EagleNetwork
from proposer.heads.layers import rms
from proposer.training.corpus import Example

_RIDGE = 10.0
# How loud attention and MLP of the copied layer start, as root mean square beside the least-squares map's 1.
_LAYER_SHARE = 0.1


@torch.no_grad()
def warm_start(network: EagleNetwork, target: DecoderWeights, examples: Sequence[Example]) -> None:
    """Fits `first`, `again` and `token` on the examples' labels and copies the target's last layer and final norm."""
    gain = target.final_norm.float()
    again, token = _fit(network, examples, (FINAL,), gain)
    network.again.copy_(again)
    network.token.copy_(token)
    if network.first is not None:
        first, token = _fit(network, examples, network.shape.taps, gain)
        network.first.copy_(first)
        network.token.copy_(token)
    network.norm.copy_(gain)
    last, layer = target.layers[-1], network.layer
    layer.attention_norm.copy_(last.attention_norm.float())
    layer.mlp_norm.copy_(last.mlp_norm.float())
    layer.qkv.copy_(last.qkv.float())
    layer.out.copy_(last.out.float())
    # The target's MLP, or as many of its inner units as the head has: those with the largest output rows.
    width = network.shape.config.intermediate_size
    units = last.down.float().norm(dim=0).topk(width).indices.sort().values
    gate, up = last.gate_up.float().chunk(2)
    layer.gate_up.copy_(torch.cat([gate[units], up[units]]))
    layer.down.copy_(last.down.float()[:, units])
    _turn_down(network, examples[0])


def _turn_down(network: EagleNetwork, example: Example) -> None:
    """Scale what the layer adds to rows of one example; the target's own stream is many times louder than the map's."""
    layer, rows = network.layer, len(example.tokens) - 2
    half = network.real({tap: example.hidden[tap][:rows].float() for tap in network.shape.taps})
    x = network.fused(half, example.tokens[1 : rows + 1])
    positions = torch.arange(rows)
    mixed = layer.attend(layer.queries(x, positions), layer.keys(x, positions), 1)
    added = functional.linear(mixed, layer.out)
    layer.out.mul_(_LAYER_SHARE / added.square().mean().sqrt())
    without = x + functional.linear(mixed, layer.out)
    layer.down.mul_(_LAYER_SHARE / (layer.finish(x, mixed) - without).square().mean().sqrt())


def _fit(
    network: EagleNetwork, examples: Sequence[Example], taps: Sequence[str], gain: Tensor
) -> tuple[Tensor, Tensor]:
    """(matrix of the taps' rows [H, taps * H], matrix of the embeddings [H, H])."""
    hidden, eps = len(gain), network.shape.config.rms_eps
    size = (len(taps) + 1) * hidden
    gram, moment = torch.zeros(size, size), torch.zeros(size, hidden)
    for one in examples:
        start, stop = max(one.label_start - 2, 0), len(one.tokens) - 2
        rows = [rms(one.hidden[tap][start:stop].float(), eps) for tap in taps]
        x = torch.cat([*rows, rms(network.embedding[one.tokens[start + 1 : stop + 1]].float(), eps)], dim=1)
        y = one.hidden[FINAL][start + 1 : stop + 1].float() / gain
        gram += x.T @ x
        moment += x.T @ y
    solved = torch.linalg.solve(gram + _RIDGE * torch.eye(size), moment).T
    return solved[:, :-hidden].contiguous(), solved[:, -hidden:].contiguous()
