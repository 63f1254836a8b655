"""The bytes between the parent and a native child. Plain lengths and text, never pickle.

To the child: a length, then the job as JSON. Back: frames of kind, length and UTF-8 text.
"""

from __future__ import annotations

import struct

FATAL, READY = b"f", b"r"
"""One of them first, before any of the code runs: a later FATAL is the code's own forgery."""
OUTPUT, VALUE, ERROR, DONE = b"o", b"v", b"e", b"d"
HEADER = struct.Struct(">cI")
LENGTH = struct.Struct(">I")
VALUE_LIMIT_CHARS = 20_000
