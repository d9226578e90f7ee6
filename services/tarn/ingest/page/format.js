// Figures and times as people read them. Unknown is a dash, never 0.

export const UNKNOWN = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DAY_S = 86_400;

/** Whether a figure is known. */
export const known = (value) => value !== null && value !== undefined;

/** A count, with commas. */
export const count = (value) => (known(value) ? WHOLE.format(value) : UNKNOWN);

/** A count in few characters, such as 1.2M. */
export const short = (value) => (known(value) ? SHORT.format(value) : UNKNOWN);

/** A rate per second. */
export const rate = (value) => {
  if (!known(value)) return UNKNOWN;
  return value >= 100 ? WHOLE.format(value) : TENTHS.format(value);
};

/** A size. */
export const bytes = (value) => {
  if (!known(value)) return UNKNOWN;
  let size = value;
  let unit = 0;
  while (size >= 1023.95 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 99.95 ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
};

/** A duration in seconds, with one unit. */
export const seconds = (value) => {
  if (!known(value)) return UNKNOWN;
  if (value < 0.0005) return "0 s";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 119.5) return `${Math.round(value)} s`;
  if (value < 7170) return `${Math.round(value / 60)} min`;
  if (value < 2 * DAY_S) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / DAY_S)} d`;
};

/** How long before a moment a time was; both in ISO 8601, the moment also in milliseconds. */
export const ago = (time, nowMs) => {
  if (!known(time)) return UNKNOWN;
  const passed = (nowMs - Date.parse(time)) / 1000;
  return passed < 1 ? "just now" : `${seconds(passed)} ago`;
};

/** A time of the day, in the reader's zone; with the date if it is another day. */
export const clock = (time) => {
  if (!known(time)) return UNKNOWN;
  const at = new Date(time);
  const today = new Date().toDateString() === at.toDateString();
  const hours = at.toLocaleTimeString("en-GB");
  return today ? hours : `${at.toLocaleDateString("en-CA")} ${hours}`;
};

/** A name as one types it in a shell: in quotes if it has more than letters, digits and the like. */
export const typed = (name) => (/^[\w.-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

/** A word and its number: 1 file, 2 files. */
export const words = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
