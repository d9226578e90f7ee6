// The live strip: each commit of the last minute as a mark, one lane per table.

import { count, seconds, words } from "./format.js";
import { h, write } from "./dom.js";

const SPAN_S = 60;
const LANES_MAX = 8;
const LANE_PX = 26;
const LABEL_PX = 170;
const NARROW_PX = 560;

/** A strip; `show(commits, nowMs)` draws it. */
export function strip() {
  const picture = h("svg.strip", { role: "img", "aria-label": "no commits yet" });
  const nothing = h("p.empty", {}, "No commit in the last minute. Rows that are sent to a topic appear here.");
  const summary = h("p.summary");
  const node = h("div", {}, summary, picture, nothing);

  function show(commits, nowMs) {
    const recent = commits.filter((one) => nowMs - Date.parse(one.at) < SPAN_S * 1000);
    const rows = recent.reduce((sum, one) => sum + one.rows, 0);
    const resolved = recent.filter((one) => one.outcome === "resolved").length;
    const took = recent.length ? recent.reduce((sum, one) => sum + one.milliseconds, 0) / recent.length / 1000 : null;
    const text = recent.length
      ? `${words(recent.length, "commit")} of the last minute brought ${words(rows, "row")}; ` +
        `${seconds(took)} on average` + (resolved ? `; ${count(resolved)} resolved after an unknown outcome` : "")
      : "";
    write(summary, text);
    nothing.hidden = recent.length > 0;
    picture.toggleAttribute("hidden", recent.length === 0);
    if (!recent.length) return;
    picture.setAttribute("aria-label", text);
    draw(recent, nowMs);
  }

  function draw(recent, nowMs) {
    const width = Math.max(280, Math.round(node.clientWidth || 800));
    const narrow = width < NARROW_PX;
    const names = [...new Set(recent.map((one) => one.table))].sort();
    const lanes = names.length > LANES_MAX ? [...names.slice(0, LANES_MAX - 1), "other tables"] : names;
    const lane_px = narrow ? LANE_PX + 14 : LANE_PX;
    const left = narrow ? 8 : LABEL_PX;
    const height = lanes.length * lane_px + 20;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    const x = (ms) => width - 10 - ((nowMs - ms) / (SPAN_S * 1000)) * (width - 10 - left);
    const y = (lane) => lane * lane_px + (narrow ? lane_px - 12 : lane_px / 2);
    const parts = [];
    lanes.forEach((name, lane) => {
      parts.push(
        h("line.lane", { x1: left, x2: width - 10, y1: y(lane), y2: y(lane) }),
        h(
          "text.lane-name",
          narrow ? { x: left, y: y(lane) - 12 } : { x: left - 12, y: y(lane) + 4, "text-anchor": "end" },
          name.length > 24 ? `${name.slice(0, 23)}…` : name,
        ),
      );
    });
    for (const second of [60, 30, 0]) {
      const anchor = second === 60 ? "start" : second ? "middle" : "end";
      parts.push(
        h(
          "text.tick",
          { x: second ? x(nowMs - second * 1000) : width - 4, y: height - 4, "text-anchor": anchor },
          second ? `${second} s ago` : "now",
        ),
      );
    }
    for (const one of recent) {
      const lane = Math.max(0, lanes.indexOf(one.table) >= 0 ? lanes.indexOf(one.table) : lanes.length - 1);
      const size = 2.5 + Math.min(6.5, Math.log10(1 + one.rows) * 1.5);
      const place = { cx: x(Date.parse(one.at)).toFixed(1), cy: y(lane), r: size.toFixed(1) };
      parts.push(
        h(
          `circle.commit.${one.outcome}.${one.kind}`,
          place,
          h("title", {}, `${one.table}: ${words(one.rows, "row")}, ${one.outcome}`),
        ),
      );
    }
    picture.replaceChildren(...parts);
  }

  return { node, show };
}
