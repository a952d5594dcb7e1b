"""The settings that every process has, and those of all that know the target."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_MODEL = "smollm2-135m-instruct"


class ProcessSettings(BaseModel):
    """What every process has."""

    # Built when first used: each process uses one of the classes.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    host: str = Field("127.0.0.1", description="address that services listen on")
    drain_ms: int = Field(0, ge=0, description="how long a stopping service stays up after it said NOT_SERVING")
    grace_ms: int = Field(5_000, ge=0, description="how long running calls may go on after that")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe message logged")
    cache_dir: Path = Field(Path(".cache"), description="converted models, index segments, the embedded Redis")
    link_dir: str = Field(
        "",
        description="directory of Unix sockets that services of one machine share for their per-round calls; empty: `up` "
        "makes one, a service alone has none; -: gRPC only",
    )

    @property
    def links(self) -> Path | None:
        """The link directory, None where there is none."""
        return None if self.link_dir in ("", "-") else Path(self.link_dir)

    def check(self) -> None:
        """What the fields must hold beyond their types. Raises InvalidArgument naming the variable."""


class ModelSettings(ProcessSettings):
    """Which model."""

    model: str = Field(
        DEFAULT_MODEL,
        description=f"the target: {DEFAULT_MODEL}, a Hugging Face id (owner/name) or a local directory of safetensors",
    )
    packed_weights: bool = Field(
        True,
        description="whether a CPU's weights are kept under `cache_dir` as passes read them too, as large as they are in "
        "memory: later starts take them from there",
    )

    @property
    def models_dir(self) -> Path:
        return self.cache_dir / "models"

    @property
    def packed_dir(self) -> Path | None:
        """Where packed weights are kept, None where they are not."""
        return self.cache_dir / "packed" if self.packed_weights else None
