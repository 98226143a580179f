"""docs/nki-calibration.md and docs/nki-kernels.md say what the model says now, and the model is as close as promised."""

from __future__ import annotations

import pytest

from benchmarks import nki_kernels
from benchmarks.nki_calibration.__main__ import PAGE, page, row, tables
from benchmarks.nki_calibration.points import BARS, BOUND, CHECK, DMA_CHART, FIT, POINTS, Point, chart_share

QUICK_CASES = [case for case in nki_kernels.CASES if case[0].__name__ in ("softmax", "rope", "matmul_fp8")]
QUICK = [point for point in POINTS if point.quick]


def name(point: Point) -> str:
    return f"{point.what}, {point.shape}"


def is_close(point: Point, modelled: float) -> bool:
    if point.use == BOUND:
        return modelled <= point.measured_us
    return abs(point.error(modelled)) <= (0.01 if point.use == FIT else BARS[point.group])


@pytest.mark.parametrize("point", QUICK, ids=name)
def test_point(point: Point) -> None:
    modelled = point.model()
    assert is_close(point, modelled)
    assert row(point, modelled) in PAGE.read_text().splitlines(), "run python -m benchmarks.nki_calibration"


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_whole_page() -> None:
    times = {i: point.model() for i, point in enumerate(POINTS)}
    assert [name(point) for i, point in enumerate(POINTS) if not is_close(point, times[i])] == []
    assert page(times) == PAGE.read_text(), "run python -m benchmarks.nki_calibration"


def test_the_page_lists_every_point_and_the_model_of_today() -> None:
    text = PAGE.read_text()
    assert text.endswith(tables()), "run python -m benchmarks.nki_calibration"
    for point in POINTS:
        assert f"| {point.what} | {point.shape} | {point.target} |" in text


def test_points_are_held_out_in_both_groups() -> None:
    for group in BARS:
        assert sum(p.use == CHECK and p.group == group for p in POINTS) >= 3
        assert sum(p.use == FIT and p.group == group for p in POINTS) == 1


def test_dma_throughput_follows_the_chart() -> None:
    assert all(abs(chart_share(run) / share - 1) < 0.09 for run, share in DMA_CHART.items())


@pytest.mark.parametrize(
    "case", [case for case in nki_kernels.CASES if case[0].__name__ in ("softmax", "rope", "matmul_fp8")], ids=lambda case: case[0].__name__
)
def test_a_kernel_of_the_library_table(case: tuple) -> None:
    kernel, size, args, options = case
    line = nki_kernels.row(kernel.__name__, size, kernel.profile(*args, **options, target="trn2"))
    assert line in nki_kernels.PAGE.read_text().splitlines(), "run python -m benchmarks.nki_kernels"


@pytest.mark.full
def test_the_library_table() -> None:
    assert nki_kernels.page() == nki_kernels.PAGE.read_text(), "run python -m benchmarks.nki_kernels"
