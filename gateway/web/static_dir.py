"""The folder of --static-dir, looked at before anything listens: whether it is one, and is seen."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gateway.errors import SettingsError
from gateway.telemetry import get_logger
from gateway.web.page_folder import INDEX
from gateway.web.unrouted import is_unrouted

logger = get_logger()

_MAX_TOLD = 20
"""Files that a warning names."""


def check_static_dir(path: str | None, routes: Mapping[str, tuple[str, ...]]) -> None:
    """
    See that the folder *path* can be served; None is no folder.

    Warns in the log about what nobody gets to see: files with one of *routes* in front of them, and
    / where there is no index.html.

    Raises:
        SettingsError: There is no such folder, it is something else, or it cannot be read.
    """
    if path is None:
        return
    try:
        if not path:
            raise FileNotFoundError(errno.ENOENT, "it is empty; . is the folder that you are in")
        hidden = list(_hidden_by(routes, Path(path)))
        has_index = Path(path, INDEX).is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = "" if Path(path).is_absolute() else f", looked for in {Path.cwd()}"
        allowed = f"the path of a folder that the gateway may read{where}; {reason}"
        raise SettingsError("--static-dir", path, allowed=allowed) from error
    if not has_index:
        logger.warning("the folder of --static-dir has no index.html, so / is 404", folder=path)
    if hidden:
        logger.warning(
            "files of --static-dir are not served: paths of the gateway are in front of them",
            paths=", ".join(hidden[:_MAX_TOLD]),
            count=len(hidden),
            advice="give them other names",
        )


def _hidden_by(routes: Mapping[str, tuple[str, ...]], folder: Path) -> Iterator[str]:
    """Give the address of each file that is asked for in vain; raises OSError for *folder*."""
    parents = {route.split("/")[1] for route in routes if route.count("/") > 1}
    for entry in sorted(folder.iterdir()):
        names = [entry.name]
        # A folder in it that cannot be read is refused to whoever asks for it.
        with suppress(OSError):
            if entry.is_dir():
                within = sorted(each.name for each in entry.iterdir())
                names = [f"{entry.name}/"] if INDEX in within else []
                if entry.name.lower() in parents:
                    names += [f"{entry.name}/{name}" for name in within]
        yield from (f"/{name}" for name in names if not is_unrouted("GET", f"/{name}", routes))
