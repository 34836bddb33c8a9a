"""Importing this first saves 2.5 seconds in each process that reads notebooks.

``nbformat`` imports ``jsonschema``, which, where ``rfc3987_syntax`` is installed (JupyterLab requires it), builds 38
grammars for internationalised addresses at import. Notebooks hold none to validate; without the package jsonschema
leaves that one format unchecked. ``None`` in ``sys.modules`` makes an import fail as if it were not installed.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
