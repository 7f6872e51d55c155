"""Writes the smallest cubin that has what the reader reads."""

from __future__ import annotations

import struct


def make_cubin(
    kernel: str, *, registers: int, frame: int, shared: int, device_function: str | None = None
) -> bytes:
    """A 64-bit ELF file with a symbol table, `.nv.info` and the kernel's own sections."""
    symbols = [kernel, *([device_function] if device_function else [])]
    info = b""
    for index, _ in enumerate(symbols, start=1):
        info += struct.pack("<BBHII", 4, 0x2F, 8, index, registers)
        info += struct.pack("<BBHII", 4, 0x11, 8, index, frame)
    info += struct.pack("<BBH", 3, 0x1B, 255)  # an attribute whose value is in its size
    names = b"\0"
    table = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for symbol in symbols:
        table += struct.pack("<IBBHQQ", len(names), 0, 0, 0, 0, 0)
        names += symbol.encode() + b"\0"
    sections: list[tuple[str, int, bytes, int, int]] = [
        ("", 0, b"", 0, 0),
        (".strtab", 3, names, 0, len(names)),
        (".symtab", 2, table, 1, len(table)),
        (".nv.info", 0x70000000, info, 2, len(info)),
        (f".nv.constant0.{kernel}", 1, b"\0" * 8, 0, 8),
        # Shared memory takes no room in the file, so its size is all there is.
        (f".nv.shared.{kernel}", 8, b"", 0, shared),
    ]
    section_names = b""
    positions = []
    for name, *_ in [*sections, (".shstrtab",)]:
        positions.append(len(section_names))
        section_names += name.encode() + b"\0"
    sections.append((".shstrtab", 3, section_names, 0, len(section_names)))
    body, rows = b"", b""
    for (_, kind, content, link, size), name_at in zip(sections, positions, strict=True):
        rows += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, 64 + len(body), size, link, 0, 1, 0)
        body += content
    header = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header += struct.pack("<HHIQQQI", 2, 190, 1, 0, 0, 64 + len(body), 0)
    header += struct.pack("<HHHHHH", 64, 0, 0, 64, len(sections), len(sections) - 1)
    return header + body + rows
