"""The names of uvicorn that the public port stands on, and that uvicorn does not document."""

from __future__ import annotations

import inspect

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState


def test_uvicorn_makes_a_request_of_what_we_give_it() -> None:
    """Exactly these parameters, by these names."""
    given = {
        "scope",
        "transport",
        "flow",
        "logger",
        "access_logger",
        "access_log",
        "default_headers",
        "message_event",
        "expect_100_continue",
        "keep_alive",
        "on_response",
    }
    assert given == inspect.signature(RequestResponseCycle).parameters.keys()


def test_a_request_of_uvicorn_has_what_we_read_and_set() -> None:
    """Each attribute, and each call of its transport and flow."""
    source = inspect.getsource(RequestResponseCycle)
    for name in (
        "body",
        "disconnected",
        "flow",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
        "response_started",
    ):
        assert f"self.{name} = " in source
    for call in (
        "self.transport.write(",
        "self.transport.close()",
        "self.transport.is_closing()",
        "self.flow.drain()",
        "self.flow.resume_reading()",
        "self.flow.write_paused",
        "self.on_response()",
    ):
        assert call in source


def test_the_flow_control_of_uvicorn_asks_a_transport_for_reading_only() -> None:
    source = inspect.getsource(FlowControl)
    used = {"pause_reading", "resume_reading"}
    assert used == {
        line.split("_transport.")[1].split("(")[0]
        for line in source.splitlines()
        if "self._transport." in line
    }
    assert {"pause_writing", "resume_writing"} <= set(dir(FlowControl))


def test_the_state_of_uvicorn_s_server_has_what_we_count_and_list() -> None:
    """uvicorn's own stop and our drain look into the same sets."""
    assert {"connections", "tasks", "default_headers", "total_requests"} <= set(vars(ServerState()))


def test_the_configuration_of_uvicorn_has_what_a_scope_is_made_of() -> None:
    """An application, a root path and a version of ASGI."""
    config = Config(lambda: None, lifespan="off", log_config=None)
    config.load()
    assert {"loaded", "loaded_app", "root_path", "asgi_version"} <= set(dir(config))
