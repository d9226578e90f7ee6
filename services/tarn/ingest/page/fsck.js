// What fsck found last in the whole lake, how old that is, and what to run next.

import { ago, bytes, count, known, seconds, words } from "./format.js";
import { h, section, table, write } from "./dom.js";

const code = (text) => h("code", {}, text);

/** The verdict: a tone and its words, without an age, which changes while the verdict does not. */
function verdict(fsck) {
  const { result } = fsck;
  if (fsck.verdict === "unknown") return ["warn", "Unknown: what fsck found cannot be read"];
  if (fsck.verdict === "never") return ["warn", "Never run on this lake"];
  if (!result.clean) return ["bad", `Damaged: ${words(result.damage, "finding")}${result.old ? ", by an old look" : ""}`];
  return result.old ? ["warn", "Clean, by an old look"] : ["good", "Clean"];
}

/** What was looked at, and when. */
function looked({ result, lookedAt }, nowMs) {
  if (!result) return lookedAt === null ? "Nothing has been read yet." : "";
  const notes = result.notes ? `; ${words(result.notes, "note")}` : "";
  const orphans = result.orphans ? `; ${words(result.orphans, "file")} of ${bytes(result.orphanBytes)} that nothing names` : "";
  return (
    `${ago(result.beganAt, nowMs)}: ${words(result.tables, "table")}, ${words(result.snapshots, "snapshot")}, ` +
    `${words(result.files, "file")} of ${bytes(result.bytes)}, in ${seconds(result.seconds)}${notes}${orphans}.`
  );
}

/** A run that has no result, or not yet. */
function running({ run }, nowMs) {
  if (!run) return "";
  const began = ago(run.beganAt, nowMs);
  const last = run.progress ? ` It said last: ${run.progress}.` : "";
  if (run.state === "running") return `A run is under way, begun ${began}.${last}`;
  if (run.state === "failed") return `A run begun ${began} has no result, and says nothing about the lake: ${run.reason ?? "no reason is known"}.`;
  return `A run begun ${began} was interrupted, and says nothing about the lake.${last}`;
}

/** The section; `show(fsck, nowMs)` fills it. */
export function fsckSection() {
  const mark = h("span.dot.warn", { role: "status" }, "Loading…");
  const when = h("span");
  const run = h("p.note", { hidden: true });
  const fault = h("p.note.finding", { hidden: true });
  const next = h("span");
  const kinds = h("p.summary");
  const findings = table({
    name: "fsck",
    caption: "Findings, damage first",
    empty: "",
    columns: [
      { head: "Where", cell: (one) => one.where },
      { head: "Severity", cell: (one) => h(`span.dot.${one.severity === "damage" ? "bad" : "info"}`, {}, one.severity) },
      { head: "Finding", cell: (one) => `${one.kind}: ${one.what}` },
      { head: "What to do", cell: (one) => one.fix },
    ],
  });
  const cut = h("p.note", { hidden: true }, "These are the first ones; ", code("scripts/tarn fsck"), " shows all.");
  const node = section(
    "fsck-card",
    "Integrity: fsck",
    h("p.summary", {}, "An integrity check of every table, manifest and file of the lake. Nothing runs it by itself: ", code("scripts/tarn fsck"), "."),
    h("p.fsck", {}, mark, h("span", {}, ", "), when),
    run,
    fault,
    kinds,
    findings.node,
    cut,
    h("p.note", {}, "Next: ", next, "."),
  );
  let tone = "warn";

  function show(fsck, nowMs) {
    const [wanted, text] = verdict(fsck);
    if (wanted !== tone) {
      mark.classList.replace(tone, wanted);
      tone = wanted;
    }
    write(mark, text);
    write(when, looked(fsck, nowMs));
    const going = running(fsck, nowMs);
    run.hidden = !going;
    write(run, going);
    fault.hidden = !fsck.fault;
    write(fault, fsck.fault ?? "");
    const { result } = fsck;
    write(kinds, result ? result.kinds.map((one) => `${one.kind} (${one.severity}): ${count(one.count)}`).join("; ") : "");
    const found = result?.findings ?? [];
    findings.node.hidden = found.length === 0;
    findings.show(found, (one) => `${one.severity}\n${one.kind}\n${one.where}\n${one.what}`);
    cut.hidden = !known(result) || found.length === result.damage + result.notes;
    write(next, fsck.next);
  }

  return { node, show };
}
