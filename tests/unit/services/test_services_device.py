"""A GPU that is asked for and is not here stops everything at the start, by name; `doctor` says what it sees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from contracts.errors import FailedPrecondition, InvalidArgument
from models.cuda.device import require_device
from services.cli import doctor_machine
from services.settings import AllSettings, VerifierSettings, load
from services.verifier_service.build import build_worker
from verifier.hardware import hardware_profile

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    facts = SimpleNamespace(name="A GPU", total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)


def found(device: str) -> list[tuple[str, str]]:
    return [(finding.level, finding.what) for finding in doctor_machine.device(AllSettings(device=device))]


def test_a_build_without_cuda_a_missing_device_and_a_wrong_index_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(FailedPrecondition, match="build without CUDA"):
        require_device("cuda")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FailedPrecondition, match="no GPU, or no driver"):
        require_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(FailedPrecondition, match="last of 2 visible is cuda:1"):
        require_device("cuda:2")
    assert require_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InvalidArgument, match="'gpu' is not supported"):
        require_device("gpu")


@NO_GPU
def test_a_missing_gpu_is_refused_before_a_model_is_looked_for() -> None:
    for refused in (
        lambda: hardware_profile("cuda"),
        lambda: build_worker(VerifierSettings(device="cuda", model="no such model")),
    ):
        with pytest.raises(FailedPrecondition) as caught:
            refused()
        assert caught.value.field == "device"


def test_doctor_is_silent_about_cpus() -> None:
    assert found("cpu") == []


def test_settings_refuse_what_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_DEVICE", "tpu")
    with pytest.raises(InvalidArgument) as caught:
        load(VerifierSettings)
    assert caught.value.field == "DRAFTPROOF_DEVICE"


@NO_GPU
def test_doctor_says_that_a_gpu_is_missing() -> None:
    ((level, what),) = found("cuda")
    assert (level, "'cuda' is asked for" in what) == ("bad", True)


@pytest.mark.usefixtures("two_gpus")
def test_doctor_names_the_gpu_and_a_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "installed", lambda package: True)
    assert found("cuda:1") == [("ok", "device cuda:1: A GPU, 24 GiB")]
    monkeypatch.setattr(doctor_machine, "installed", lambda package: package != "triton")
    assert [level for level, _ in found("cuda:1")] == ["ok", "note"]
