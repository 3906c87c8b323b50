"""The models of a server: those that are configured, opened, and what runs get by default."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from guildry.teams.orchestrator import RunDefaults
from guildry.tools.grants import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildry.server.config import ModelSetting, Settings
    from guildry.teams.model import Model

__all__ = ["open_models", "run_defaults"]


def open_models(
    settings: "Settings", given: "Mapping[str, Model]", stack: AsyncExitStack
) -> "Mapping[str, Model]":
    """Return the configured models, closed at the end of `stack`, and those that are given."""
    models: dict[str, Model] = {name: _model(setting) for name, setting in settings.models.items()}
    named = settings.model
    if named is not None and named not in models and (found := settings.default_model):
        models[named] = _model(found)
    for model in models.values():
        stack.push_async_callback(model.aclose)
    return {**models, **given}


def _model(setting: "ModelSetting") -> "Model":
    from guildry.server.endpoints import FirstModel, chat_model

    return chat_model(setting, setting.model) if setting.model else FirstModel(setting)


def run_defaults(settings: "Settings", models: "Mapping[str, Model]") -> RunDefaults:
    """Return what a run may do where nobody says otherwise."""
    limits = Limits(
        tokens=settings.run_tokens,
        calls=settings.run_calls,
        agents=settings.run_agents,
        wall_s=settings.run_wall_s,
    )
    return RunDefaults(limits=limits, model=settings.model or next(iter(models), None))
