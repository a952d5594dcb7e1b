"""A tiny random checkpoint with a byte tokenizer and a chat template: everything a service needs, nothing to fetch."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from tests.helpers.tiny_models import tiny_checkpoint

BOS, EOS, VOCAB = 0, 1, 258

_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_service_checkpoint(directory: Path, *, layers: int = 2) -> Path:
    """A checkpoint whose tokens are bytes (id = rank in ByteLevel's alphabet + 2), below `directory`."""
    checkpoint = tiny_checkpoint(directory, vocab_size=VOCAB, layers=layers, name="tiny", logit_scale=2.0)
    vocabulary = {"<s>": BOS, "</s>": EOS}
    vocabulary |= {symbol: rank + 2 for rank, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": _TEMPLATE}))
    return checkpoint
