"""The timer's logic, with a clock that moves only when a candidate is called."""

import pytest

from benchmarks.timing import Measurement, Ratio, measure


class FakeMachine:
    """A clock and candidates whose calls take a stated number of seconds."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def clock(self):
        return self.now

    def candidate(self, name, durations):
        """Each call takes the next of the durations, the last one for ever."""
        queue = list(durations)

        def call():
            self.calls.append(name)
            self.now += queue.pop(0) if len(queue) > 1 else queue[0]
            return name

        return call


@pytest.fixture
def machine():
    return FakeMachine()


def timed(machine, durations, **options):
    candidates = {name: machine.candidate(name, times) for name, times in durations.items()}
    return measure(candidates, clock=machine.clock, wait=lambda result: result, **options)


def test_ratio_and_null_of_constant_times(machine):
    result = timed(machine, {"slow": [4.0], "fast": [1.0]}, references=["slow"], rounds=5)
    assert result.rounds == 5
    assert result.ratio("fast") == Ratio(0.25, 0.25, 0.25)
    assert result.null() == Ratio(1.0, 1.0, 1.0)
    assert result.median_seconds("slow") == 4.0


def test_warmup_rounds_are_thrown_away(machine):
    # 100 s of compilation and 50 s of cold caches, then 2 s per call.
    result = timed(machine, {"f": [100.0, 50.0, 2.0]}, references=["f"], rounds=3)
    assert result.seconds["f"] == (2.0, 2.0, 2.0)
    assert result.twins["f"] == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("queued", "waits"), [(False, 16), (True, 1)])
def test_queued_calls_are_waited_for_together(machine, queued, waits):
    waited = []
    measure(
        {"short": machine.candidate("short", [1 / 1024])},
        references=["short"],
        rounds=3,
        sample_seconds=1 / 64,
        queued=queued,
        clock=machine.clock,
        wait=waited.append,
    )
    assert machine.calls.count("short") == 2 + 16 + 2 * 3 * 16
    assert len(waited) == 2 + waits + 2 * 3 * waits


def test_short_calls_are_repeated_within_a_sample(machine):
    durations = {"short": [1 / 1024], "long": [1.0]}
    result = timed(machine, durations, references=["long"], rounds=3, sample_seconds=1 / 64)
    assert result.inner == {"short": 16, "long": 1}
    assert result.median_seconds("short") == 1 / 1024
    assert machine.calls.count("short") == 2 + 16 + 3 * 16


def test_a_cold_call_does_not_tell_how_often_to_repeat(machine):
    durations = {"f": [1.0, 1 / 64, 1 / 64, 1 / 1024]}
    result = timed(machine, durations, references=["f"], rounds=3, sample_seconds=1 / 16)
    assert result.inner == {"f": 64}
    assert result.seconds["f"] == (1 / 1024,) * 3


def test_drift_cancels_within_a_round(machine):
    # The machine becomes slower from call to call; both candidates feel it alike.
    drift = [1.0, 1.0, *(1.0 + 0.01 * k for k in range(40))]
    result = timed(machine, {"a": drift, "b": drift}, references=["a"], rounds=10)
    assert result.ratio("b").median == pytest.approx(1.0, abs=0.15)
    assert max(result.seconds["b"]) > 1.05 * min(result.seconds["b"])


def test_candidates_are_interleaved_in_changing_order(machine):
    timed(machine, {"a": [1.0], "b": [1.0]}, references=["a"], rounds=4)
    warm, kept = machine.calls[:4], machine.calls[4:]
    assert warm == ["a", "b", "a", "b"]
    rounds = [kept[i : i + 3] for i in range(0, len(kept), 3)]
    # Each round samples the reference twice, everything else once.
    assert [sorted(names) for names in rounds] == [["a", "a", "b"]] * 4
    # The second of two rounds is the first one backwards.
    assert rounds[1] == rounds[0][::-1]
    assert rounds[3] == rounds[2][::-1]


def test_best_reference_is_the_quickest_reference_not_the_quickest_candidate(machine):
    durations = {"fwd": [3.0], "rev": [2.0], "ours": [1.0]}
    result = timed(machine, durations, references=["fwd", "rev"], rounds=3)
    assert result.best_reference() == "rev"
    assert result.ratio("ours").median == 0.5
    assert result.ratio("ours", to="fwd").median == pytest.approx(1 / 3)


def test_hopeless_reference_is_sampled_once_per_round(machine):
    durations = {"fwd": [100.0, 9.0], "rev": [100.0, 2.0]}
    result = timed(machine, durations, references=["fwd", "rev"], rounds=4)
    assert list(result.twins) == ["rev"]
    assert len(result.seconds["fwd"]) == 4
    assert result.best_reference() == "rev"
    assert result.ratio("fwd").median == 4.5


def test_time_limit_keeps_the_minimum_of_rounds(machine):
    options = {"references": ["f"], "rounds": 100, "max_seconds": 5.0}
    assert timed(machine, {"f": [10.0]}, min_rounds=4, **options).rounds == 4
    assert timed(FakeMachine(), {"f": [1.0]}, min_rounds=1, **options).rounds == 3


def test_progress_is_reported_for_every_round(machine):
    seen = []
    timed(
        machine,
        {"f": [1.0]},
        references=["f"],
        rounds=3,
        on_round=lambda done, planned: seen.append((done, planned)),
    )
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_median_and_quartiles_are_those_of_the_ratios():
    result = Measurement(
        seconds={"f": (1.0, 1.0, 1.0, 1.0, 1.0), "g": (5.0, 1.0, 2.0, 4.0, 3.0)},
        twins={"f": (1.0, 1.0, 1.0, 1.0, 1.0)},
        inner={"f": 1, "g": 1},
    )
    assert result.ratio("g") == Ratio(median=3.0, low=2.0, high=4.0)
    assert str(result.ratio("g")) == "3.00 [2.00, 4.00]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"references": []}, "at least one of the candidates"),
        ({"references": ["g"]}, r"got \['g'\]"),
        ({"references": ["f"], "warmup": 1}, "warmup must be at least 2"),
        ({"references": ["f"], "rounds": 0}, "must be at least 1, got rounds=0"),
    ],
)
def test_bad_options_are_refused(machine, options, message):
    with pytest.raises(ValueError, match=message):
        timed(machine, {"f": [1.0]}, **options)
