"""Import of optional packages at their first use."""

from __future__ import annotations

import importlib
from types import ModuleType

# packages whose name for pip is not that of their module
PACKAGES = {"vtkmodules": "vtk"}


def import_optional(module: str, purpose: str = "this") -> ModuleType:
    """Imports a module of an optional package; ImportError says what needs it and the command that installs it.

    The command names the package and no extra of jaximpact: it works wherever jaximpact itself was installed from.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f"{purpose} needs {name}: pip install {PACKAGES.get(name, name)}") from error
