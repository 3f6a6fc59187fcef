"""What the course adds to the Jupyter server that ``course lab`` starts; Binder starts it with the same settings.

``jupyter_server_config.json`` beside this file names what is here, and ``labconfig/`` holds the course's defaults
for JupyterLab's own settings. Both are read from this folder; nothing is written into the reader's.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.serverapp import ServerApp
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.utils import url_path_join
from jupyterlab_server.handlers import LabHandler


class CourseFiles(AsyncLargeFileManager):
    """Serves notebooks as the Python that runs here would have saved them.

    A kernel tells JupyterLab its exact version, and JupyterLab writes that into the notebook's metadata. A notebook
    saved under any other version would be marked as changed as soon as it is opened.
    """

    async def get(self, path: str, content: bool = True, *args: Any, **kwargs: Any) -> dict[str, Any]:
        model = await super().get(path, content, *args, **kwargs)
        if content and model["type"] == "notebook":
            from ipykernel.ipkernel import IPythonKernel

            metadata = model["content"]["metadata"]
            if metadata.get("language_info", {}).get("name") == "python":
                metadata["language_info"] = dict(IPythonKernel.language_info)
        return model


class FirstPage(LabHandler):
    """JupyterLab's page for a notebook, with the course's whole folder in the file browser.

    JupyterLab shows the notebook's own folder there, without the exercises and the README. Only the address that
    the server prints has the token in it, so a page that is loaded again keeps the folder that the reader chose.
    """

    def get(self, tree: str) -> None:
        if self.get_argument("token", "") and not self.get_argument("file-browser-path", ""):
            self.redirect(f"{self.request.uri}&file-browser-path=/")
        else:
            super().get("lab", None, tree)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: ServerApp) -> None:
    # Extensions load in the order of their names; the first handler that fits a page serves it.
    page = url_path_join(server.web_app.settings["base_url"], r"/lab(?P<tree>/tree/.+\.ipynb)")
    server.web_app.add_handlers(".*$", [(page, FirstPage, {"name": "lab"})])
