// One table, or one ingestor: what a click on its name shows.

import { get, part } from "./api.js";
import { ago, bytes, clock, count, known, seconds, typed, UNKNOWN } from "./format.js";
import { h, section, table, write } from "./dom.js";
import { verdict } from "./overview.js";

const PAGE = 25;
const RENEW_MS = 5_000;

/** A list that is loaded page by page, and says what is wrong if it cannot be. */
function paged({ path, key, keyOf, shown, note }) {
  const status = h("p.empty", { role: "status" }, "Loading…");
  const total = h("p.summary");
  const more = h("button.more", { type: "button", hidden: true }, "Show more");
  const again = h("button.more", { type: "button", hidden: true }, "Try again");
  const node = h("div", {}, total, shown.node, status, h("div.tools", {}, more, again));
  shown.node.hidden = true;
  let found = [];
  let next = null;
  let round = 0;

  async function load(after = null) {
    const mine = ++round;
    more.disabled = true;
    again.hidden = true;
    try {
      const page = await get(`${path}?limit=${PAGE}${after ? `&after=${part(after)}` : ""}`);
      if (mine !== round) return;
      found = after ? [...found, ...page[key]] : page[key];
      next = page.next;
      status.hidden = true;
      shown.node.hidden = false;
      shown.show(found, keyOf);
      write(total, note(page, found));
    } catch (error) {
      if (mine !== round) return;
      status.hidden = false;
      const fix = error.message.includes(error.fix) ? "" : error.fix; // some messages end with it
      write(status, `${error.message}. ${fix || (found.length ? "What was loaded before is shown." : "")}`.trim());
      again.hidden = false;
    }
    more.hidden = next === null;
    more.disabled = false;
  }
  more.addEventListener("click", () => load(next));
  again.addEventListener("click", () => load(found.length && next ? next : null));
  // A new snapshot: only who has not read on is brought back to the first page.
  return { node, load, renew: () => found.length <= PAGE && load() };
}

function facts(names) {
  const values = {};
  const node = h(
    "dl.tiles",
    {},
    Object.entries(names).map(([key, name]) => {
      values[key] = h("dd", {}, UNKNOWN);
      return h("div.tile", {}, h("dt", {}, name), values[key]);
    }),
  );
  return { node, values };
}

function head(kind, name) {
  return [
    h("nav.trail", { "aria-label": "Place" }, h("a", { href: "#/" }, "← The lake at a glance")),
    h("h2.subject", { tabindex: -1, id: "subject" }, h("span.kind", {}, kind), name),
  ];
}

/** What can be said of something that does not answer, or is not there. */
const wrong = (error) => `${error.message}.${error.status === 0 ? " What to do: see above." : ""}`;

/** The view of one table. */
export function tableView(name) {
  const base = `/v1/tables/${part(name)}`;
  const top = facts({
    rows: "Rows", fresh: "Freshness", last: "Last commit", files: "Files", snapshots: "Snapshots",
    bytes: "Bytes", metadata: "Metadata", waiting: "To be deleted",
  });
  const fault = h("p.note", { hidden: true, role: "status" });
  const auditLine = h("p");
  const snapshots = paged({
    path: `${base}/snapshots`,
    key: "snapshots",
    keyOf: (one) => one.snapshotId,
    note: (page, found) => `${count(found.length)} of ${count(page.total)} snapshots that are kept`,
    shown: table({
      name: "snapshots",
      caption: "Snapshots, newest first",
      empty: "The table has no snapshot yet.",
      columns: [
        { head: "Snapshot", cell: (one) => h("span.id", {}, one.snapshotId) },
        { head: "At", cell: (one) => clock(one.at) },
        { head: "Operation", cell: (one) => (one.commits > 1 ? `${one.operation ?? UNKNOWN}, ${one.commits} commits` : one.operation ?? UNKNOWN) },
        { head: "Rows added", number: true, cell: (one) => count(one.addedRows) },
        { head: "Rows removed", number: true, cell: (one) => count(one.removedRows) },
        { head: "Files added", number: true, cell: (one) => count(one.addedFiles) },
        { head: "Files removed", number: true, cell: (one) => count(one.removedFiles) },
        { head: "Rows", number: true, cell: (one) => count(one.rows) },
        { head: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
        {
          head: "Branches and tags",
          cell: (one) => {
            const names = [...one.refs];
            if (!one.inHistory) names.push("not in the history of main");
            return names.join(", ") || "";
          },
        },
      ],
    }),
  });
  const files = paged({
    path: `${base}/files`,
    key: "files",
    keyOf: (one) => one.path,
    note: (page, found) =>
      page.snapshotId === null ? "" : `${count(found.length)} of ${count(page.total)} files of snapshot ${page.snapshotId}`,
    shown: table({
      name: "files",
      caption: "Files of the current snapshot",
      empty: "The current snapshot has no file.",
      columns: [
        { head: "File", cell: (one) => h("span.id", {}, one.path) },
        { head: "Kind", cell: (one) => (one.deletes ? "deletes" : "data") },
        { head: "Rows", number: true, cell: (one) => count(one.rows) },
        { head: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
        { head: "Added by snapshot", cell: (one) => h("span.id", {}, one.addedBy ?? UNKNOWN) },
      ],
    }),
  });
  const objects = objectsOf(base);
  const node = h(
    "div.detail",
    {},
    ...head("Table", name),
    fault,
    top.node,
    section("audit-card", "Audit", auditLine),
    section("history-card", "History", snapshots.node),
    section("files-card", "Files", files.node),
    section("objects-card", "Objects", objects.node),
  );
  let headId;
  let renewedMs = performance.now();
  // The lists are asked for when it is known what they will show at least: a commit in between is seen below.
  get(base)
    .then((one) => (headId = one.snapshotId), () => {})
    .then(() => {
      snapshots.load();
      files.load();
      objects.load();
    });
  let asking = false;

  async function show(lake) {
    if (asking) return;
    asking = true;
    try {
      const one = await get(base);
      fault.hidden = true;
      write(top.values.rows, count(one.rows));
      write(top.values.fresh, seconds(one.freshnessSeconds));
      write(top.values.last, ago(one.lastCommitAt, lake.nowMs));
      write(top.values.files, one.deleteFiles ? `${count(one.files)} + ${count(one.deleteFiles)} deletes` : count(one.files));
      write(top.values.snapshots, count(one.snapshots));
      write(top.values.bytes, bytes(one.bytes));
      write(top.values.metadata, bytes(one.metadataBytes));
      write(top.values.waiting, bytes(one.storage.waitingBytes));
      showAudit(one.audit, lake.nowMs);
      // These ask the catalog and the store: not at every commit of a table that has many.
      if (headId !== one.snapshotId && performance.now() - renewedMs >= RENEW_MS) {
        headId = one.snapshotId;
        renewedMs = performance.now();
        snapshots.renew();
        files.renew();
        objects.load();
      }
    } catch (error) {
      fault.hidden = false;
      write(fault, wrong(error));
    } finally {
      asking = false;
    }
  }

  function showAudit(audit, nowMs) {
    const made = audit
      ? [
          verdict(audit),
          ` ${ago(audit.at, nowMs)}: ${count(audit.missing)} lost, ${count(audit.doubled)} doubled, ` +
            `${count(audit.files)} files, in ${seconds(audit.seconds)}.`,
          ...audit.findings.map((one) => h("span.finding", {}, one)),
        ]
      : ["Not audited yet: audits are made of tables that ingestors fill, every 15 minutes. ", h("code", {}, `scripts/tarn audit ${typed(name)}`), " makes one now."];
    const text = made.map((one) => (one instanceof Node ? one.outerHTML : one)).join("");
    if (auditLine.dataset.shown !== text) {
      auditLine.replaceChildren(...made);
      auditLine.dataset.shown = text;
    }
  }

  return { node, show, title: name };
}

/** The objects that make a table; filled in place, so that focus and scroll position stay. */
function objectsOf(base) {
  const columns = table({
    name: "columns",
    caption: "Columns of the current schema",
    empty: "The schema has no column.",
    columns: [
      { head: "Column", cell: (one) => one.name },
      { head: "Type", cell: (one) => h("span.id", {}, one.type) },
      { head: "Required", cell: (one) => (one.required ? "required" : "optional") },
      { head: "Id", number: true, cell: (one) => count(one.id) },
    ],
  });
  const manifests = table({
    name: "manifests",
    caption: "Manifests of the current snapshot",
    empty: "The table has no snapshot, so no manifest.",
    columns: [
      { head: "Manifest", cell: (one) => h("span.id", {}, one.path) },
      { head: "Bytes", number: true, cell: (one) => bytes(one.bytes) },
      { head: "Added by snapshot", cell: (one) => h("span.id", {}, one.addedBy ?? UNKNOWN) },
    ],
  });
  const values = {};
  const list = h(
    "dl.facts",
    {},
    [
      "Folder", "Metadata file", "Earlier metadata files", "Manifest list", "Format", "Table id", "Partitioning", "Branches and tags",
    ].map((term) => {
      values[term] = h("dd");
      return h("div", {}, h("dt", {}, term), values[term]);
    }),
  );
  const status = h("p.empty", { role: "status" }, "Loading…");
  const again = h("button.more", { type: "button", hidden: true, on: { click: load } }, "Try again");
  const shown = [list, manifests.node, columns.node];
  const node = h("div", {}, shown, status, again);
  for (const one of shown) one.hidden = true;

  let round = 0;

  async function load() {
    const mine = ++round;
    let page;
    try {
      page = await get(`${base}/metadata`);
      if (mine !== round) return;
    } catch (error) {
      if (mine !== round) return;
      status.hidden = false;
      write(status, wrong(error));
      again.hidden = false;
      return;
    }
    status.hidden = true;
    again.hidden = true;
    for (const one of shown) one.hidden = false;
    columns.call(`Columns of the current schema${page.columnsTotal > page.columns.length ? `, the first ${page.columns.length}` : ""}`);
    columns.show(page.columns, (one) => one.id);
    manifests.call(`Manifests of the current snapshot: ${count(page.manifestsTotal)}`);
    manifests.show(page.manifests.slice(0, PAGE), (one) => one.path);
    const parts = page.partitioning.map((one) => `${one.transform}(${one.column ?? "a dropped column"})`);
    const said = {
      Folder: page.location,
      "Metadata file": page.path ?? UNKNOWN,
      "Earlier metadata files": count(page.earlierTotal),
      "Manifest list": page.manifestList ?? "none yet",
      Format: `Iceberg ${page.formatVersion}`,
      "Table id": page.uuid,
      Partitioning: parts.join(", ") || "none",
      "Branches and tags": page.refs.map((one) => `${one.name} (${one.kind})`).join(", ") || "none",
    };
    for (const [term, text] of Object.entries(said)) write(values[term], text);
  }

  return { node, load };
}

/** The view of one ingestor. */
export function ingestorView(name) {
  const top = facts({
    state: "State", lag: "Lag", rows: "Rows", commits: "Commits", snapshots: "Snapshots", conflicts: "Conflicts",
    unknowns: "Unknown outcomes", resolved: "Resolved", bad: "Bad records",
  });
  const fault = h("p.note", { hidden: true, role: "status" });
  const about = h("p.summary");
  const readers = table({
    name: "readers",
    caption: "Readers",
    empty: "It has no reader now.",
    columns: [
      { head: "Reader", cell: (one) => one.name },
      { head: "State", cell: (one) => (one.reason ? `${one.state}: ${one.reason}` : one.state) },
      { head: "Message", cell: (one) => one.message ?? "" },
      { head: "Rows", number: true, cell: (one) => count(one.rows) },
      { head: "Commits", number: true, cell: (one) => count(one.commits) },
    ],
  });
  const partitions = table({
    name: "partitions",
    caption: "Partitions of its topic",
    empty: "No partition is known yet.",
    columns: [
      { head: "Partition", cell: (one) => String(one.partition) },
      { head: "In the table up to", number: true, cell: (one) => count(one.committedOffset) },
      { head: "End of the log", number: true, cell: (one) => count(one.endOffset) },
      { head: "Lag", number: true, cell: (one) => count(one.lag) },
    ],
  });
  const node = h(
    "div.detail",
    {},
    ...head("Ingestor", name),
    fault,
    about,
    top.node,
    section("readers-card", "Readers", readers.node),
    section("partitions-card", "Partitions", partitions.node),
  );

  let asking = false;

  async function show(lake) {
    if (asking) return;
    asking = true;
    try {
      const one = await get(`/v1/ingestors/${part(name)}`);
      fault.hidden = !one.message;
      if (one.message) write(fault, one.message);
      write(
        about,
        `${one.topic ? `Reads ${one.topic}` : "Reads no topic yet"}${one.table ? ` into ${one.table}` : ""}. ` +
          (one.lastCommit ? `Last commit ${ago(one.lastCommit.at, lake.nowMs)}.` : "No commit since ingest started.") +
          (one.eventTime && known(one.eventTime.watermark) ? ` Events up to ${clock(one.eventTime.watermark)}.` : ""),
      );
      write(top.values.state, one.reason ? `${one.state}: ${one.reason}` : one.state);
      write(top.values.lag, count(one.lag));
      for (const key of ["rows", "commits", "snapshots", "conflicts", "unknowns"]) write(top.values[key], count(one[key]));
      write(top.values.resolved, count(one.unknownsResolved));
      write(top.values.bad, count(one.badRecords));
      readers.show(one.readers, (reader) => reader.name);
      partitions.show(one.partitions, (partition) => partition.partition);
    } catch (error) {
      fault.hidden = false;
      write(fault, wrong(error));
    } finally {
      asking = false;
    }
  }
  return { node, show, title: name };
}
