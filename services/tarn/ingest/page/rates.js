// Rates from counters between polls. A counter that went back belongs to a new process: it begins again. So does one that
// nobody has asked for in a while, such as behind a pause: what grew meanwhile did not within the last seconds.

export const SPAN_MS = 10_000;

/** What grew per second over the last ten seconds, by name. */
export class Rates {
  #samples = new Map();

  /** Take a counter's value at a time of the server, in milliseconds; returns its rate, null while unknown. */
  take(name, atMs, value) {
    const kept = this.#samples.get(name) ?? [];
    const last = kept.at(-1);
    if (last && (value < last.value || atMs < last.atMs || atMs - last.atMs > SPAN_MS)) kept.length = 0;
    if (!kept.length || kept.at(-1).atMs < atMs) kept.push({ atMs, value });
    while (kept.length > 2 && kept[1].atMs <= atMs - SPAN_MS) kept.shift();
    this.#samples.set(name, kept);
    const first = kept[0];
    const end = kept.at(-1);
    return end.atMs - first.atMs < 500 ? null : ((end.value - first.value) * 1000) / (end.atMs - first.atMs);
  }

  /** Forget the names that are not among these. */
  keep(names) {
    for (const name of this.#samples.keys()) if (!names.has(name)) this.#samples.delete(name);
  }
}
