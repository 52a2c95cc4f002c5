"""`fairq serve`: one flag per setting, made from the settings themselves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import attrs
import trio
from cyclopts import Parameter

from fairq.cli.log_writer import open_log
from fairq.cli.output import configure_logging
from fairq.server.settings import HELP, Settings, load_settings


def _flag(setting: attrs.Attribute[Any], kind: Any) -> Any:
    """Make the flag of a setting, None if not given: then the file or the variable counts."""
    default = getattr(Settings(), setting.name)
    shown = "" if default in (None, False, []) else f" [default: {default}]"
    text = HELP[setting.name]
    described = Annotated[kind | None, Parameter(help=text[0].upper() + text[1:] + shown + ".")]
    return attrs.field(default=None, type=described)  # type: ignore[call-overload]


_KINDS = get_type_hints(Settings)
Flags = attrs.make_class(
    "Flags", {setting.name: _flag(setting, _KINDS[setting.name]) for setting in attrs.fields(Settings)}, frozen=True
)
Parameter(name="*", show_default=False)(Flags)


def serve(
    *,
    config: Annotated[Path | None, Parameter(help="Settings file (TOML).")] = None,
    flags: Flags | None = None,  # type: ignore[valid-type]
) -> None:
    """Run a server until SIGTERM or ctrl-C, then drain it; a second signal ends it at once.

    Settings come from the file, then from `FAIRQ_<NAME>` variables, then from flags; later ones win.

    Example: `fairq serve --dev`
    """
    from fairq.io.parentage import take_line
    from fairq.server.fleet import CHILD
    from fairq.server.run import serve as run_server

    loggers = ("fairq", "opentelemetry", "trio")  # all log in the server's loop: trio, that it can open no more files
    line = take_line(CHILD)
    with open_log() as writer:
        settings = load_settings(config, os.environ, attrs.asdict(flags) if flags else {})
        configure_logging(settings.log_level, as_json=settings.log_json, to=writer, loggers=loggers)
        trio.run(run_server, settings if line else settings.with_all_for_dev(), line)
