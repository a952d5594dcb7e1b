"""Any text, in any split into tokens and rounds: the pieces add up, and a stop string cuts where a plain search says."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.receipt import FinishReason
from orchestrator.text import TextAssembly
from tests.helpers.fakes import EOS, FakeTokenizer

TEXTS = st.text(alphabet="abcé日🧑 .", max_size=40)
STOPS = st.lists(st.text(alphabet="abcé日", min_size=1, max_size=4), max_size=3)


class PieceTokenizer(FakeTokenizer):
    """Tokens are byte strings of any length, so that characters and stop strings begin and end inside them."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def decode(self, token_ids):
        return b"".join(self._pieces[token] for token in token_ids if token < len(self._pieces)).decode(
            errors="replace"
        )


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the stop whose end comes first, the earliest start among those, by plain search."""
    found = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    return (min(found)[1], min(found)[0]) if found else None


def assemble(tokenizer, rounds, *, stops=(), min_tokens=0, last=FinishReason.LENGTH):
    """(text pieces, tokens kept, the last Taken) of a generation whose rounds offer the given token lists."""
    assembly = TextAssembly(tokenizer, stops, min_tokens=min_tokens)
    pieces, kept, taken = [], [], None
    for index, tokens in enumerate(rounds):
        taken = assembly.take(tokens, last if index == len(rounds) - 1 else FinishReason.NONE)
        pieces.append(taken.text)
        kept += tokens[: taken.kept]
        if taken.finish is not FinishReason.NONE:
            break
    return pieces, kept, taken


def in_rounds(count: int, cuts: list[int]) -> list[list[int]]:
    edges = sorted({cut % (count + 1) for cut in cuts} | {0, count})
    return [list(range(a, b)) for a, b in pairwise(edges)]


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60)), rounds=st.lists(st.integers(0, 60)))
@settings(deadline=None)
def test_pieces_add_up_to_the_decoding_of_the_whole_even_for_bytes_that_are_no_text(data, cuts, rounds):
    pieces = split(data, cuts)
    tokenizer = PieceTokenizer(pieces)
    shown, kept, _ = assemble(tokenizer, in_rounds(len(pieces), rounds))
    assert "".join(shown) == tokenizer.decode(kept) == data.decode(errors="replace")


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200)), rounds=st.lists(st.integers(0, 60)))
@settings(deadline=None)
def test_no_piece_of_valid_text_holds_a_replacement_character(text, cuts, rounds):
    pieces = split(text.encode(), cuts)
    shown, _, _ = assemble(PieceTokenizer(pieces), in_rounds(len(pieces), rounds))
    assert all("\ufffd" not in piece for piece in shown)


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 200)), rounds=st.lists(st.integers(0, 60)))
@settings(deadline=None, max_examples=300)
def test_a_stop_string_cuts_where_a_plain_search_says_however_the_text_is_split(text, stops, cuts, rounds):
    pieces = split(text.encode(), cuts)
    shown, kept, taken = assemble(PieceTokenizer(pieces), in_rounds(len(pieces), rounds), stops=stops)
    stop = first_stop(text, stops)
    if stop is None:
        assert "".join(shown) == text
        assert len(kept) == len(pieces)
        return
    start, end = stop
    assert "".join(shown) == text[:start]
    assert (taken.finish, taken.stop_string) == (FinishReason.STOP, text[start:end])
    through = len(text[:end].encode())
    ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    assert len(kept) == 1 + next(i for i, position in enumerate(ends) if position >= through)


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 200)), rounds=st.lists(st.integers(0, 60)))
@settings(deadline=None)
def test_what_was_shown_is_never_part_of_the_stop_that_comes(text, stops, cuts, rounds):
    pieces = split(text.encode(), cuts)
    shown, _, _ = assemble(PieceTokenizer(pieces), in_rounds(len(pieces), rounds), stops=stops)
    assert text.startswith("".join(shown))
    for upto in range(len(shown)):
        stop = first_stop(text, stops)
        assert stop is None or len("".join(shown[:upto])) <= stop[0]


@given(text=TEXTS, minimum=st.integers(0, 30))
@settings(deadline=None)
def test_a_stop_that_is_complete_before_the_minimum_of_tokens_does_not_count(text, minimum):
    tokens = list(text.encode())
    _, kept, taken = assemble(FakeTokenizer(), [tokens] if tokens else [], stops=["b"], min_tokens=minimum)
    at = next((i + 1 for i, token in enumerate(tokens) if token == ord("b") and i + 1 >= minimum), None)
    assert len(kept) == (at or len(tokens))
    assert taken is None or (taken.stop_string == "b") == (at is not None)


@given(text=TEXTS, rounds=st.lists(st.integers(0, 60)))
@settings(deadline=None)
def test_special_tokens_count_and_have_no_text(text, rounds):
    tokens = [token for byte in text.encode() for token in (EOS, byte)] + [EOS]
    parts = [[tokens[i] for i in part] for part in in_rounds(len(tokens), rounds)]
    shown, kept, taken = assemble(FakeTokenizer(), parts, last=FinishReason.STOP)
    assert "".join(shown) == text
    assert kept == tokens
    assert taken.stop_id == EOS
