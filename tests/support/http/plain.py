"""For clients of plain HTTP."""

from __future__ import annotations

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For `httpx.AsyncClient(verify=...)`: by default each client loads all authorities, for 20 ms."""
