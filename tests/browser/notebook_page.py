"""What a reader does with a notebook in JupyterLab, as functions on a playwright page."""

from __future__ import annotations

from playwright.sync_api import Page
from server import Lab

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"  # the one in front
TAB_IN_FRONT = ".lm-DockPanel-tabBar .lm-TabBar-tab.lm-mod-current"
WAIT = 60_000  # milliseconds for what takes a second or two on an idle machine
RUN = 300_000  # milliseconds for all cells of a notebook


def command(page: Page, name: str, **arguments: object) -> None:
    """Run one of JupyterLab's own commands, and wait until it is done; ``jupyterlab(…, commands=True)``."""
    page.evaluate(
        "([name, args]) => jupyterapp.commands.execute(name, args).then(() => null)", [name, arguments]
    )


def open_page(page: Page, lab: Lab, path: str = "") -> None:
    """Open a file of the course, or what JupyterLab opens by itself, in front; load JupyterLab if it is not there.

    With what is there, it needs ``jupyterlab(…, commands=True)``.
    """
    page.set_default_timeout(WAIT)
    if page.url.startswith(lab.address):
        command(page, "docmanager:open", path=path or lab.opens.removeprefix("/lab/tree/"))
    else:
        page.goto(f"{lab.url(path)}&reset")  # without the tabs that an earlier page had open
    page.locator(TAB_IN_FRONT, has_text=(path or lab.opens).rpartition("/")[2]).wait_for()
    page.locator(f"{PANEL} .jp-Cell").first.wait_for()


def open_without_kernel(page: Page, path: str) -> None:
    """Open a notebook beside what is open, and start nothing; ``jupyterlab(…, commands=True)``."""
    command(page, "docmanager:open", path=path, options={}, kernelPreference={"shouldStart": False})
    page.locator(TAB_IN_FRONT, has_text=path.rpartition("/")[2]).wait_for()
    page.locator(f"{PANEL} .jp-Cell").first.wait_for()


def close_all(page: Page) -> None:
    """Close all files, and lose their changes; where a question is left, JupyterLab itself is left."""
    page.evaluate(
        """() => { for (const each of [...(window.jupyterapp?.shell.widgets("main") ?? [])]) {
        if (each.context) each.context.model.dirty = false;
        each.close(); } }"""
    )
    if page.locator(".jp-Dialog").count():
        page.goto("about:blank")


def all_cells_shown(page: Page) -> None:
    """Wait until every cell of the notebook in front is in the page; ``jupyterlab(…, commands=True)``."""
    page.wait_for_function(
        """() => { const panel = jupyterapp.shell.currentWidget;
        const cells = panel?.context?.isReady ? panel.content.widgets : [];
        return cells.length && cells.length === panel.content.model.cells.length
          && cells.every(cell => !cell.isPlaceholder())
          && [...panel.node.querySelectorAll(".jp-MarkdownOutput")].every(text => text.childNodes.length); }""",
        polling=200,  # milliseconds: to be asked in each frame keeps JupyterLab from its work
    )


def use_theme(page: Page, dark: bool) -> None:
    name = "JupyterLab Dark" if dark else "JupyterLab Light"
    command(page, "apputils:change-theme", theme=name)
    page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")


def told_in_place(page: Page) -> list[str]:
    """The lines that JupyterLab shows where outputs are folded: each is a part of what is behind it."""
    texts = page.locator(f"{PANEL} .jp-OutputPlaceholder").all_inner_texts()
    return [text.strip() for text in texts if text.strip()]


def unfold(page: Page) -> None:
    """Show the outputs and sources that the notebook has folded."""
    command(page, "notebook:show-all-cell-outputs")


def run_all(page: Page) -> None:
    """Run every cell and wait for the last; a cell that raises ends it, as it does for the reader."""
    page.locator(f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.set_default_timeout(RUN)
    command(page, "notebook:run-all-cells")
    page.set_default_timeout(WAIT)


def pictures_loaded(page: Page) -> None:
    """Wait until every image in the notebook in front has its size."""
    images = f"{PANEL} .jp-OutputArea-output img"
    page.evaluate(
        "images => Promise.all([...document.querySelectorAll(images)].map(i => i.decode().catch(() => 0)))",
        images,
    )


def wait_for_kernel(page: Page) -> None:
    """Wait until the notebook in front has a kernel, and JupyterLab has written down which."""
    page.wait_for_function("() => jupyterapp.shell.currentWidget?.context?.sessionContext?.session?.kernel")
    page.evaluate(
        """async () => { await jupyterapp.restored;
        const { kernel } = jupyterapp.shell.currentWidget.context.sessionContext.session;
        await kernel.info; await kernel.spec;
        await new Promise(done => setTimeout(done)); }"""  # whoever waits for them, too, is called first
    )
    page.locator(f"{PANEL} .jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()


def unsaved(page: Page) -> bool:
    """Is the notebook in front marked as changed?"""
    return "jp-mod-dirty" in (page.locator(TAB_IN_FRONT).get_attribute("class") or "")
