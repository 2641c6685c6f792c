"""The style of the report's page, inside the page: a file that is sent around has nothing beside it.

Light or dark as the reader's system is; readable from the width of a telephone on. Colour says nothing that a word doesn't say, too.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ground: #f4f6f9; --surface: #fff; --line: #dde3ea; --text: #17202b; --soft: #566273;
  --accent: #1f5fd0; --source: #a9c3ee; --good: #136c34; --good-soft: #e3f4e8; --bad: #b3201a; --bad-soft: #fdebe9; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1217; --surface: #161c24; --line: #2a3440; --text: #e7ecf2; --soft: #a0adbc;
  --accent: #7fb0ff; --source: #38527d; --good: #74d493; --good-soft: #15301f; --bad: #ff958c; --bad-soft: #3a1b1a; } }
* { box-sizing: border-box; }
html { text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 14px/1.5 "Segoe UI", "Helvetica Neue", Arial, system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
h1, h2, p, dl, dd, figure { margin: 0; }
h1 { font-size: 22px; line-height: 1.25; letter-spacing: -.01em; }
h2 { font-size: 15px; margin-bottom: 10px; }
.soft { color: var(--soft); }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.mono { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: anywhere; }
.tiles { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.tiles div { display: flex; flex-direction: column-reverse; justify-content: flex-end; padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: 12px; }
.tiles dd { font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.3; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: 12px; font-weight: 600; white-space: nowrap; }
.good { color: var(--good); background: var(--good-soft); }
.bad { color: var(--bad); background: var(--bad-soft); }
.chart { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0 8px; color: var(--soft); font-size: 12px; }
.chart svg { display: block; width: 100%; height: 220px; border-bottom: 1px solid var(--line); }
.scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; font-variant-numeric: tabular-nums;
  line-height: 1; }
.ends { grid-column: 2; display: flex; justify-content: space-between; gap: 12px; padding-top: 4px; }
.key { display: inline-flex; align-items: center; gap: 6px; margin-right: 14px; }
.key i { width: 12px; height: 12px; border-radius: 3px; }
.source { fill: var(--source); background: var(--source); }
.delivered { fill: var(--accent); background: var(--accent); }
.grid { stroke: var(--line); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
td:first-child { min-width: 8em; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { min-width: 60px; width: 24%; }
.bar i { display: block; height: 8px; margin-top: 6px; border-radius: 2px; }
.pair { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.stack { display: grid; gap: 16px; align-content: start; grid-template-columns: minmax(0, 1fr); }
.files table { min-width: 620px; }
summary { cursor: pointer; color: var(--accent); margin-top: 10px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 560px) { main { padding: 14px 12px 32px; } .card { padding: 13px 13px; } .chart svg { height: 150px; }
  th, td { padding-right: 8px; } .bar { display: none; } }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
