// The overview: all sections of the first view, filled from what the polls brought.

import { ago, bytes, clock, count, known, rate, seconds, short, UNKNOWN } from "./format.js";
import { h, section, table, write } from "./dom.js";
import { fsckSection } from "./fsck.js";
import { strip } from "./strip.js";
import { windowsSection } from "./stream.js";

const COMMITS_SHOWN = 8;
const TABLES_SHOWN = 100;
const BAD_STATES = new Set(["Stopped", "Invalid", "Failed"]);

const link = (kind, name) => h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, name);
const dot = (tone, text) => h(`span.dot.${tone}`, {}, text);

function tiles() {
  const names = {
    rows: ["Rows", "in the current snapshots of all tables"],
    rate: ["Rows/s", "committed by the ingestors, over the last 10 s"],
    commits: ["Commits/s", "of the ingestors, over the last 10 s"],
    fresh: ["Freshness", "age of the oldest record of the last batch when it was committed: the slowest running ingestor"],
    lag: ["Lag", "messages in the log that are not in a table yet"],
    bytes: ["Bytes", "of the files of the current snapshots"],
    files: ["Files", "of the current snapshots"],
    snapshots: ["Snapshots", "kept by all tables"],
  };
  const values = {};
  const node = h(
    "dl.tiles",
    {},
    Object.entries(names).map(([key, [name, title]]) => {
      values[key] = h("dd", {}, UNKNOWN);
      return h("div.tile", { title }, h("dt", {}, name), values[key]);
    }),
  );
  return { node, values };
}

const sum = (list, of) => {
  const values = list.map(of).filter(known);
  return values.length ? values.reduce((all, one) => all + one, 0) : null;
};

/** The lag of all ingestors. It is not less than what is known of it, and what is not known may be much. */
function lagOf(ingestors) {
  const whole = ingestors.every((one) => known(one.lag));
  const least = sum(ingestors, (one) => one.lag);
  if (whole) return count(least);
  return least ? `at least ${count(least)}` : UNKNOWN;
}

/** The first view; `show(lake)` fills it. */
export function overview(faults) {
  const top = tiles();
  const commits = strip();
  const missed = h("p.note", { hidden: true }, "Some commits were made between two polls and are not shown; the tables have them.");
  const last = table({
    name: "commits",
    caption: "The last commits of the ingestors",
    empty: "No ingestor has committed since ingest started.",
    columns: [
      { head: "At", cell: (one) => clock(one.at) },
      { head: "Table", cell: (one) => link("tables", one.table) },
      { head: "Kind", cell: (one) => one.kind },
      { head: "Rows", number: true, cell: (one) => count(one.kind === "retirement" ? one.rowsRemoved : one.rows) },
      { head: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
      { head: "Took", number: true, title: "from decoding to the outcome", cell: (one) => seconds(one.milliseconds / 1000) },
      { head: "Age", number: true, title: "of its oldest record by then", cell: (one) => seconds(one.oldestAgeSeconds) },
      {
        head: "Outcome",
        cell: (one) => dot(one.outcome === "committed" ? "good" : "info", one.attempts > 1 ? `${one.outcome}, ${one.attempts} requests` : one.outcome),
      },
    ],
  });

  const filter = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false" });
  const cut = h("p.note", { hidden: true });
  const tables = table({
    name: "tables",
    caption: "Tables of the lake; a name leads to its history and objects",
    empty: "No table is there yet. docs/first-stream.md leads from a spec to a query; scripts/tarn canary sends one row.",
    columns: [
      { head: "Table", cell: (one) => link("tables", one.name) },
      { head: "Rows", number: true, cell: (one) => count(one.rows) },
      { head: "Freshness", number: true, title: "age of the oldest record of the last batch when it was committed", cell: (one) => seconds(one.freshnessSeconds) },
      { head: "Last commit", number: true, cell: (one) => ago(one.lastCommitAt, one.nowMs) },
      { head: "Files", number: true, cell: (one) => (one.deleteFiles ? `${count(one.files)} + ${count(one.deleteFiles)} deletes` : count(one.files)) },
      { head: "Snapshots", number: true, cell: (one) => count(one.snapshots) },
      { head: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
      { head: "Written by", cell: (one) => (one.ingestors.length ? one.ingestors.join(", ") : "others") },
    ],
  });

  const ingestors = table({
    name: "ingestors",
    caption: "Ingestors, with counters since their writers began",
    empty: "No ingestor is declared. scripts/tarn apply -f SPEC declares one (docs/ingestors.md).",
    columns: [
      { head: "Ingestor", cell: (one) => link("ingestors", one.name) },
      {
        head: "State",
        cell: (one) => dot(one.state === "Running" ? "good" : BAD_STATES.has(one.state) ? "bad" : "warn", one.reason ? `${one.state}: ${one.reason}` : one.state),
      },
      { head: "Lag", number: true, title: "messages between the table and the end of the log", cell: (one) => count(one.lag) },
      { head: "Rows/s", number: true, cell: (one) => rate(one.rowRate) },
      { head: "Commits/s", number: true, cell: (one) => rate(one.commitRate) },
      { head: "Rows", number: true, cell: (one) => short(one.rows) },
      { head: "Conflicts", number: true, title: "commit requests that another writer's commit refused", cell: (one) => count(one.conflicts) },
      { head: "Unknown", number: true, title: "commit requests without an answer, and how many of them were resolved", cell: (one) => (one.unknowns ? `${count(one.unknowns)}, ${count(one.unknownsResolved)} resolved` : "0") },
      { head: "Bad", number: true, title: "records that went to the dead letters", cell: (one) => count(one.badRecords) },
      { head: "Readers", number: true, title: "running, of those wanted", cell: (one) => `${count(one.readyReplicas)}/${count(one.replicas)}` },
    ],
  });

  const windows = windowsSection();
  const services = table({
    name: "services",
    caption: "What ingest needs, as it was looked at last",
    empty: "Nothing was looked at yet.",
    columns: [
      { head: "Service", cell: (one) => one.name },
      { head: "State", cell: (one) => dot(one.ok ? "good" : "bad", one.ok ? "answers" : "fails") },
      { head: "Message", cell: (one) => one.message },
      { head: "Looked at", number: true, cell: (one) => ago(one.lookedAt, one.nowMs) },
    ],
  });
  const audits = table({
    name: "audits",
    caption: "Audits: every offset of every stream accounted for, from the rows themselves",
    empty: "No audit has ended yet. The first one is made 15 minutes after the start; scripts/tarn audit TABLE makes one now.",
    columns: [
      { head: "Table", cell: (one) => link("tables", one.table) },
      { head: "Result", cell: (one) => verdict(one) },
      { head: "Lost", number: true, title: "offsets without row and dead letter", cell: (one) => count(one.missing) },
      { head: "Doubled", number: true, title: "offsets with more than one row", cell: (one) => count(one.doubled) },
      { head: "Files", number: true, cell: (one) => count(one.files) },
      { head: "At", number: true, cell: (one) => ago(one.at, one.nowMs) },
    ],
  });
  const looked = h("p.note", { hidden: true });
  const fsck = fsckSection();

  const node = h(
    "div.overview",
    {},
    top.node,
    section("strip-card", "Commits", commits.node, missed, last.node),
    section("tables-card", "Tables", h("div.tools", {}, h("label", { for: "filter" }, "Filter by name "), filter), looked, tables.node, cut),
    section("ingestors-card", "Ingestors", ingestors.node),
    faults.node,
    windows.node,
    section("services-card", "Services", services.node),
    section("audits-card", "Audits", audits.node),
    fsck.node,
  );
  let latest = null;
  filter.addEventListener("input", () => latest && showTables(latest));

  function showTables(lake) {
    const wanted = filter.value.trim().toLowerCase();
    const found = lake.tables.tables.filter((one) => one.name.toLowerCase().includes(wanted));
    const some = found.slice(0, TABLES_SHOWN).map((one) => ({ ...one, nowMs: lake.nowMs }));
    tables.show(some, (one) => one.name);
    const hidden = found.length > some.length || lake.tables.next !== null;
    cut.hidden = !hidden;
    if (hidden) write(cut, `${count(some.length)} of ${count(lake.tables.total)} tables are shown; filter by name to see others.`);
    looked.hidden = !lake.tables.fault;
    if (lake.tables.fault) {
      write(looked, `Figures of tables that no ingestor writes are of ${ago(lake.tables.lookedAt, lake.nowMs)}: ${lake.tables.fault}`);
    }
  }

  function show(lake) {
    latest = lake;
    const every = lake.tables.tables;
    const running = lake.ingestors.ingestors.filter((one) => one.state === "Running");
    const recent = running.filter((one) => one.lastCommit && lake.nowMs - Date.parse(one.lastCommit.at) < 60_000);
    const ages = recent.map((one) => one.lastCommit.freshnessSeconds).filter(known);
    write(top.values.rows, count(sum(every, (one) => one.rows)));
    write(top.values.rate, rate(sum(lake.ingestors.ingestors, (one) => one.rowRate)));
    write(top.values.commits, rate(sum(lake.ingestors.ingestors, (one) => one.commitRate)));
    write(top.values.fresh, ages.length ? seconds(Math.max(...ages)) : UNKNOWN);
    write(top.values.lag, lagOf(lake.ingestors.ingestors));
    write(top.values.bytes, bytes(sum(every, (one) => one.bytes)));
    write(top.values.files, count(sum(every, (one) => one.files)));
    write(top.values.snapshots, count(sum(every, (one) => one.snapshots)));
    commits.show(lake.commits, lake.nowMs);
    missed.hidden = !lake.missed;
    last.show(lake.commits.slice(-COMMITS_SHOWN).reverse(), (one) => one.number);
    showTables(lake);
    ingestors.show(lake.ingestors.ingestors, (one) => one.name);
    services.show(lake.services.services.map((one) => ({ ...one, nowMs: lake.nowMs })), (one) => one.name);
    audits.show(lake.audits.audits.map((one) => ({ ...one, nowMs: lake.nowMs })), (one) => one.table);
    fsck.show(lake.fsck, lake.nowMs);
    faults.show(lake);
    windows.show(lake.stream);
  }

  return { node, show };
}

/** What an audit found, in a word. */
export function verdict(one) {
  if (one.reason) return dot("warn", `not finished: ${one.reason}`);
  if (one.whole === null) return dot("warn", "unknown");
  return one.whole ? dot("good", "whole") : dot("bad", `damaged: ${one.findings[0] ?? "see scripts/tarn audit"}`);
}
