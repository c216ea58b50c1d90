"""What results have in common: a picture. The one import from results upwards to their pictures is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Drawable:
    """A result that `jaximpact.plots.draw` has a picture of."""

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw the picture, to a file or on axes (``ax``), with a ``title``: see `jaximpact.plots.draw`; needs matplotlib."""
        from .. import plots

        return plots.draw(self, path, **options)
