// Live windows and alerts of the service stream, which is a part of the full profile's demo.

import { get } from "./api.js";
import { clock, count, known, UNKNOWN } from "./format.js";
import { h, section, table, write } from "./dom.js";

const EVERY_MS = 2_000;
const AGAIN_MS = 30_000;
const ROUTES_MAX = 10;
const ALERTS_MAX = 3;

const minutes = (value) => (known(value) ? `${value.toFixed(1)} min` : UNKNOWN);
const place = (code, name) => (name ? `${name} (${code})` : code);

/** Asks the service, seldom while it does not answer. */
export class Stream {
  #dueMs = 0;
  #asking = false;
  url = null;
  windows = null;
  alerts = null;
  fault = "";

  async poll(nowMs) {
    if (!this.url || this.#asking || nowMs < this.#dueMs) return;
    this.#asking = true;
    try {
      const [windows, alerts] = await Promise.all(
        ["/v1/windows", "/v1/alerts"].map((path) => get(path, { base: this.url })),
      );
      if (!Array.isArray(windows.routes) || !Array.isArray(alerts.alerts)) throw new Error("no windows, but something else");
      this.windows = windows;
      this.alerts = alerts.alerts;
      this.fault = "";
      this.#dueMs = nowMs + EVERY_MS;
    } catch (error) {
      this.fault = error.message;
      this.windows = null;
      this.alerts = null;
      this.#dueMs = nowMs + AGAIN_MS;
    } finally {
      this.#asking = false;
    }
  }
}

/** The section; `show(stream)` fills it. */
export function windowsSection() {
  const quiet = h("p.empty");
  const under = h("p.summary");
  const routes = table({
    name: "windows",
    caption: `Delays by route over the newest windows, the ${ROUTES_MAX} routes with the most flights`,
    empty: "No flight is in a window yet. The demo's replay fills them.",
    columns: [
      { head: "Route", cell: (one) => `${place(one.origin, one.originName)} → ${place(one.destination, one.destinationName)}` },
      { head: "Flights", number: true, cell: (one) => count(one.flights) },
      { head: "Departure", number: true, title: "mean delay at departure", cell: (one) => minutes(one.meanDepartureDelayMinutes) },
      { head: "Arrival", number: true, title: "mean delay at arrival", cell: (one) => minutes(one.meanArrivalDelayMinutes) },
      { head: "Cancelled", number: true, cell: (one) => count(one.cancelled) },
    ],
  });
  const alerts = h("ul.alerts", { "aria-live": "polite", "aria-label": "Alerts of the stream" });
  const live = h("div", {}, under, alerts, routes.node);
  const node = section("windows-card", "Live windows", quiet, live);
  let shown = "";

  function show(stream) {
    const there = stream.windows !== null;
    live.hidden = !there;
    quiet.hidden = there;
    if (!there) {
      write(
        quiet,
        !stream.url
          ? "This lake has no service stream: it is a part of the full profile (scripts/up without --small)."
          : stream.fault
            ? `The service stream at ${stream.url} gives ${stream.fault}. It is a part of the full profile; scripts/tarn status says how it is.`
            : "Loading…",
      );
      return;
    }
    const { windowSeconds, watermark, lateDropped, routes: list } = stream.windows;
    write(
      under,
      `Windows of ${count(windowSeconds / 60)} min of flying time; complete up to ${clock(watermark)}; ` +
        `${count(lateDropped)} late events dropped`,
    );
    const busiest = [...list].sort((a, b) => b.flights - a.flights).slice(0, ROUTES_MAX);
    routes.show(busiest, (one) => `${one.origin}-${one.destination}-${one.windowStart}`);
    const last = (stream.alerts ?? []).slice(0, ALERTS_MAX); // the newest come first
    const ids = last.map((one) => one.id).join("\n");
    if (ids !== shown) {
      alerts.replaceChildren(...last.map((one) => h("li", {}, h("strong", {}, clock(one.at)), ` ${one.message}`)));
      shown = ids;
    }
  }

  return { node, show };
}
