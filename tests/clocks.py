"""Clocks for `order="autotune"` that the tests set."""


class Clock:
    """Every reading is one second later: all calls take equally long."""

    def __init__(self):
        self.readings = 0

    def __call__(self):
        self.readings += 1
        return float(self.readings)


class Favouring(Clock):
    """Samples of one candidate take a second, those of the others two.

    Candidates take turns in a fixed order, forward in even rounds and backward in odd ones, after
    two rounds of warm-up.
    """

    def __init__(self, place, count):
        super().__init__()
        self.place, self.count, self.now = place, count, 0.0

    def __call__(self):
        sample, is_end = divmod(self.readings, 2)
        self.readings += 1
        turn, place = divmod(sample, self.count)
        if turn >= 2 and turn % 2:
            place = self.count - 1 - place
        self.now += (1.0 if place == self.place else 2.0) if is_end else 0.0
        return self.now
