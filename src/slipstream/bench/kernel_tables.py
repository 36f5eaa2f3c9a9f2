"""A run of `slipstream bench kernels` at the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from slipstream.bench.contest import NATIVE, TORCH, TWIN, KernelTimes
from slipstream.bench.kernel_run import KernelRun
from slipstream.bench.tables import busy_warning

_CAPTION = (
    "by rows of the call. us: microseconds of one native call. share: time that moving its bytes "
    "takes over its time. twin, torch: their time over the native one's."
)


def print_run(run: KernelRun, console: Console) -> None:
    """A table for each group of kernels, and what is worth a warning."""
    for group in dict.fromkeys(times.group for times in run.times):
        console.print(_table(run, group))
    for line in (*run.notes, *busy_warning(run.provenance.machine)):
        console.print(f"[yellow]note:[/yellow] {line}", highlight=False)


def _table(run: KernelRun, group: str) -> Table:
    table = Table(
        title=_title(run, group),
        caption=_CAPTION,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    table.add_column("", no_wrap=True)
    for num_rows in run.plan.rows:
        table.add_column(str(num_rows), justify="right", no_wrap=True)
    members = [times for times in run.times if times.group == group]
    for kernel in dict.fromkeys(times.kernel for times in members):
        _add_lines(table, kernel, [times for times in members if times.kernel == kernel])
    return table


def _add_lines(table: Table, kernel: str, members: Sequence[KernelTimes]) -> None:
    table.add_row(f"[bold]{kernel}[/bold]")
    table.add_row("  us", *(_digits(times.seconds[NATIVE] * 1e6) for times in members))
    table.add_row("  share", *(f"{times.bandwidth_share:.0%}" for times in members))
    for name in (TWIN, TORCH):
        if all(name in times.seconds for times in members):
            ratios = (times.seconds[name] / times.seconds[NATIVE] for times in members)
            table.add_row(f"  {name}", *(_digits(ratio) for ratio in ratios))


def _title(run: KernelRun, group: str) -> str:
    format_name = group.rpartition(" ")[2]
    if format_name not in run.rotation_bytes:
        return group
    size, rate = run.rotation_bytes[format_name], run.bytes_per_s[format_name]
    return f"{group}: {size / 1e6:.0f} MB in turn, readable at {rate / 1e9:.1f} GB/s"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
