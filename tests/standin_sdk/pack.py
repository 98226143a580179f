"""Writes a NEFF-shaped container: the documented 1024-byte header, and a tar archive of the stand-in's own content."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile

# pkg_version, header_size, data_size, neff_version (major, minor), neff_build_version, num_tpb, hash, uuid, name, requested_tpb_count,
# tpb_per_node, feature_bits, lnc_size.
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468x")


def pack(files: dict[str, bytes], name: str, build: str, lnc: int = 1, compress: bool = False) -> bytes:
    """A container around ``files``. The same content gives the same bytes."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    data = archive.getvalue()
    if compress:
        data = gzip.compress(data, mtime=0)
    digest = hashlib.sha256(data).digest()
    header = _HEADER.pack(
        2, _HEADER.size, len(data), 2, 0, build.encode()[:127], lnc, digest, digest[:16], name.encode()[:255], lnc, b"", 0, lnc
    )
    return header + data
