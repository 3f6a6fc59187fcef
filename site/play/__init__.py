"""A page on which the simulator runs in the reader's browser: ``python site/play`` writes it to ``build/site/play``.

``cells.py`` chooses the cells of the notebooks that need only the simulator, ``files.py`` the Python files that they
import, ``prose.py`` the sentences above them, and ``build.py`` writes the page. ``browser`` is the Python that runs in
the browser, ``page`` the rest of the page.
"""
