"""What draft models and heads draft with, as calibrations name it. Imports torch."""

from __future__ import annotations

import os

import torch

from models.build import build_of
from services.settings import ProposerSettings
from verifier.hardware import hardware_profile


def drafting_of(settings: ProposerSettings) -> str:
    """Type of the weights, hardware with its threads, build: what the time of a level follows from beside the drafter. Draft
    models and heads run through both implementations of a CPU."""
    threads = settings.draft_threads or len(os.sched_getaffinity(0))
    built = f"{build_of('cpu-llvm')}, torch {torch.__version__}"
    return f"{settings.draft_dtype}, {hardware_profile('cpu', threads)}, {built}"
