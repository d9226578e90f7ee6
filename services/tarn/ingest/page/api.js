// Asks the status API, and knows how old its answers are.

export const TIMEOUT_MS = 6_000;

/** An answer that is an error; `status` is 0 if there was none. */
export class ApiError extends Error {
  constructor(status, message, fix = "") {
    super(message);
    this.status = status;
    this.fix = fix;
  }
}

/** The JSON of an answer. */
export async function get(path, { base = "", method = "GET", headers = {} } = {}) {
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
    const why = error.name === "AbortError" ? `no answer within ${TIMEOUT_MS / 1000} s` : "no answer";
    throw new ApiError(0, why);
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
