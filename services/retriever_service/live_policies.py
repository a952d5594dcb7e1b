"""The live policies in a setting: which indexes learn from which tenants' published outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts.errors import InvalidArgument
from retriever.live import LivePolicy
from retriever.trie import MAX_TOKEN_ID

FIELD = "DRAFTPROOF_LIVE_POLICIES"
_NUMBERS = ("max_entries", "max_output_tokens", "keep_generations")


def parse_policies(text: str) -> dict[str, LivePolicy]:
    """Policies by index name, from JSON such as {"code": {"tenants": ["a", "b"], "shared": true}}; of "" none.

    "tenants" is required ("" is the tenant of requests that name none); "shared", "max_entries", "max_output_tokens" and
    "keep_generations" are as in `retriever.live.LivePolicy`. Ids are checked against the index's own vocabulary.
    Raises InvalidArgument naming the setting for anything else.
    """
    if not text.strip():
        return {}
    try:
        record = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(FIELD, f"is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise InvalidArgument(FIELD, "is one JSON object, index names to policies")
    return {str(index): _policy(index, entry) for index, entry in record.items()}


def _policy(index: str, entry: Any) -> LivePolicy:
    if not isinstance(entry, Mapping):
        raise InvalidArgument(f"{FIELD}.{index}", "is an object")
    unknown = set(entry) - {"tenants", "shared", *_NUMBERS}
    if unknown:
        raise InvalidArgument(f"{FIELD}.{index}", f"has no {', '.join(sorted(unknown))}")
    tenants = entry.get("tenants")
    if not isinstance(tenants, list) or not tenants or not all(isinstance(tenant, str) for tenant in tenants):
        raise InvalidArgument(f"{FIELD}.{index}.tenants", "is a list of at least one tenant name")
    shared = entry.get("shared", False)
    if not isinstance(shared, bool):
        raise InvalidArgument(f"{FIELD}.{index}.shared", "is true or false")
    numbers = {name: entry[name] for name in _NUMBERS if name in entry}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidArgument(f"{FIELD}.{index}.{name}", f"{value!r} is no number from 1")
    return LivePolicy(frozenset(tenants), MAX_TOKEN_ID + 1, shared, **numbers)
