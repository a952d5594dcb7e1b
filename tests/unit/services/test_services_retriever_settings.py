"""What a retriever's settings may say, and what stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import DraftproofError, FailedPrecondition, InvalidArgument
from models.checkpoint import tokenizer_digest
from retriever.memory_store import MemoryStore
from services.retriever_service.live_policies import parse_policies
from services.retriever_service.process import build_retriever
from services.settings import RetrieverSettings, load
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.unit.retriever.corpora import put_up


def settings(directory: Path, **given: str) -> RetrieverSettings:
    return load(RetrieverSettings, **{"redis_url": "redis://127.0.0.1:1/0", "cache_dir": directory, **given})


def test_by_default_nothing_is_recorded_and_everything_is_held(tmp_path: Path) -> None:
    retriever = build_retriever(settings(tmp_path))
    assert retriever.live is None
    assert retriever.library.share.whole


def test_a_policy_and_a_group_are_read(tmp_path: Path) -> None:
    policy = '{"py": {"tenants": ["a", ""], "shared": true, "max_entries": 7}}'
    retriever = build_retriever(settings(tmp_path, live_policies=policy, retriever_groups="x, y", retriever_group="y"))
    assert retriever.live is not None
    assert retriever.live.readers("py", "a") == {"a", ""}
    assert not retriever.library.share.whole
    assert parse_policies(policy)["py"].max_entries == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "one JSON object"),
        ('{"py": 3}', r"py: is an object"),
        ('{"py": {"tenants": []}}', r"py\.tenants"),
        ('{"py": {"tenants": "a"}}', r"py\.tenants"),
        ('{"py": {"tenants": ["a"], "sharde": true}}', r"has no sharde"),
        ('{"py": {"tenants": ["a"], "shared": 1}}', r"py\.shared"),
        ('{"py": {"tenants": ["a"], "max_entries": 0}}', r"py\.max_entries"),
    ],
)
def test_wrong_live_policies_stop_it_by_name(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=f"DRAFTPROOF_LIVE_POLICIES.*{words}"):
        parse_policies(text)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"redis_url": ""}, FailedPrecondition, "DRAFTPROOF_REDIS_URL"),
        ({"retriever_groups": "a,b", "retriever_group": "c"}, InvalidArgument, "RETRIEVER_GROUP"),
        ({"retriever_groups": "a,b"}, InvalidArgument, "retriever_group"),
        ({"retriever_group": "a"}, InvalidArgument, "no groups"),
    ],
)
def test_wrong_settings_stop_it_by_name(
    tmp_path: Path, given: dict[str, str], kind: type[DraftproofError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        build_retriever(settings(tmp_path, **given))


def test_releases_are_bound_to_the_models_tokenizer_where_it_is_here_to_tell(tmp_path: Path) -> None:
    checkpoint = tiny_service_checkpoint(tmp_path)
    store = MemoryStore()
    fit = put_up(store, "fit", [[1, 2]], tokenizer_sha256=tokenizer_digest(checkpoint))
    put_up(store, "unfit", [[1, 2]])
    bound = build_retriever(settings(tmp_path, model=str(checkpoint))).library
    free = build_retriever(settings(tmp_path / "empty")).library
    for library in (bound, free):
        library._store = store
        library.poll()
    assert bound.visible_indexes() == {"fit": fit}
    assert "release.tokenizer_sha256" in bound.status().indexes["unfit"].error
    assert free.visible_indexes().keys() == {"fit", "unfit"}


def test_a_model_that_comes_after_the_retriever_binds_what_is_loaded_from_then_on(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "before", [[1, 2]])
    library = build_retriever(settings(tmp_path, model=str(tmp_path / "tiny"))).library
    library._store = store
    library.poll()
    tiny_service_checkpoint(tmp_path)
    put_up(store, "after", [[1, 2, 3]])
    library.poll()
    assert library.visible_indexes().keys() == {"before"}
    assert "release.tokenizer_sha256" in library.status().indexes["after"].error


def test_retrievers_of_other_indexes_keep_copies_of_their_own(tmp_path: Path) -> None:
    copies = {build_retriever(settings(tmp_path, indexes=names)).library._copy for names in ("", "py", "py,docs")}
    assert len({copy._path for copy in copies if copy}) == 3
    assert len({copy._earlier for copy in copies if copy}) == 1
