"""When a dear source is asked again: at once where it brought a token, ever later where not, unless it gains on average.

What a source brings comes in streaks: behind a round in which a draft held, the next one holds more often than behind a
miss (on held-out text, half as often again). So a source whose rounds about break even still gains by those that follow its
hits, and one that loses is hardly asked before this session's own rounds have shown it.

A round is learned from while the next one's target runs, so whether the next one asks is decided without it: where a source
is asked now and then, the round behind a question goes without, or each would be two.
"""

from __future__ import annotations

_SMOOTHING = 1.0 / 16.0
# What earlier sessions found counts as so many rounds of this one: text differs more between sessions than within one.
_PRIOR_ROUNDS = 4
# In margins: from where on a source is asked in every round.
_ALWAYS = 12.0
# Rounds that a source sits out at most; of one that loses, a hit only halves them.
_LONGEST_GAP = 8
_LONGEST_GAP_LOSING = 32


class DearWorth:
    """One dear source over one session, in rounds of one kind. Times in microseconds.

    before_us: what it was worth in earlier sessions, None where there were none. Whatever that was, a session begins with
    a question: one round is little beside what the session's own text tells.
    """

    def __init__(self, before_us: float | None = None) -> None:
        self.worth_us = before_us or 0.0
        self._rounds = 0 if before_us is None else _PRIOR_ROUNDS
        self._gap = 0
        self._left_out = 0

    def next_round_asks(self) -> bool:
        """Goes on to the round that comes: whether that asks it."""
        self._left_out -= 1
        if self._left_out >= 0:
            return False
        if self._gap:
            self._left_out = 1
        return True

    def judge(self, gained_us: float, margin_us: float, *, hit: bool) -> None:
        """After a round in which it was asked. hit: whether a token of the source alone was published. margin_us: what of a
        gain is too little to count."""
        self._rounds += 1
        self.worth_us += (gained_us - self.worth_us) * max(_SMOOTHING, 1.0 / self._rounds)
        losing = self.worth_us < 0.0
        if self.worth_us > _ALWAYS * margin_us or (hit and not losing):
            self._gap = 0
        elif hit:
            self._gap //= 2
        else:
            self._gap = min(_LONGEST_GAP_LOSING if losing else _LONGEST_GAP, max(1, 2 * self._gap))
        self._left_out = self._gap
