"""Module 16's feature uncertainty: the next feature depends on the token taken, so a head that does not see it must err."""

from __future__ import annotations

import torch

from proposer.heads.eagle import Segment, unroll
from tests.unit.proposer.heads.tiny_heads import HIDDEN, hidden_rows, network, prefix_of


def branches() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One feature, two tokens, and the two features that follow."""
    generator = torch.Generator().manual_seed(16)
    feature = torch.randn(HIDDEN, generator=generator)
    return feature, torch.tensor([4, 30]), torch.randn(2, HIDDEN, generator=generator)


def test_a_token_blind_predictor_errs_by_half_the_distance_on_some_branch() -> None:
    """Its one output cannot be nearer than half the branches' distance to both: no training helps."""
    _, _, targets = branches()
    half = float((targets[0] - targets[1]).norm()) / 2
    generator = torch.Generator().manual_seed(1)
    guesses = [targets.mean(0), *(targets.mean(0) + torch.randn(HIDDEN, generator=generator) for _ in range(50))]
    worst = [float((targets - guess).norm(dim=1).max()) for guess in guesses]
    assert min(worst) >= half - 1e-5
    assert worst[0] == min(worst) > 1.0


def test_the_heads_fused_row_is_exact_on_both_branches() -> None:
    """Feature and token together: the least-squares fit of the token's matrix hits both features exactly."""
    feature, tokens, targets = branches()
    head = network("eagle")
    with torch.no_grad():
        half = head.drafted(feature[None])
        embedded = head.fused(torch.zeros(2, HIDDEN), tokens)
        inputs = torch.linalg.lstsq(head.token, embedded.T).solution.T
        head.token.copy_((torch.linalg.pinv(inputs) @ (targets - half)).T)
        predicted = head.fused(half.expand(2, -1), tokens)
    assert torch.allclose(predicted, targets, atol=1e-3)


def test_eagle_tells_the_branches_apart_and_medusa_cannot() -> None:
    tokens = prefix_of(8)
    other = tokens.copy()
    other[-2] = (other[-2] + 1) % 50
    rows = hidden_rows(tokens[:-1])
    with torch.no_grad():
        eagle, medusa = network("eagle"), network("medusa")
        halves = eagle.real(rows)
        one = unroll(eagle, Segment(halves, torch.from_numpy(tokens), 0), 1)[0][-1]
        two = unroll(eagle, Segment(halves, torch.from_numpy(other), 0), 1)[0][-1]
        assert not torch.allclose(one, two, atol=1e-2)
        # Medusa's head 0 reads the row alone: whatever token is taken next, its answer stays.
        row = rows["final_norm"][-2:-1]
        assert torch.equal(medusa.logits(row, 0), medusa.logits(row.clone(), 0))
