// Faults by hand, where the server takes them: what was struck, how it was resolved, and the audit beside it.

import { get, part } from "./api.js";
import { clock, count, known, seconds, words } from "./format.js";
import { h, section, write } from "./dom.js";

const KINDS = {
  "drop-reply": ["Drop the next reply", "the catalog applies the next commit, and its answer is dropped"],
  "kill-writer": ["Kill a writer", "a writer ends in the middle of its batch, without a word"],
};
const STATES = {
  waiting: "waits for the next commit",
  struck: "struck; waits until it is healed",
  auditing: "healed; the audit reads the table",
  done: "over",
  failed: "not finished",
};

/** The section; it is hidden until the server says that faults may be made. */
export function faultsSection(hurry) {
  const choice = h("select", { id: "victim" });
  const said = h("p.empty", { role: "status" });
  const list = h("ol.strikes");
  const buttons = Object.entries(KINDS).map(([kind, [name, title]]) =>
    h("button.strike", { type: "button", title, on: { click: () => strike(kind) } }, name),
  );
  const node = section(
    "faults-card",
    "Faults by hand",
    h("p.summary", {}, "Break something on purpose, and see that no row is lost or doubled. Each strike ends with an audit of the table."),
    h("div.tools", {}, h("label", { for: "victim" }, "Ingestor "), choice, buttons),
    said,
    list,
  );
  node.hidden = true;
  let token = null;
  let chosen = null;
  choice.addEventListener("change", () => (chosen = choice.value));
  let latest = null;
  let drawn = "";

  async function strike(kind) {
    write(said, "");
    chosen = choice.value;
    try {
      await get(`/v1/faults/${kind}?ingestor=${part(choice.value)}`, {
        method: "POST",
        headers: { "X-Tarn-Fault-Token": token ?? "" },
      });
    } catch (error) {
      write(said, `${error.message}.`);
    }
    // What became of it comes with the next poll, also if nobody answers now.
    hurry();
  }

  /** Ask for the strikes; whether one is under way. */
  async function poll() {
    latest = await get("/v1/faults");
    token = latest.token;
    draw();
    return latest.running;
  }

  function show(lake) {
    node.hidden = !lake.page.faults;
    const running = lake.ingestors.ingestors.filter((one) => one.state === "Running");
    const names = running.map((one) => one.name);
    if (names.join("\n") !== [...choice.options].map((one) => one.value).join("\n")) {
      choice.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    }
    // One that was chosen stays chosen while its writer is away; before that, the busiest one is proposed.
    const busiest = [...running].sort((a, b) => (b.rowRate ?? 0) - (a.rowRate ?? 0))[0]?.name;
    const wanted = chosen ?? busiest;
    if (names.includes(wanted) && choice.value !== wanted) choice.value = wanted;
    draw();
  }

  function draw() {
    const running = latest?.running ?? false;
    for (const button of buttons) button.disabled = running || !choice.options.length || token === null;
    const strikes = latest?.strikes ?? [];
    const text = JSON.stringify(strikes);
    if (text === drawn) return;
    drawn = text;
    list.replaceChildren(...strikes.map(item));
    const newest = strikes[0];
    if (newest) write(said, announce(newest));
  }

  return { node, show, poll };
}

function announce(one) {
  const name = KINDS[one.kind]?.[0] ?? one.kind;
  if (one.state === "done" && one.audit) {
    return `${name}: healed in ${seconds(one.healSeconds)}; audit: ${count(one.audit.missing)} lost, ${count(one.audit.doubled)} doubled.`;
  }
  return `${name}: ${STATES[one.state] ?? one.state}${one.reason ? `: ${one.reason}` : ""}.`;
}

function item(one) {
  const audit = one.audit;
  const steps = [
    h("li", {}, h("b", {}, "Struck "), one.struckAt ? `${clock(one.struckAt)}: ${one.what}` : STATES.waiting),
    one.healedAt && h("li", {}, h("b", {}, `Healed in ${seconds(one.healSeconds)} `), one.resolution),
    audit &&
      h(
        `li.audit.${audit.whole ? "good" : "bad"}`,
        {},
        h("b", {}, "Audit "),
        `${count(audit.missing)} lost, ${count(audit.doubled)} doubled, ${count(audit.unknown)} unknown; ` +
          `${words(audit.accounted, "offset")} accounted for in ${words(audit.files, "file")}, ${seconds(audit.seconds)}`,
        audit.findings.map((text) => h("span.finding", {}, text)),
      ),
    one.reason && h("li.bad", {}, h("b", {}, "Not finished "), one.reason),
  ];
  return h(
    `li.struck.${one.state}`,
    { "data-id": one.id, "data-state": one.state },
    h(
      "p",
      {},
      h("strong", {}, KINDS[one.kind]?.[0] ?? one.kind),
      ` · ${one.ingestor} → ${one.table}`,
      known(one.commitId) && h("span.id", {}, ` commit ${one.commitId}`),
    ),
    h("ul", {}, steps.filter(Boolean)),
  );
}
