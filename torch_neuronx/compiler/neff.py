"""The NEFF container: a 1024-byte header and a tar archive. The header is read and checked; the archive's content is the compiler's."""

from __future__ import annotations

import io
import struct
import tarfile
import uuid as uuids
from dataclasses import dataclass

# pkg_version, header_size, data_size, neff_version (major, minor), neff_build_version, num_tpb, hash, uuid, name, requested_tpb_count,
# tpb_per_node, feature_bits, lnc_size.
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468x")
HEADER_SIZE = 1024
assert _HEADER.size == HEADER_SIZE


@dataclass(frozen=True)
class Header:
    """The fields of a NEFF's header that matter to a framework."""

    package_version: int
    data_size: int  # bytes after the header
    version: tuple[int, int]
    build: str
    cores: int
    digest: bytes
    uuid: str
    name: str
    features: int
    lnc: int


def read_header(neff: bytes) -> Header:
    """Parses and checks the header of a whole NEFF. ValueError says what is wrong with it."""
    if len(neff) < HEADER_SIZE:
        raise ValueError(f"a NEFF begins with {HEADER_SIZE} bytes of header; this one has {len(neff)} in all")
    package, header_size, data_size, major, minor, build, cores, digest, uuid, name, _, _, features, lnc = _HEADER.unpack_from(neff)
    if header_size != HEADER_SIZE:
        raise ValueError(f"a NEFF's header has {HEADER_SIZE} bytes; this one says {header_size}")
    if data_size != len(neff) - HEADER_SIZE:
        raise ValueError(f"the NEFF says that {data_size} bytes follow its header, but {len(neff) - HEADER_SIZE} do: it is cut or damaged")

    def text(field: bytes) -> str:
        return field.split(b"\0", 1)[0].decode(errors="replace")

    return Header(package, data_size, (major, minor), text(build), cores, digest, str(uuids.UUID(bytes=uuid)), text(name), features, lnc)


def unpack(neff: bytes) -> dict[str, bytes]:
    """The files in a NEFF's archive, compressed or not."""
    read_header(neff)
    with tarfile.open(fileobj=io.BytesIO(neff[HEADER_SIZE:]), mode="r:*") as tar:
        return {entry.name: file.read() for entry in tar.getmembers() if (file := tar.extractfile(entry)) is not None}
