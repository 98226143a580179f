"""Rows, the groups that make them, and how they are shown."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import isnan

from rich import box
from rich.table import Table


@dataclass
class Row:
    """One figure, and the most that it may be."""

    what: str
    value: float
    unit: str = "x"  # "x": neuron divided by what it is compared with
    bar: float | None = None
    detail: str = ""  # the figures behind `value`

    @property
    def ok(self) -> bool | None:
        """None without a bar."""
        return None if self.bar is None else not isnan(self.value) and self.value <= self.bar

    def as_dict(self) -> dict:
        return {**asdict(self), "ok": self.ok}


Rows = Iterator[Row]
GROUPS: dict[str, Callable[[float], Rows]] = {}


def group(name: str) -> Callable[[Callable[[float], Rows]], Callable[[float], Rows]]:
    """Registers a function that yields the rows of a group. It is called with the effort: 1 for a usual run, less for a quicker one."""

    def register(function: Callable[[float], Rows]) -> Callable[[float], Rows]:
        GROUPS[name] = function
        return function

    return register


def render(results: dict[str, list[Row]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="x: neuron / cpu unless the row names another pair; bar: the most it may be")
    for name, justify in (("group", "left"), ("what", "left"), ("value", "right"), ("bar", "right"), ("", "left"), ("behind it", "left")):
        table.add_column(name, justify=justify, no_wrap=name != "behind it")  # type: ignore[arg-type]
    for name, rows in results.items():
        for i, row in enumerate(rows):
            mark = {None: "", True: "[green]ok[/]", False: "[red]over[/]"}[row.ok]
            bar = "" if row.bar is None else f"{row.bar:g}"
            table.add_row(name if i == 0 else "", row.what, f"{row.value:.2f} {row.unit}", bar, mark, row.detail)
        table.add_section()
    return table
