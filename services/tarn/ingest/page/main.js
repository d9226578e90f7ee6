// Starts the page: polls the status API, knows whether what is shown is new, and shows the view of the address.

import { all, get } from "./api.js";
import { clock, seconds } from "./format.js";
import { h, write } from "./dom.js";
import { faultsSection } from "./faults.js";
import { overview } from "./overview.js";
import { ingestorView, tableView } from "./detail.js";
import { Rates } from "./rates.js";
import { Stream } from "./stream.js";

const EVERY_MS = 2_000;
const HURRY_MS = 700;
const STALE_MS = 7_000;
const COMMITS_KEPT = 2_000;

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const $ = (id) => document.getElementById(id);
const main = $("main");
const state = $("state");
const notice = $("notice");
const noticeText = h("span");
const noticeAge = h("span", { "aria-live": "off" });
notice.append(noticeText, " ", noticeAge);

const lake = { commits: [], since: null, missed: false, stream: new Stream(), seenMs: null, nowMs: Date.now() };
const rates = new Rates();
let paused = false;
let polling = false;
let again = false;
let timer = 0;
let fault = null;
let broken = null;
let view = null;
const faults = faultsSection(() => schedule(0));
const first = { ...overview(faults), title: "" };

// ---- what is known ----

async function poll() {
  if (polling) {
    again = true;
    return;
  }
  polling = true;
  let running = false;
  try {
    const commitsPath = lake.since === null ? "/v1/commits?limit=1000" : `/v1/commits?limit=1000&since=${lake.since}`;
    const [index, page, ingestors, tables, commits, services, audits, fsck] = await Promise.all([
      get("/v1"),
      get("/v1/page"),
      all("/v1/ingestors", "ingestors"),
      all("/v1/tables", "tables"),
      get(commitsPath),
      get("/v1/services"),
      all("/v1/audits", "audits"),
      get("/v1/fsck"),
    ]);
    if (page.faults) running = await faults.poll();
    Object.assign(lake, { index, page, tables, services, audits, fsck });
    takeIngestors(ingestors);
    takeCommits(commits);
    lake.stream.url = page.streamUrl;
    lake.nowMs = Date.parse(index.at);
    lake.seenMs = Date.now();
    fault = null;
  } catch (error) {
    fault = error;
  }
  // It is another service: what it takes must not hold up the rest.
  lake.stream.poll(Date.now()).then(showFirst);
  polling = false;
  if (fault === null) safely(showView);
  tick();
  schedule(again ? 0 : running ? HURRY_MS : EVERY_MS);
  again = false;
}

function takeIngestors(answer) {
  const atMs = Date.parse(answer.at);
  const names = new Set();
  for (const one of answer.ingestors) {
    names.add(`rows ${one.name}`).add(`commits ${one.name}`);
    one.rowRate = rates.take(`rows ${one.name}`, atMs, one.rows);
    one.commitRate = rates.take(`commits ${one.name}`, atMs, one.commits);
  }
  rates.keep(names);
  lake.ingestors = answer;
}

function takeCommits(answer) {
  if (lake.since !== null && answer.missed) lake.missed = true;
  const held = new Set(lake.commits.map((one) => one.number));
  lake.commits.push(...answer.commits.filter((one) => !held.has(one.number)));
  lake.commits.splice(0, lake.commits.length - COMMITS_KEPT);
  lake.since = answer.next;
}

/** Show something; what breaks is said, and the page goes on. */
function safely(show) {
  try {
    show();
    broken = null;
  } catch (error) {
    broken = error;
    console.error(error);
  }
}

function showFirst() {
  if (lake.seenMs !== null && view === first) safely(() => first.show(lake));
}

function schedule(waitMs) {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(poll, waitMs);
}

// ---- what is said of it ----

function tick() {
  const age = lake.seenMs === null ? null : Date.now() - lake.seenMs;
  const stale = age !== null && age > STALE_MS;
  document.body.classList.toggle("stale", stale || (fault !== null && age !== null));
  if (fault !== null) {
    say("bad", fault.status ? `Error ${fault.status}` : "No answer");
    const what = fault.status
      ? `Ingest answers with an error: ${fault.message}. ${fault.fix}`
      : `Ingest does not answer at ${location.origin} (${fault.message}). What to do: scripts/tarn status says how the services are, ` +
        "scripts/up starts them; scripts/doctor finds what is wrong. This page goes on trying.";
    warn(what, age === null ? "Nothing was seen yet." : `Last seen ${seconds(age / 1000)} ago.`);
  } else if (broken !== null) {
    say("bad", "Defect");
    warn(
      `This page cannot show what ingest answers (${broken.message}): a defect of Tarn. What to do: load the page again; ` +
        "scripts/tarn status shows the same figures. This page goes on trying.",
      "",
    );
  } else if (paused) {
    say("warn", "Paused");
    warn("Updates are paused; Resume goes on.", age === null ? "" : `Last seen ${seconds(age / 1000)} ago.`);
  } else if (age === null) {
    say("", "Loading…");
  } else if (stale) {
    say("warn", "Stale");
    warn("These figures are old: nothing newer has come.", `Last seen ${seconds(age / 1000)} ago.`);
  } else if (lake.index.healthy) {
    say("good", "Healthy");
    warn("", "");
  } else {
    say("bad", "In trouble");
    const shown = lake.index.faults.slice(0, 3).join("; ");
    const more = lake.index.faults.length > 3 ? `; and ${lake.index.faults.length - 3} more` : "";
    warn(`Ingest cannot do its work: ${shown}${more}. What to do: scripts/doctor finds the cause.`, "");
  }
}

function say(tone, text) {
  state.dataset.tone = tone;
  write(state, text);
}

function warn(text, age) {
  notice.hidden = !text;
  notice.dataset.tone = paused && fault === null ? "quiet" : "";
  write(noticeText, text);
  write(noticeAge, age);
}

// ---- views ----

function route() {
  const [, kind, name] = location.hash.split("/");
  const decoded = (() => {
    try {
      return decodeURIComponent(name ?? "");
    } catch {
      return "";
    }
  })();
  const before = view;
  if (kind === "tables" && decoded) view = tableView(decoded);
  else if (kind === "ingestors" && decoded) view = ingestorView(decoded);
  else view = first;
  document.title = view.title ? `${view.title} · Tarn` : "Tarn: the lake at a glance";
  if (lake.seenMs !== null || view !== first) {
    main.replaceChildren(view.node);
    main.setAttribute("aria-busy", "false");
    if (lake.seenMs !== null) safely(() => view.show(lake));
    if (before !== null) {
      scrollTo(0, 0);
      (document.getElementById("subject") ?? main).focus({ preventScroll: true });
    }
  } else if (before !== null) {
    main.replaceChildren(h("p.loading", {}, "Loading the lake…"));
  }
}

function showView() {
  if (!main.contains(view.node)) {
    main.replaceChildren(view.node);
    main.setAttribute("aria-busy", "false");
  }
  write($("version"), `Tarn ${lake.index.version}; ingest runs since ${clock(lake.index.startedAt)}. Times are those of ${ZONE}.`);
  view.show(lake);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  write($("pause"), paused ? "Resume" : "Pause");
  if (paused) clearTimeout(timer);
  else schedule(0);
  tick();
});
addEventListener("hashchange", route);
addEventListener("visibilitychange", () => schedule(0));
setInterval(tick, 1_000);
addEventListener("resize", showFirst);
// The link in front of everything moves the focus; the address is that of the view, and stays.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
route();
poll();
