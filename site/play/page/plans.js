// The page of plans: a form, the fastest plans, and one of them. The address holds the form and the plan that is shown.

import { newPython } from "./python.js";

const [form, plans, plan, python] = ["form", "#plans", "#plan", "#python"].map((name) => document.querySelector(name));
const [state, stop, config] = [".state", ".stop", ".config"].map((name) => form.querySelector(name));
const own = [...form.elements.model.options].at(-1).value;
const runner = newPython((sentence, wrong = false) => {
  python.textContent = sentence;
  python.classList.toggle("error", wrong);
});

fromAddress();

form.elements.model.addEventListener("change", showConfig);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  find("");
});
stop.addEventListener("click", () => runner.stop());
plans.addEventListener("click", (event) => {
  const line = event.target.closest("[data-plan]")?.dataset.plan;
  if (line !== undefined) show(line);
});

function showConfig() {
  config.hidden = form.elements.model.value !== own;
}

/** The form as the address says it; with a plan in it, or any model, the plans are searched at once. */
function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of asked) if (form.elements[name]) form.elements[name].value = value;
  showConfig();
  if (asked.has("model")) find(asked.get("plan") ?? "");
}

async function find(line) {
  plans.hidden = plan.hidden = true;
  stop.hidden = false;
  state.textContent = runner.isReady() ? "searching …" : "waits until Python is loaded …";
  const asked = JSON.stringify(JSON.stringify(Object.fromEntries(new FormData(form))));
  const shown = await run(plans, `from play.browser.plans import find\nfound = find(${asked})\ngetattr(found, "table", lambda: found)()`);
  stop.hidden = true;
  if (shown && plans.querySelector("[data-plan]")) await show(line);
}

async function show(line) {
  if (!(await run(plan, `found.show(${JSON.stringify(line)})`))) return;
  const shown = plan.querySelector("[data-plan]").dataset.plan;
  if (!document.querySelector("nav a")) plan.querySelector(".in-site")?.remove(); // the page stands alone
  for (const button of plans.querySelectorAll("[data-plan]")) button.setAttribute("aria-pressed", String(button.dataset.plan === shown));
  const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  asked.set("plan", shown);
  history.replaceState(null, "", `#${asked}`);
}

/** Run Python and show its value; whether there was one. */
async function run(place, source) {
  const result = await runner.run("plans", source, (text) => { if (text.trim()) state.textContent = text.trim(); });
  state.textContent = result.stopped ? "was stopped" : result.error ?? "";
  place.innerHTML = result.html ?? "";
  place.hidden = !result.html;
  return Boolean(result.html);
}
