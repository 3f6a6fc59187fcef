// A chapter's bets are played in the page, by the script that plays them in a notebook.

import { play } from "./game.js";

const answers = [...document.querySelectorAll("div.cell:has([data-answer])")];
play();

// The paragraph below an answer tells it, so it waits for the bet, too; or for the reader who asks for all results.
const told = answers.map((cell) => [cell, cell.nextElementSibling]).filter(([, words]) => words?.tagName === "P");
for (const [cell, words] of told) {
  words.hidden = true;
  new MutationObserver(() => (words.hidden = false)).observe(cell, { childList: true, subtree: true });
}
const tell = () => told.forEach(([, words]) => (words.hidden = false));
addEventListener("click", ({ target }) => target.closest(".all-results button") && tell());
addEventListener("beforeprint", tell);
