// Draws the model's text below the running cell, outside of its output, and removes it when the model closes.

const SILENCE = 5000; // ms without news (the kernel was restarted or killed), after which the text is removed

function place(element) {
  const running = [...document.querySelectorAll(".jp-CodeCell")].find(
    (cell) => cell.querySelector(".jp-InputPrompt")?.textContent.trim() === "[*]:",
  );
  if (running) {
    running.append(element); // after all that JupyterLab itself puts into the cell
  } else {
    document.body.append(element);
    Object.assign(element.style, { position: "fixed", left: "0", bottom: "24px", zIndex: 1000 });
  }
}

export default {
  initialize({ model }) {
    const element = document.createElement("pre");
    element.className = "ranks-progress";
    element.setAttribute("role", "status");
    Object.assign(element.style, {
      margin: "2px 0 2px 80px",
      padding: "2px 6px",
      fontSize: "12px",
      whiteSpace: "pre-wrap",
      color: "var(--jp-ui-font-color2, #555)",
      background: "var(--jp-layout-color2, #eee)",
    });
    let timer;
    const show = () => {
      element.textContent = model.get("text");
      if (!element.isConnected) place(element);
      clearTimeout(timer);
      timer = setTimeout(() => element.remove(), SILENCE);
    };
    model.on("change:text", show);
    if (model.get("text")) show();
    return () => {
      clearTimeout(timer);
      model.off("change:text", show);
      element.remove();
    };
  },
};
