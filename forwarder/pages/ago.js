// Times as they are seen from now, in one unit, in the words of `telemetry/readable.py`: `now`, `12s ago`, `in 3h`, `5 months ago`.

const UNITS = [["year", 31557600], ["month", 2629800], ["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
let ahead = 0; // how far the server's clock is ahead of this one, in milliseconds

// Let times be seen from the server's clock.
export function follow(milliseconds) {
  ahead = milliseconds;
}

// A time in milliseconds since 1970 in words.
export function ago(time, now = Date.now() + ahead) {
  const seconds = Math.trunc(Math.abs(now - time) / 1000);
  if (!seconds) return "now";
  const [unit, length] = UNITS.find((each) => seconds >= each[1]);
  const amount = Math.trunc(seconds / length);
  const words = unit.length === 1 ? `${amount}${unit}` : `${amount} ${unit}${amount === 1 ? "" : "s"}`;
  return now > time ? `${words} ago` : `in ${words}`;
}

// Bring the times in a part of the page that say how long ago they are up to date.
export function tick(part) {
  for (const each of part.querySelectorAll("time[data-ago]")) {
    const words = ago(Date.parse(each.dateTime));
    if (each.firstChild.data !== words) each.firstChild.data = words; // the text node stays: a selection, too
  }
}
