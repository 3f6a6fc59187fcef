// The explorer's frame is as high as the page in it, so that only one of the two scrolls, and has the reader's theme.

function follow(frame) {
  const inside = frame.contentDocument;
  if (!inside?.body) return; // opened as a file: a browser keeps the two apart
  new ResizeObserver(() => (frame.style.height = `${inside.body.scrollHeight + 24}px`)).observe(inside.body);
  const paint = () => {
    const chosen = document.body.dataset.theme, free = chosen === "auto"; // then the system's, as the frame does itself
    inside.documentElement.style.colorScheme = free ? "" : chosen;
    inside.body.style.background = free ? "" : getComputedStyle(document.body).backgroundColor;
  };
  new MutationObserver(paint).observe(document.body, { attributeFilter: ["data-theme"] });
  paint();
}

addEventListener("load", () => document.querySelectorAll("iframe.explorer").forEach(follow));
