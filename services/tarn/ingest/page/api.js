// Asks the status API, and knows how old its answers are.

export const TIMEOUT_MS = 6_000;
const AGAIN_MS = 200;

/** An answer that is an error; `status` is 0 if there was none. */
export class ApiError extends Error {
  constructor(status, message, fix = "") {
    super(message);
    this.status = status;
    this.fix = fix;
  }
}

/** The JSON of an answer. A reading that got none is tried once more: networks of containers come and go. */
export async function get(path, options = {}) {
  try {
    return await once(path, options);
  } catch (error) {
    if (error.status !== 0 || error.late || (options.method ?? "GET") !== "GET" || options.base) throw error;
    await new Promise((done) => setTimeout(done, AGAIN_MS));
    return once(path, options);
  }
}

async function once(path, { base = "", method = "GET", headers = {} }) {
  const ending = new AbortController();
  const timer = setTimeout(() => ending.abort(), TIMEOUT_MS);
  let answer;
  try {
    answer = await fetch(`${base}${path}`, {
      method,
      headers,
      signal: ending.signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    const value = await answer.json();
    if (answer.ok) return value;
    throw new ApiError(answer.status, value.error?.message ?? `status ${answer.status}`, value.error?.fix ?? "");
  } catch (error) {
    if (error instanceof ApiError) throw error;
    const late = error.name === "AbortError";
    const made = new ApiError(0, late ? `no answer within ${TIMEOUT_MS / 1000} s` : "no answer");
    made.late = late;
    throw made;
  } finally {
    clearTimeout(timer);
  }
}

/** A name in a path. */
export const part = (name) => encodeURIComponent(name);

/** All entries of a list that is paged by name, up to a number of pages. */
export async function all(path, key, pagesMax = 5) {
  let page = await get(path);
  const first = page;
  const found = [...page[key]];
  for (let pages = 1; page.next !== null && pages < pagesMax; pages += 1) {
    page = await get(`${path}?after=${part(page.next)}`);
    found.push(...page[key]);
  }
  return { ...first, [key]: found, next: page.next };
}
