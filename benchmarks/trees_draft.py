"""A draft model that is always at hand: the target with some of its layers left out, untrained.

Nobody would serve it (it costs most of a target pass), but it drafts from the target's own tokenizer with middling
acceptance, which is what comparing trees needs when there is no trained draft.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from models.checkpoint import weight_files


def skipping_draft(checkpoint: Path, out: Path, skipped: Collection[int]) -> Path:
    """Writes `checkpoint` without the layers `skipped` to the folder `out`, once; returns it."""
    if (out / "config.json").is_file():
        return out
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    kept = [layer for layer in range(config["num_hidden_layers"]) if layer not in skipped]
    number = {old: new for new, old in enumerate(kept)}
    tensors = {}
    for path in weight_files(checkpoint):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                before, found, after = name.partition("model.layers.")
                if not found:
                    tensors[name] = file.get_tensor(name)
                    continue
                layer, _, rest = after.partition(".")
                if int(layer) in number:
                    tensors[f"{before}model.layers.{number[int(layer)]}.{rest}"] = file.get_tensor(name)
    out.mkdir(parents=True, exist_ok=True)
    for path in checkpoint.iterdir():
        if path.suffix in (".json", ".jinja") and not path.name.startswith(".") and "index" not in path.name:
            shutil.copyfile(path, out / path.name)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    # Last, since its presence says that the folder is whole.
    (out / "config.json").write_text(json.dumps({**config, "num_hidden_layers": len(kept)}), encoding="utf-8")
    return out
