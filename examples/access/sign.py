"""
Sign a token with private.pem, as an identity provider does: python sign.py NAME GROUP SECONDS.

docs/access.md uses it. It needs PyJWT and cryptography, which the gateway has installed.
"""

import sys
import time
from pathlib import Path

import jwt

name, group, seconds = sys.argv[1:]
claims = {
    "iss": "https://shop.example",
    "aud": "nsq",
    "sub": name,
    "groups": [group],
    "exp": int(time.time()) + int(seconds),
}
token = jwt.encode(claims, Path("private.pem").read_bytes(), algorithm="EdDSA")
sys.stdout.write(f"{token}\n")
