"""Settings: documented, read once, and nothing unknown is let through."""

import pytest

from contracts.errors import InvalidArgument
from services import settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith(settings.PREFIX):
            monkeypatch.delenv(name)


ALL = [
    settings.VerifierSettings,
    settings.ProposerSettings,
    settings.RetrieverSettings,
    settings.OrchestratorServiceSettings,
    settings.AllSettings,
]


@pytest.mark.parametrize("kind", ALL)
def test_defaults_stand_and_every_field_is_documented(kind: type[settings.ProcessSettings]) -> None:
    settings.load(kind)
    assert not [name for name, field in kind.model_fields.items() if not field.description]


@pytest.mark.parametrize("kind", ALL)
def test_an_unknown_variable_stops_every_process(
    kind: type[settings.ProcessSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPROOF_VERIFER_PORT", "1")
    with pytest.raises(InvalidArgument) as refused:
        settings.load(kind)
    assert refused.value.field == "DRAFTPROOF_VERIFER_PORT"


def test_a_process_may_see_another_ones_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_LOOKUP_MAX_NGRAM", "5")
    settings.load(settings.VerifierSettings)
    assert settings.load(settings.ProposerSettings).lookup_max_ngram == 5


def test_set_up_variables_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_ALLOW_CUDA_TORCH", "1")
    settings.load(settings.AllSettings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("VERIFIER_PORT", "seventy"), ("DTYPE", "float8"), ("MAX_ROWS", "0"), ("PROPOSE_DEADLINE_MS", "-1")],
)
def test_a_wrong_value_names_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DRAFTPROOF_{name}", value)
    with pytest.raises(InvalidArgument) as refused:
        settings.load(settings.AllSettings)
    assert refused.value.field == f"DRAFTPROOF_{name}"
    assert value in refused.value.message


def test_an_unknown_key_given_in_code_stops_too() -> None:
    with pytest.raises(InvalidArgument, match="COLOUR"):
        settings.load(settings.VerifierSettings, colour="red")


def test_lists_of_names() -> None:
    assert settings.names_in(" a, b ,,c") == ("a", "b", "c")
    assert settings.names_in("") == ()
