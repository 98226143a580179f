# Private to this package: what the extension offers is declared in csrc/python/bindings.h.
from typing import Any

def __getattr__(name: str) -> Any: ...
