// Elements with texts. Whatever a name contains, it is written as text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "rect", "line", "text", "title", "g", "path", "circle"]);

/**
 * An element.
 *
 * @param {string} tag name, and classes after dots
 * @param {object} options attributes; `on` has event handlers; false and null are left out
 * @param {...(Node|string|number|null|Array)} children
 */
export function h(tag, options = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = SVG_TAGS.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(options)) {
    if (key === "on") {
      for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    } else if (value === true) {
      made.setAttribute(key, "");
    } else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(key, String(value));
    }
  }
  append(made, children);
  return made;
}

function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.append(child);
    else if (child !== null && child !== undefined && child !== false) parent.append(String(child));
  }
}

/** Write a text, if it is another one: screen readers and selections are left alone while nothing changes. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * A table that is updated in place, so that focus, selection and scroll position stay.
 *
 * @param {object} options
 * @param {string} options.caption what it shows
 * @param {Array} options.columns `{head, cell(row) -> text or Node, number, title, tone(row)}`; the first one heads its row
 * @param {string} options.empty what is said without rows
 */
export function table({ caption, columns, empty, name }) {
  const title = h("span", {}, caption);
  const body = h("tbody");
  const heads = columns.map((one) =>
    h(`th${one.number ? ".number" : ""}`, { scope: "col", title: one.title }, one.head),
  );
  const node = h("table", { id: name }, h("caption", {}, title), h("thead", {}, h("tr", {}, heads)), body);
  const nothing = h("p.empty", {}, empty);
  const scroller = h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption }, node);
  const whole = h("div.tabled", {}, scroller, nothing);
  const rows = new Map();

  /** Show these rows, each known by its key; a key may be there more than once, as several deletes in one file are. */
  function show(list, keyOf) {
    const keys = new Set();
    const times = new Map();
    let before = null;
    for (const one of list) {
      const own = keyOf(one);
      const nth = times.get(own) ?? 0;
      times.set(own, nth + 1);
      const key = nth ? `${own}\n${nth}` : own;
      keys.add(key);
      let row = rows.get(key);
      if (!row) {
        row = { node: h("tr"), cells: [], last: [] };
        columns.forEach((column, index) => {
          const cell = index
            ? h(`td${column.number ? ".number" : ""}`, { "data-head": column.head })
            : h("th", { scope: "row" });
          row.cells.push(cell);
          row.node.append(cell);
        });
        rows.set(key, row);
      }
      columns.forEach((column, index) => fill(row, index, column, one));
      const place = before ? before.nextSibling : body.firstChild;
      if (row.node !== place) body.insertBefore(row.node, place);
      before = row.node;
    }
    for (const [key, row] of rows) {
      if (!keys.has(key)) {
        row.node.remove();
        rows.delete(key);
      }
    }
    scroller.hidden = list.length === 0;
    nothing.hidden = list.length > 0;
  }

  function fill(row, index, column, one) {
    const cell = row.cells[index];
    const made = column.cell(one);
    const tone = column.tone ? column.tone(one) : "";
    if ((cell.dataset.tone ?? "") !== tone) cell.dataset.tone = tone;
    if (made instanceof Node) {
      const seen = made.outerHTML;
      if (row.last[index] !== seen) {
        cell.replaceChildren(made);
        row.last[index] = seen;
      }
    } else {
      write(cell, String(made));
    }
  }

  /** Say what it shows now. */
  function call(text) {
    write(title, text);
    scroller.setAttribute("aria-label", text);
  }

  return { node: whole, show, call };
}

/** A section with a heading, as a landmark. */
export function section(name, title, ...children) {
  const id = `${name}-title`;
  return h(`section.card.${name}`, { "aria-labelledby": id }, h("h2", { id }, title), ...children);
}
