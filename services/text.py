"""The Tokenizer port over a checkpoint's tokenizer.json and chat template, without torch or transformers.

Importing transformers takes the orchestrator seconds and a torch it does not need; the Rust tokenizer behind it and the
template's Jinja are all it uses here. The template runs in Jinja's sandbox, as transformers runs it.

What a message says is text: where it spells a special token (`<|im_end|>`), its characters are encoded, not the token, so
that no message can end itself and begin another. vLLM and Transformers render contents as they stand and so take the token
(transformers#29279 is open, vllm#31735 was closed); callers who want control tokens send `text` or token ids.
"""

from __future__ import annotations

import json
import re
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
        self._spelled = self._spell_special_tokens()
        self._any_special = re.compile(
            "|".join(map(re.escape, sorted(self._spelled, key=len, reverse=True))) or r"(?!)"
        )

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
        """Token ids of the conversation in the chat template, up to where the assistant's answer begins. Special tokens come
        from the template alone.

        Raises FailedPrecondition where the checkpoint has no template, InvalidArgument where the template refuses.
        """
        if self._template is None:
            raise FailedPrecondition("messages", "this checkpoint has no chat template; send text instead")
        marked, spelled = self._mark(messages)
        try:
            text = self._template.render(
                messages=marked,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special,
            )
        except TemplateError as error:
            raise InvalidArgument("messages", f"the chat template refuses: {error}") from error
        if not spelled:
            return self._encode_plain(text)
        ids: list[int] = []
        for piece in re.split(f"([{''.join(spelled)}])", text):
            ids += spelled[piece] if piece in spelled else self._encode_plain(piece)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _spell_special_tokens(self) -> dict[str, list[int]]:
        """The ids of each special token's characters."""
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._tokenizer.encode_special_tokens = True
        spelled = {content: self._encode_plain(content) for content in special if content}
        self._tokenizer.encode_special_tokens = False
        return spelled

    def _mark(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, list[int]]]:
        """The messages with each special token in them replaced by a private character, and the ids that it stands for.

        A template may trim, cut and repeat contents; single characters come through whole.
        """
        marked = [dict(message) for message in messages]
        found = {
            token for message in marked for value in message.values() for token in self._any_special.findall(value)
        }
        if not found:
            return marked, {}
        taken = {character for message in marked for value in message.values() for character in value}
        free = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in taken)
        marks = dict(zip(sorted(found), free, strict=False))
        for message in marked:
            for key, value in message.items():
                message[key] = self._any_special.sub(lambda match: marks[match[0]], value)
        return marked, {mark: self._spelled[token] for token, mark in marks.items()}

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
