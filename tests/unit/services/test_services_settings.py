"""Settings: documented, read once, and nothing unknown is let through."""

import pytest

from contracts.errors import InvalidArgument
from orchestrator.settings import OrchestratorSettings
from services import settings
from verifier.admission import MAX_LEASE_MS


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
    [
        ("VERIFIER_PORT", "seventy"),
        ("DTYPE", "float8"),
        ("MAX_ROWS", "0"),
        ("PROPOSE_DEADLINE_MS", "-1"),
        ("PROPOSE_DEADLINE_MS", "inf"),
        ("VERIFY_TIMEOUT_MS", "nan"),
        ("LEASE_MS", "99999999999"),
        ("MAX_DEPTH", "1000"),
        ("NODE_BUDGET", "1000"),
        ("LOOKUP_MIN_NGRAM", "20"),
        ("DEVICE", "quantum"),
        ("HEAD_TREE", "zzz"),
        ("DRAFT_TREE", "forced:zzz"),
        ("DEFAULT_SOURCES", "nonsense"),
        ("DEFAULT_SOURCES", "retrieval:"),
        ("DEFAULT_SOURCES", "head,head"),
        ("RETRIEVER_GROUP", "x"),
        ("VERIFIER_ENDPOINT", "nowhere"),
        ("VERIFIER_ENDPOINT", "127.0.0.1:99999"),
        ("PROPOSER_ENDPOINT", "127.0.0.1:0"),
        ("RETRIEVER_ENDPOINT", "a:1,b"),
        ("RETRIEVER_ENDPOINT", "a:1,b:70000"),
        ("REDIS_URL", "http://localhost:6379"),
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_URL", "redis://"),
    ],
)
def test_a_wrong_value_names_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DRAFTPROOF_{name}", value)
    with pytest.raises(InvalidArgument) as refused:
        settings.load(settings.AllSettings)
    assert refused.value.field == f"DRAFTPROOF_{name}"
    assert value.split(",")[-1] in refused.value.message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_node_budget": 16}, "NODE_BUDGET"),
        ({"max_rows": 8}, "NODE_BUDGET"),
        ({"backend": "cuda-torch"}, "BACKEND"),
        ({"device": "cuda:1", "backend": "cpu-llvm"}, "BACKEND"),
        ({"head": "x", "head_relation": "independent"}, "HEAD_RELATION"),
        ({"draft_model": "x", "draft_tree": "by_value:2x2"}, "DRAFT_RELATION"),
        ({"retriever_groups": "a,b", "retriever_group": "c"}, "RETRIEVER_GROUP"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        settings.load(settings.AllSettings, **given)
    assert refused.value.field == f"DRAFTPROOF_{field}"


def test_settings_that_fit_are_taken() -> None:
    settings.load(
        settings.AllSettings,
        device="cuda:1",
        backend="cuda-torch",
        node_budget=512,
        max_node_budget=512,
        max_rows=512,
        head_relation="independent",
        draft_tree="4,2,1",
        default_sources="prompt_lookup, retrieval:code,head",
        retriever_groups="a,b",
        retriever_group="b",
        retriever_endpoint="a:1, b:2",
        proposer_endpoint="",
    )


def test_limits_are_those_of_the_services_that_refuse_beyond_them() -> None:
    longest = settings.MAX_MS
    assert longest == MAX_LEASE_MS
    settings.load(settings.AllSettings, lease_ms=longest, max_depth=OrchestratorSettings().depth_limit)
    with pytest.raises(InvalidArgument):
        settings.load(settings.AllSettings, max_depth=OrchestratorSettings().depth_limit + 1)


def test_an_unknown_key_given_in_code_stops_too() -> None:
    with pytest.raises(InvalidArgument, match="COLOUR"):
        settings.load(settings.VerifierSettings, colour="red")


def test_lists_of_names() -> None:
    assert settings.names_in(" a, b ,,c") == ("a", "b", "c")
    assert settings.names_in("") == ()
