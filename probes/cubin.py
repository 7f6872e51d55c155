"""What a compiled kernel needs of the hardware, read from its cubin with the standard library.

A cubin is an ELF file. Its `.nv.info` section holds attributes as (format, attribute, size)
followed by the value; those used here have format 4 and hold the index of a function's symbol and
a number. Section `.nv.shared.<function>` has the size of the function's static shared memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_SYMBOLS = 2  # section type SHT_SYMTAB
_SIZED = 4  # attribute format: a 16-bit size, then the value
_REGISTERS = 0x2F
_FRAME_SIZE = 0x11


@dataclass(frozen=True)
class Resources:
    """What one kernel uses. Sizes are in bytes, registers and frame per thread."""

    name: str
    registers: int
    stack_frame_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def kernels(cubin: bytes) -> list[Resources]:
    """The kernels of a cubin, by name.

    Raises:
        ValueError: it is no cubin, or it is cut short.
    """
    if not cubin.startswith(_MAGIC):
        raise ValueError("not a 64-bit ELF file")
    try:
        sections = _sections(cubin)
        symbols = _symbols(cubin, sections)
        attributes = list(_attributes(cubin, sections))
    except (struct.error, IndexError) as error:
        raise ValueError(f"the ELF file is cut short: {error}") from error
    frames = {symbol: value for kind, symbol, value in attributes if kind == _FRAME_SIZE}
    shared = {section.name: section.size for section in sections}
    found = [
        Resources(
            symbols[symbol],
            registers,
            frames.get(symbol, 0),
            shared.get(f".nv.shared.{symbols[symbol]}", 0),
        )
        for kind, symbol, registers in attributes
        # Device functions have a register count too; a kernel has a section of parameters.
        if kind == _REGISTERS and f".nv.constant0.{symbols[symbol]}" in shared
    ]
    return sorted(found, key=lambda kernel: kernel.name)


def _sections(cubin: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    rows = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    texts = rows[names][4]
    return [_Section(_text(cubin, texts + row[0]), row[1], row[4], row[5], row[6]) for row in rows]


def _symbols(cubin: bytes, sections: list[_Section]) -> dict[int, str]:
    found: dict[int, str] = {}
    for section in sections:
        if section.kind == _SYMBOLS:
            texts = sections[section.link].offset
            for index in range(section.size // 24):
                (name,) = struct.unpack_from("<I", cubin, section.offset + index * 24)
                found[index] = _text(cubin, texts + name)
    return found


def _attributes(cubin: bytes, sections: list[_Section]) -> Iterator[tuple[int, int, int]]:
    for section in sections:
        if section.name != ".nv.info":
            continue
        position, end = section.offset, section.offset + section.size
        while position + 4 <= end:
            form, attribute, size = struct.unpack_from("<BBH", cubin, position)
            position += 4
            if form == _SIZED:
                if size == 8:
                    symbol, value = struct.unpack_from("<II", cubin, position)
                    yield attribute, symbol, value
                position += size


def _text(cubin: bytes, position: int) -> str:
    end = cubin.find(b"\0", position)
    if end < 0:
        raise IndexError("a name without an end")
    return cubin[position:end].decode("utf-8", "replace")


def dynamic_shared_bytes(mlir: str) -> int | None:
    """Dynamic shared memory of a launch in bytes, from the compiler's MLIR; None if it can't tell.

    Older compilers write the number. Newer ones may write a reference to the kernel's own need,
    which is then the sum of the kernel's allocations, each a memory reference of so many bytes.
    """
    match = re.search(r"dynamicSmemBytes = %(\w+)", mlir)
    if match is None:
        return None
    name = match.group(1)
    constant = re.fullmatch(r"c(\d+)_i(?:32|64)(?:_\d+)?", name)
    if constant:
        return int(constant.group(1))
    if not re.search(rf"%{re.escape(name)} = cute\.kernel_smem_size\b", mlir):
        return None
    aliases = dict(re.findall(r"(![\w.]+) = !cute\.memref<(.*)>", mlir))
    total = 0
    for alias in re.findall(r"cute\.memref\.alloca\(\).*?: (![\w.]+)", mlir):
        if ", rmem," in aliases.get(alias, ""):
            continue  # registers
        size = re.fullmatch(r'i8, smem,.*"(\d+):1"', aliases.get(alias, ""))
        if size is None:
            return None
        total += int(size.group(1))
    return total
