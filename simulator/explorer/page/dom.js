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

let made = 0;

/** A name that no other element of the page has. */
export const newId = (name) => `explorer-${name}-${++made}`;
