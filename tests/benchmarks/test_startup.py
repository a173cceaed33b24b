"""benchmarks/startup: the figures of one start."""

from benchmarks import startup


def test_time_in_which_two_threads_compile_counts_once():
    assert startup.seconds_of([(0, 2), (1, 3), (5, 6), (5.5, 5.6)]) == 4
    assert startup.seconds_of([]) == 0


def test_rest_is_the_time_of_nothing_else():
    spans = {"tracing": [(13, 15)], "lowering": [(14, 16)], "compiling": [(16, 20), (17, 19)]}
    row = startup.figures(started=10, imported=12, ended=25, spans=spans, cached=1)
    assert row["first step"] == 15
    assert (row["imports"], row["tracing"], row["compiling"]) == (2, 2, 4)
    assert row["rest"] == 1 + 5
    assert (row["programs"], row["cached"]) == (2, 1)
    assert set(startup.COLUMNS) == {*row, "CPU"}
