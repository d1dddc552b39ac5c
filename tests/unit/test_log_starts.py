"""The starts of a shard's keys."""

from __future__ import annotations

from worker.logs.starts import KeyStarts


def test_after_a_gathering_only_the_starts_that_were_raised_meanwhile_are_looked_at_again() -> None:
    starts = KeyStarts()
    starts.take_in({b"raised": 5, b"same": 6}, gathered=0)
    left_out = starts.fresh
    starts.take_in({b"raised": 8, b"new": 9}, gathered=0)
    starts.cleaned(starts.all, starts.gatherings)
    assert starts.unclean_count == 0

    assert starts.look_again(left_out)
    assert starts.unclean(10) == {b"raised": 8, b"new": 9}


def test_a_gathering_that_left_out_all_that_is_gone_leaves_nothing_to_look_at() -> None:
    starts = KeyStarts()
    starts.take_in({b"same": 6}, gathered=0)
    starts.cleaned(starts.all, starts.gatherings)
    assert not starts.look_again(starts.fresh)
    assert starts.unclean_count == 0


def test_a_look_before_a_gathering_ended_says_nothing_of_what_it_stored() -> None:
    starts = KeyStarts()
    starts.take_in({b"raised": 5, b"other": 3}, gathered=3)
    before = starts.gatherings
    assert starts.look_again({})
    starts.gathered(7)
    starts.cleaned(dict(starts.all), before)
    assert starts.unclean(10) == {b"raised": 5} and starts.done(7) == [b"other"]
    starts.cleaned(dict(starts.all), starts.gatherings)
    assert starts.unclean_count == 0 and set(starts.done(7)) == {b"raised", b"other"}
