// On a page with folded results: a button that opens them all, and closes them again. Printed pages show them.

function addButton() {
  const folds = [...document.querySelectorAll("div.cell details.hide")];
  const title = document.querySelector("article h1");
  if (!folds.length || !title) return;
  const line = document.createElement("p");
  const button = document.createElement("button");
  line.className = "all-results";
  button.type = "button";
  const show = (open) => {
    button.textContent = open ? "Hide all results" : "Show all results";
    button.setAttribute("aria-pressed", String(open));
  };
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") !== "true";
    for (const fold of folds) fold.open = open;
    show(open);
  });
  show(false);
  line.append(button, "Results are hidden until you ask for them: guess first.");
  title.after(line);
  addEventListener("beforeprint", () => folds.forEach((fold) => (fold.open = true)));
}

addEventListener("DOMContentLoaded", addButton);
