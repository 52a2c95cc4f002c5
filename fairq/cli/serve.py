"""`fairq serve`: one flag per setting, made from the settings themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
from cyclopts import Parameter

from fairq.cli.output import configure_logging
from fairq.server.settings import Settings, load_settings


def _flag(setting: attrs.Attribute[Any]) -> Any:
    default = setting.default.factory() if isinstance(setting.default, attrs.Factory) else setting.default  # type: ignore[arg-type]
    shown = "" if default in (None, False, []) else f" [default: {default}]"
    text = setting.metadata["help"]
    kind = Annotated[setting.type | None, Parameter(help=text[0].upper() + text[1:] + shown + ".")]  # type: ignore[operator]
    return attrs.field(default=None, type=kind)  # type: ignore[call-overload]


Flags = attrs.make_class(
    "Flags", {setting.name: _flag(setting) for setting in attrs.fields(attrs.resolve_types(Settings))}, frozen=True
)
Parameter(name="*", show_default=False)(Flags)


def serve(
    *, config: Annotated[Path | None, Parameter(help="Settings file (TOML).")] = None, flags: Flags | None = None  # type: ignore[valid-type]
) -> None:
    """Run a server until SIGTERM or ctrl-C; it then drains, and a second signal ends it at once.

    Settings come from the file, then from FAIRQ_<NAME> variables, then from flags; later ones win.
    """
    from fairq.server.run import serve as run_server

    settings = load_settings(config, os.environ, attrs.asdict(flags) if flags else {})
    configure_logging(settings.log_level, as_json=settings.log_json)
    trio.run(run_server, settings)
