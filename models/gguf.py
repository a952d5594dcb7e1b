"""One-time conversion of a GGUF file to an fp32 safetensors checkpoint.

Dequantisation and the renaming of tensors are Transformers' (`load_gguf_checkpoint`); only the directory layout is
ours. Its public `from_pretrained(gguf_file=...)` does the same but insists on the accelerate package, which nothing
else here needs.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from contracts.errors import InvalidArgument

NOTE_NAME = "ORIGIN.md"


def convert_gguf(gguf_path: Path, out_dir: Path, *, origin: str) -> None:
    """Write `model.safetensors` (fp32), config, tokenizer and an origin note into the empty directory `out_dir`.

    The tokenizer's chat template travels along when the file holds one. Values are exactly the dequantised ones: the
    result is as good as the quantised file, not as the model it was made from, and the note says so.

    Raises InvalidArgument when Transformers cannot read the file or a weight of the model is missing from it.
    """
    folder, name = str(gguf_path.parent), gguf_path.name
    with warnings.catch_warnings():
        # gguf hands out read-only memory maps; they are copied before anything writes to them.
        warnings.simplefilter("ignore")
        config = AutoConfig.from_pretrained(folder, gguf_file=name)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config)
        tensors = load_gguf_checkpoint(str(gguf_path), return_tensors=True, model_to_load=skeleton)["tensors"]
    wanted = set(skeleton.state_dict())
    if config.tie_word_embeddings:
        wanted.discard("lm_head.weight")
        tensors.pop("lm_head.weight", None)
    missing = sorted(wanted - set(tensors))
    if missing:
        raise InvalidArgument("model", f"{name} lacks the tensors {', '.join(missing[:5])} ({len(missing)} in all)")
    config.architectures, config.dtype = [type(skeleton).__name__], "float32"
    config.save_pretrained(out_dir)
    GenerationConfig.from_model_config(config).save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    save_file(
        {key: tensors[key].to(torch.float32).contiguous() for key in sorted(wanted)},
        out_dir / "model.safetensors",
        metadata={"format": "pt"},
    )
    (out_dir / NOTE_NAME).write_text(
        f"# Where this checkpoint comes from\n\n{origin}\n\nConverted from `{name}` to fp32 safetensors. The weights "
        "are the dequantised values of\nthat file: figures measured with this checkpoint are figures of the quantised "
        f"model.\n\nTensor kinds in the file: {json.dumps(_tensor_kinds(gguf_path))}\n",
        encoding="utf-8",
    )


def _tensor_kinds(gguf_path: Path) -> dict[str, int]:
    from gguf import GGUFReader

    kinds: dict[str, int] = {}
    for tensor in GGUFReader(str(gguf_path)).tensors:
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
    return kinds
