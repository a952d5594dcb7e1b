"""The Tokenizer port over a checkpoint's tokenizer.json and chat template, without torch or transformers.

Importing transformers takes the orchestrator seconds and a torch it does not need; the Rust tokenizer behind it and the
template's Jinja are all it uses here. The template runs in Jinja's sandbox, as transformers runs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RustTokenizer

from contracts.errors import FailedPrecondition, InvalidArgument
from models.checkpoint import tokenizer_digest

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class CheckpointTokenizer:
    """Implements contracts.ports.Tokenizer for the checkpoint in `directory`.

    Raises InvalidArgument where it has no tokenizer.json.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise InvalidArgument("model", f"{directory} holds no tokenizer.json")
        self._tokenizer: Any = RustTokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._digest = tokenizer_digest(directory)
        config = _json(directory / "tokenizer_config.json")
        self._special = {name: _content(config[name]) for name in _SPECIAL if config.get(name)}
        self._template = _template(directory, config)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def vocab_size(self) -> int:
        """Added tokens are counted in."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids with the special tokens that the tokenizer itself adds."""
        return list(self._tokenizer.encode(text).ids)

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text without special tokens, on all cores with the interpreter lock released."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of the conversation in the chat template, up to where the assistant's answer begins.

        Raises FailedPrecondition where the checkpoint has no template, InvalidArgument where the template refuses.
        """
        if self._template is None:
            raise FailedPrecondition("messages", "this checkpoint has no chat template; send text instead")
        try:
            text = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special,
            )
        except TemplateError as error:
            raise InvalidArgument("messages", f"the chat template refuses: {error}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _template(directory: Path, config: Mapping[str, Any]) -> Template | None:
    path = directory / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):
        source = next((item["template"] for item in source if item.get("name") == "default"), None)
    if not source:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
