"""A program that imports `gateway.client` loads nothing of the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.support.project import ROOT

SERVER_PACKAGES = {"fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings", "pyspark"}


def test_importing_the_client_loads_no_package_of_the_server() -> None:
    """A program that publishes starts without FastAPI, and without the settings of the gateway."""
    program = "import gateway.client, json, sys; print(json.dumps(sorted(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True
    ).stdout
    modules: list[str] = json.loads(said)

    assert [] == [name for name in modules if name.partition(".")[0] in SERVER_PACKAGES]
    assert [] == [name for name in modules if re.match(r"gateway\.(web|server|settings)", name)]
