"""The screen of `forwarder top`: what it shows (`top_figures`), refreshed every few seconds, and
its keys.

Invariants: a daemon that doesn't answer leaves what was shown last, marked as old, and is asked
again, however long it is away; asking never blocks the keys; at most one question is open. It
needs no mouse and no colours beyond the terminal's sixteen.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from forwarder.admin.status import NotAStatus
from forwarder.cli.admin_client import NoDaemon
from forwarder.cli.top_figures import (
    COLUMNS,
    FlowMoment,
    LaneRow,
    cells,
    charts,
    details,
    headlines,
    lane_rows,
    sources,
)
from forwarder.telemetry.rates import FlowRates, RateWindow, rates_between
from forwarder.telemetry.readable import duration
from forwarder.telemetry.snapshot import Snapshot

HISTORY: Final = 12
"""Rates that the small diagram shows."""
LONG_HISTORY: Final = 600
"""Refreshes that the large ones can show."""

HELP: Final = """\
 q         quit
 p, space  pause, resume
 s         sort by the next column
 r         reverse the order
 /         filter lanes by name, label or state ("ok", or a halt's reason)
 Enter     keep the filter
 Esc       remove the filter
 ↑ ↓       select a lane; details are below the table
 ?         this help; any key closes it

 in/s, out/s  events received and delivered a second
 buffered     events in the buffer, in flight or not
 oldest       age of the oldest of them
 dead         dead letters in the store
 p50 p95 p99  time from a request to the upstream's answer

 Rates and times are of the last 10 seconds. Where there is room, diagrams show
 a column for each refresh.
"""


class TopHelp(ModalScreen[None]):
    """The keys and columns."""

    CSS = """
    TopHelp { align: center middle; }
    TopHelp Static { width: auto; height: auto; border: round ansi_blue; background: ansi_default; }
    """

    def compose(self) -> ComposeResult:
        """One text."""
        yield Static(Text(HELP))

    def on_key(self) -> None:
        """Close."""
        self.dismiss()


class TopApp(App[None]):
    """The screen. `fetch` asks the daemon, in a thread; it raises `NoDaemon` or `NotAStatus`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Static { height: auto; }
    #head { text-style: bold; }
    #head, #figures, #sources, #charts { text-wrap: nowrap; text-overflow: ellipsis; }
    #details { max-height: 4; }
    DataTable { height: 1fr; background: ansi_default; scrollbar-size-horizontal: 0; }
    DataTable > .datatable--header { background: ansi_default; text-style: bold underline; }
    DataTable > .datatable--cursor {
        text-style: reverse; background: ansi_default; color: ansi_default;
    }
    Input { height: 1; border: none; padding: 0; display: none; background: ansi_default; }
    Footer { background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("p,space", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
    ]

    def __init__(self, address: str, fetch: Callable[[], Snapshot], interval: float) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._address = address
        self._fetch = fetch
        self._interval = interval
        self._snapshot: Snapshot | None = None
        self._rates: FlowRates | None = None
        self._window = RateWindow()
        self._history: deque[float] = deque(maxlen=HISTORY)
        self._moments: deque[FlowMoment] = deque(maxlen=LONG_HISTORY)
        self._column = "in/s"
        self._ascending = False
        self._wanted = ""
        self._paused = False
        self._asking = False
        self._failed = ""
        self._answered = time.monotonic()
        self._rows: list[LaneRow] = []

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(id="head")
        yield Static(id="figures")
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Static(id="details")
        yield Static(id="sources")
        yield Static(id="charts")
        yield Input(placeholder="Filter by name, label or state; Enter keeps it, Esc removes it")
        yield Footer()

    async def on_mount(self) -> None:
        """Ask at once, then at each interval."""
        self._table.focus()
        self.set_interval(self._interval, self.ask)
        self.show()
        self.call_later(self.ask)

    async def ask(self) -> None:
        """Ask the daemon and show its answer, unless it is being asked, or the screen is paused.
        Cancellation drops the answer.
        """
        if self._asking or self._paused:
            return
        self._asking = True
        try:
            snapshot = await asyncio.to_thread(self._fetch)
        except (NoDaemon, NotAStatus) as error:
            self._failed = error.message
        else:
            self._accept(snapshot)
        finally:
            self._asking = False
        self.show()

    def _accept(self, snapshot: Snapshot) -> None:
        lately = rates_between(self._snapshot, snapshot)
        self._rates = self._window.add(snapshot)
        if lately is None or self._rates is None:
            self._history.clear()
            self._moments.clear()
        else:
            self._history.append(lately.received)
            self._moments.append(
                FlowMoment(
                    snapshot.now, self._rates.received, self._rates.delivered, snapshot.buffered
                )
            )
        self._snapshot = snapshot
        self._failed = ""
        self._answered = time.monotonic()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    def show(self) -> None:
        """Show what is known."""
        self.query_one("#head", Static).update(self._head())
        snapshot = self._snapshot
        if snapshot is None:
            return
        self.query_one("#figures", Static).update(
            _joined(headlines(snapshot, self._rates, self._history))
        )
        self.query_one("#sources", Static).update(_joined(sources(snapshot)))
        self._fill(
            lane_rows(
                snapshot,
                self._rates,
                column=self._column,
                ascending=self._ascending,
                wanted=self._wanted,
            )
        )
        self.call_after_refresh(self._lay_out)

    def on_resize(self) -> None:
        """The terminal's size has changed."""
        self.show()

    def _lay_out(self) -> None:
        """Give lines that the table leaves to the diagrams."""
        others = ("#head", "#figures", "#details", "#sources")
        used = sum(self.query_one(widget, Static).virtual_size.height for widget in others)
        used += 1 + self.query_one(Input).display  # the footer, and the filter's line
        table = len(self._rows) + 1
        shown = charts(list(self._moments), self.size.width, self.size.height - used - table)
        self._table.styles.height = table if shown else "1fr"
        below = self.query_one("#charts", Static)
        below.display = bool(shown)
        below.update(_joined(shown))

    def _head(self) -> Text:
        text = Text(f"forwarder at {self._address}", no_wrap=True)
        snapshot = self._snapshot
        if self._failed:
            since = f", for {duration(time.monotonic() - self._answered)}" if snapshot else ""
            text.append(f"  NO ANSWER{since}; it is asked again  ", style="red reverse")
            return text.append(self._failed, style="red")
        if snapshot is None:
            return text.append("  connecting…")
        text.append(f"  {snapshot.version} {snapshot.state}, ")
        text.append(
            "ready" if snapshot.ready else "not ready", style="green" if snapshot.ready else "red"
        )
        text.append(f", up {duration(snapshot.now - snapshot.started_at)}")
        text.append("  PAUSED", style="yellow reverse") if self._paused else text.append(
            f"  every {self._interval:g} s", style="dim"
        )
        return text

    def _fill(self, rows: list[LaneRow]) -> None:
        """The table with these rows, the same lane selected and in view as before."""
        table = self._table
        row = self.selected
        offset = table.scroll_offset
        self._rows = rows
        arrow = " ▲" if self._ascending else " ▼"
        shown = [cells(figures) for figures in rows]
        table.clear(columns=True)
        for index, name in enumerate(COLUMNS):
            head = Text(
                name + (arrow if name == self._column else ""),
                justify="left" if name in {"lane", "state"} else "right",
            )
            table.add_column(
                head, width=max(cell.cell_len for cell in (head, *(row[index] for row in shown)))
            )
        for row_cells in shown:
            table.add_row(*row_cells)
        labels = [figures.lane.label for figures in rows]
        if row is not None and row.lane.label in labels:
            table.move_cursor(row=labels.index(row.lane.label), animate=False, scroll=False)
        table.scroll_to(y=offset.y, animate=False, immediate=True)
        self._show_details()

    @property
    def selected(self) -> LaneRow | None:
        """The row with the cursor."""
        at = self._table.cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def on_data_table_row_highlighted(self) -> None:
        """The cursor was moved."""
        self._show_details()

    def _show_details(self) -> None:
        shown = (
            details(self.selected)
            if self._rows or not self._wanted
            else Text().append("No lane matches the filter.", style="yellow")
        )
        self.query_one("#details", Static).update(shown)

    def action_pause(self) -> None:
        """Stop refreshing, or resume."""
        self._paused = not self._paused
        self.show()

    def action_sort(self) -> None:
        """Sort by the next column: figures from the highest, texts from the first."""
        names = list(COLUMNS)
        self._column = names[(names.index(self._column) + 1) % len(names)]
        self._ascending = self._column == "lane"
        self.show()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._ascending = not self._ascending
        self.show()

    def action_filter(self) -> None:
        """Type a filter."""
        line = self.query_one(Input)
        line.display = True
        line.focus()

    def action_unfilter(self) -> None:
        """Remove the filter."""
        line = self.query_one(Input)
        line.value = self._wanted = ""
        self._leave_filter()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while it is typed."""
        self._wanted = message.value
        self.show()

    def on_input_submitted(self) -> None:
        """Keep the filter: as long as there is one, its line stays."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one(Input).display = bool(self._wanted)
        self._table.focus()
        self.show()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(TopHelp())


def _joined(lines: list[Text]) -> Text:
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
