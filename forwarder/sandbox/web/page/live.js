// The stream of what arrives. It comes back by itself after a pause, and goes on where it was.

const AGAIN = 2000; // milliseconds until a stream that was refused is tried again

export class Stream {
  // `hear` has a function for each kind of message, and `state`, which gets "connecting", "live" or "disconnected".
  constructor(hear) {
    this.hear = hear;
    this.source = null;
    this.timer = 0;
    this.loaded = false; // whether all that there was has come: an empty list means that there is nothing
  }

  open(wanted) {
    this.close();
    this.wanted = wanted;
    this.loaded = false;
    const source = new EventSource(`sandbox/live?${wanted}`);
    this.source = source;
    source.addEventListener("open", () => this.hear.state("live"));
    source.addEventListener("error", () => this.failed(source));
    for (const kind of ["opened", "skipped", "cleared", "event", "request", "rates", "summary"]) {
      source.addEventListener(kind, (message) => this.heard(kind, message));
    }
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  heard(kind, message) {
    if (message.target !== this.source) return;
    this.loaded ||= kind === "summary"; // it comes after the rows that it counts
    try {
      this.hear[kind](JSON.parse(message.data));
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      this.hear.skipped({ events: kind === "event" ? 1 : 0, requests: kind === "request" ? 1 : 0 });
    }
  }

  failed(source) {
    if (source !== this.source) return;
    this.hear.state("disconnected");
    if (source.readyState === EventSource.CLOSED) this.timer = setTimeout(() => this.open(this.wanted), AGAIN);
  }
}
