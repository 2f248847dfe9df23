"""The folder of --static-dir is looked at before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import SettingsError
from gateway.web.app import public_routes
from gateway.web.site.static_dir import check_static_dir
from tests.support.second_user import as_unprivileged_user, world_readable_folder

ROUTES = public_routes(console=True)
HIDDEN = "static files hidden by the gateway's routes"
NO_INDEX = "static directory has no index.html: / is 404"


def made(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    return str(folder)


@pytest.mark.parametrize("console", [True, False])
def test_a_folder_with_a_page_is_taken_in_silence(tmp_path: Path, *, console: bool) -> None:
    """Nothing of it is hidden, and nothing is missed; no folder is fine as well."""
    path = made(tmp_path, "index.html", "docs/a.html", "topics/b.html", "app.js", ".env")

    with capture_logs() as logs:
        check_static_dir(path, public_routes(console=console))
        check_static_dir(None, ROUTES)

    assert [] == logs


@pytest.mark.parametrize(
    "name,reason",
    [
        ("nothing", "No such file or directory"),
        ("file", "Not a directory"),
        # Python 3.13 has other words than 3.11.
        ("nul\0", "embedded null"),
    ],
)
def test_what_is_no_folder_is_an_error_of_the_settings(
    name: str, reason: str, tmp_path: Path
) -> None:
    """The value, what is allowed, and what the system says of it."""
    path = f"{made(tmp_path, 'file')}/{name}"

    with pytest.raises(SettingsError) as caught:
        check_static_dir(path, ROUTES)

    allowed = "the path of a folder that the gateway may read; "
    told, _, of_the_system = str(caught.value).partition(allowed)
    assert (f"--static-dir is {path!r}; allowed: ", True) == (told, reason in of_the_system)


@pytest.mark.parametrize(
    "path,reason",
    [
        ("page", "No such file or directory"),
        ("", "the path is empty; use . for the current folder"),
        ("~/page", "No such file or directory"),
    ],
)
def test_a_relative_path_is_told_with_where_it_was_looked_for(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service starts somewhere else than its operator."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError) as caught:
        check_static_dir(path, ROUTES)

    assert f"may read, relative to {tmp_path}; {reason}" in str(caught.value)


def test_a_folder_that_may_not_be_read_is_an_error_of_the_settings() -> None:
    """Nobody would ever see a file of it."""
    with world_readable_folder() as folder:
        (folder / "page").mkdir(mode=0o700)
        (folder / "page").chmod(0)
        with as_unprivileged_user(), pytest.raises(SettingsError, match="Permission denied"):
            check_static_dir(str(folder / "page"), ROUTES)


@pytest.mark.parametrize(
    "name,path",
    [
        ("docs/index.html", "/docs/"),
        ("console/index.html", "/console/index.html"),
        ("console/app.js", "/console/app.js"),
        ("topic/create", "/topic/create"),
        ("stats", "/stats"),
        ("pub", "/pub"),
        ("Ping", "/Ping"),
        ("nsq.js", "/nsq.js"),
        ("Docs/index.html", "/Docs/"),
    ],
)
def test_a_file_behind_a_path_of_the_gateway_is_told(name: str, path: str, tmp_path: Path) -> None:
    """A nearly right path is redirected to the gateway's own, too."""
    folder = made(tmp_path, "index.html", name)

    with capture_logs() as logs:
        check_static_dir(folder, ROUTES)

    [line] = logs
    assert (HIDDEN, True) == (line["event"], path in line["paths"].split(", "))


def test_without_the_console_a_folder_of_its_name_is_seen(tmp_path: Path) -> None:
    folder = made(tmp_path, "index.html", "console/index.html", "console/app.js")

    with capture_logs() as logs:
        check_static_dir(folder, public_routes(console=False))

    assert [] == logs


def test_of_many_hidden_files_some_are_named(tmp_path: Path) -> None:
    folder = made(tmp_path, "index.html", *(f"console/{number:02}.js" for number in range(30)))

    with capture_logs() as logs:
        check_static_dir(folder, ROUTES)

    assert (30, 20) == (logs[0]["count"], len(logs[0]["paths"].split(", ")))


def test_a_folder_without_a_page_is_told(tmp_path: Path) -> None:
    """The address that is printed would be 404."""
    with capture_logs() as logs:
        check_static_dir(made(tmp_path, "app.js"), ROUTES)

    assert [NO_INDEX] == [line["event"] for line in logs]


def test_a_folder_in_it_that_may_not_be_read_is_no_error() -> None:
    """Whoever asks for a file of it is answered 403."""
    with world_readable_folder() as folder:
        made(folder, "index.html", "topic/create")
        (folder / "topic").chmod(0)
        with as_unprivileged_user(), capture_logs() as logs:
            check_static_dir(str(folder), ROUTES)
        (folder / "topic").chmod(0o755)

    assert [] == logs
