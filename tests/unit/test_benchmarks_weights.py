"""What the benchmark of weights says of laws."""

import math

import torch

from benchmarks.weights import law_figures


def test_laws_are_compared_position_by_position_and_the_last_predicts_nothing() -> None:
    exact = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]))
    other = torch.log(torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6], [0.8, 0.1, 0.1]]))
    found = law_figures({"float32": [exact], "int8": [other]}, [[2, 0, 2]])
    assert found["positions"] == 2
    assert found["same_argmax_float32"] == 1.0
    assert found["same_argmax_int8"] == 0.5
    divergence = (0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.5)) / 2
    assert math.isclose(float(found["divergence_nats_int8"]), divergence, abs_tol=1e-7)
    assert math.isclose(float(found["perplexity_int8"]), (1 / (0.25 * 0.6)) ** 0.5, rel_tol=1e-6)
    assert found["same_bits_float32"] is True
    assert found["same_bits_int8"] is False
