"""A checkpoint of a family without a decoder of ours, with nothing but a plain tokenizer, through a whole Generate."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

from contracts.errors import FailedPrecondition
from contracts.sampling import SamplingPolicy
from orchestrator.request import GenerateRequest
from services.cli.doctor import examine
from services.local import local_orchestrator
from services.settings import AllSettings, load
from services.text import CheckpointTokenizer
from tests.helpers.fakes import collect
from tests.helpers.tiny_models import tiny_family

TEXT = "The quick brown fox jumps over the lazy dog, and the lazy dog sleeps on. "
GREEDY = GenerateRequest(text=TEXT * 2, policy=SamplingPolicy(temperature=0.0, max_tokens=40))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 with byte-level BPE: no chat template, no tokenizer_config.json, no EOS, no pad."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    absent = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    vocabulary = tokenizer.get_vocab_size()
    directory = tiny_family(tmp_path_factory.mktemp("gpt2"), "gpt2", seed=3, vocab_size=vocabulary, **absent)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").unlink()
    return directory


@pytest.fixture
def settings(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AllSettings]:
    def loaded(**options: object) -> AllSettings:
        given = {"model": checkpoint, "cache_dir": tmp_path, "dtype": "float32", "kv_tokens": 1024, "threads": 1}
        for name, value in {**given, "inline_sources": "", **options}.items():
            monkeypatch.setenv(f"DRAFTPROOF_{name.upper()}", str(value))
        return load(AllSettings)

    return loaded


async def test_greedy_text_is_transformers_own_with_lookup_and_without(
    checkpoint: Path, settings: Callable[..., AllSettings]
) -> None:
    prompt = CheckpointTokenizer(checkpoint).encode(str(GREEDY.text))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    ids = torch.tensor([prompt])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)[0]
    async with local_orchestrator(settings()) as orchestrator:
        for request in (replace(GREEDY, speculation=False), replace(GREEDY, sources=("prompt_lookup",))):
            chunks, final = await collect(orchestrator.generate(request))
            assert [token for chunk in chunks for token in chunk.token_ids] == expected[len(prompt) :].tolist()
            assert json.loads(final.certificate.manifest)["target"]["backend"] == "transformers"
        assert final.usage.proposed > 0
        chat = replace(GREEDY, text=None, messages=({"role": "user", "content": "The quick"},))
        with pytest.raises(FailedPrecondition, match="no chat template"):
            await collect(orchestrator.generate(chat))


def test_the_doctor_says_that_the_model_runs_through_the_slower_fallback(settings: Callable[..., AllSettings]) -> None:
    settings()
    (found,) = (finding for finding in examine() if "Transformers' own modules" in finding.what)
    assert found.level == "note"
    assert "family 'gpt2'" in found.what
    settings(backend="transformers")
    (found,) = (finding for finding in examine() if "Transformers' own modules" in finding.what)
    assert "unset DRAFTPROOF_BACKEND" in found.mend
