// A few lines to make elements.

/** h("button", {type: "button", onclick}, "text", child): an element with attributes, handlers and children. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[name] = value;
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** A heading of a view: depth 0 or 1. It stands below the headings of a notebook, or below the title of a page of its own. */
export const heading = (depth, attributes, ...children) =>
  h(`h${Number(document.body.dataset.headings ?? 4) + depth}`, attributes, ...children);

/** A name that no other element of the page has. Each view of a notebook loads this file anew, so counting is not enough. */
export const newId = (name) => `explorer-${name}-${Math.random().toString(36).slice(2)}`;
