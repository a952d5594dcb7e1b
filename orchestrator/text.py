"""Text out of tokens as they come: no split character, nothing past a stop, and the pieces add up to the whole.

What counts when a stop string appears (as in vLLM and the OpenAI API): the text ends right before the stop string; tokens
are published and counted up to and including the one that completes it, each with its logprob; later tokens of the same
round are not. The stop string whose last character comes first wins, the one that starts earliest among those, so the
outcome does not depend on how the text was split into tokens or rounds. A token that ends generation by its id (EOS or a
stop id) is published and counted, and is not in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.ports import Tokenizer
from contracts.receipt import FinishReason

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Incremental decoding in a window of two chunks, so that a token costs the same wherever it stands.

    The window's first chunk is context: decoders treat a text's first token specially. It only moves past tokens that
    gave text, and only at character boundaries. A trailing run of replacement characters is held back, since further
    bytes may turn it into a character. The tokenizer must decode a longer sequence to the same text and more, apart from
    such a run (so no clean-up of spaces).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids[self._prefix :])
        certain = text.rstrip(REPLACEMENT)
        piece = certain[self._shown :]
        self._shown += len(piece)
        if piece and certain == text:
            self._prefix, self._read = self._read, len(self._ids)
            self._shown = len(self._tokenizer.decode(self._ids[self._prefix : self._read]))
        return piece

    def flush(self) -> str:
        """What was held back, as the decoding of the whole shows it."""
        piece = self._tokenizer.decode(self._ids[self._prefix :])[self._shown :]
        self._shown += len(piece)
        return piece


class StopMatcher:
    """Finds stop strings in a text that comes in pieces, and holds back what may yet become one."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stops = tuple(sorted(stop_strings, key=len, reverse=True))
        self._held = ""
        self.matched: str | None = None

    @property
    def looks(self) -> bool:
        """Whether there are stop strings."""
        return bool(self._stops)

    def push(self, text: str, *, armed: bool = True) -> str:
        """Text that may be shown now. Sets `matched` at a stop; while not `armed`, stops that end here don't count."""
        if not self._stops:
            return text
        start = len(self._held)
        seen = self._held + text
        for end in range(start + 1, len(seen) + 1 if armed else 0):
            stop = next((stop for stop in self._stops if seen.endswith(stop, 0, end)), None)
            if stop is not None:
                self.matched, self._held = stop, ""
                return seen[: end - len(stop)]
        keep = self._undecided(seen)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def flush(self) -> str:
        """The held text, once nothing can follow it."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, seen: str) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(seen)), 0, -1):
            tail = seen[len(seen) - size :]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


@dataclass(frozen=True)
class Taken:
    """What a round adds: `kept` tokens of those offered, the text that may be shown, and why generation ends, if it does."""

    kept: int
    text: str
    finish: FinishReason = FinishReason.NONE
    stop_string: str | None = None
    stop_id: int | None = None


class TextAssembly:
    """The published text of one request, over all its rounds and sessions."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), *, min_tokens: int = 0) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stop_strings)
        self._min_tokens = min_tokens
        self._count = 0

    @property
    def may_stop(self) -> bool:
        """Whether the text may end before the verifier's tokens do."""
        return self._matcher.looks

    def take(self, tokens: Sequence[int], finish: FinishReason = FinishReason.NONE) -> Taken:
        """Adds a round's tokens; `finish` is the verifier's reason. A stop string in them goes before that reason."""
        pieces: list[str] = []
        stop_id = tokens[-1] if finish is FinishReason.STOP and tokens else None
        for kept, token in enumerate(tokens, start=1):
            self._count += 1
            if kept == len(tokens) and stop_id is not None:
                break
            pieces.append(self._show(self._detokenizer.push(token)))
            if self._matcher.matched is not None:
                return Taken(kept, "".join(pieces), FinishReason.STOP, self._matcher.matched)
        if finish is FinishReason.NONE:
            return Taken(len(tokens), "".join(pieces))
        pieces.append(self.flush())
        if self._matcher.matched is not None:
            return Taken(len(tokens), "".join(pieces), FinishReason.STOP, self._matcher.matched)
        return Taken(len(tokens), "".join(pieces), finish, stop_id=stop_id)

    def flush(self) -> str:
        """Everything held back, for an end that no token announced."""
        text = self._show(self._detokenizer.flush())
        return text if self._matcher.matched is not None else text + self._matcher.flush()

    def _show(self, text: str) -> str:
        return self._matcher.push(text, armed=self._count >= self._min_tokens) if text else ""
