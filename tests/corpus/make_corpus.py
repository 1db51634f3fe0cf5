"""make_corpus.py: writes the corpus: valid files, hostile files, and what is known about them.

Usage: make_corpus.py            writes good/, bad/ and the example in docs/FORMAT.md
       make_corpus.py --check    compares them with what it would write; 1 when they differ
       make_corpus.py --example  prints the example of docs/FORMAT.md

SPDX-License-Identifier: Apache-2.0

The output depends on nothing but the code here and in ../spec. compat/ is not touched: what lies
there was frozen by a release.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import bad_frame
import bad_manifest2
import bad_metadata
import bad_tables
import good
import good_manifest2
from cases import CORPUS, Bad, Good, kvc1

FORMAT = CORPUS.parent.parent / "docs" / "FORMAT.md"
BEGIN = "<!-- example: begin (made by tests/corpus/make_corpus.py --example) -->\n"
END = "<!-- example: end -->\n"


# ---- Facts --------------------------------------------------------------------------------------


def pretty(value: Any) -> bytes:
    """Returns JSON for people to read, ending in a newline."""
    return json.dumps(value, indent=1, ensure_ascii=True).encode() + b"\n"


def facts(case: Good) -> dict[str, Any]:
    """Returns what a reader must find in a valid file."""
    parts = case.parts
    data = parts.encode()
    opaque = parts.tensor_count == 0
    metadata = json.loads(parts.metadata)
    names = [""] if opaque else [r["name"] for r in metadata["tensor_manifest"]["tensors"]]
    second = bool(parts.incompat & kvc1.MANIFEST_2)
    offset, tensors = 0, []
    for name, start, body, digest in zip(
        names, parts.starts(), parts.tensors, parts.stored_digests(), strict=True
    ):
        tensors.append(
            {
                "name": name,
                "offset": offset,
                # A tensor of no bytes has no place in the payload.
                "file_offset": parts.payload_offset() + start if body else None,
                "nbytes": len(body),
                "digest": digest.hex(),
            }
        )
        offset += len(body)
    return {
        "note": case.note,
        "root": kvc1.root_text(parts.stored_root()),
        "version_minor": parts.version_minor,
        "incompat": parts.incompat,
        "ro_compat": parts.ro_compat,
        "compat": parts.compat,
        "file_bytes": len(data),
        "metadata_bytes": len(parts.metadata),
        "payload_offset": parts.payload_offset(),
        "payload_span": len(parts.stored_payload()),
        "payload_bytes": offset,
        "align_bytes": 1 << parts.align_log2,
        "tensor_count": 0 if opaque else len(names),
        "chunk_count": sum(len(kvc1.grid(body)) for body in parts.tensors),
        "key": None if parts.key is None else parts.key.hex(),
        "tensors": tensors if second else tensors[:8],
        "metadata": parts.metadata.decode(),
    }


def good_cases() -> Iterator[Good]:
    """Yields all valid files."""
    for module in (good, good_manifest2):
        yield from module.cases()


def bad_cases() -> Iterator[Bad]:
    """Yields all hostile files."""
    for module in (bad_frame, bad_metadata, bad_manifest2, bad_tables):
        yield from module.cases()


def corpus() -> dict[str, bytes]:
    """Returns every file of the corpus by its path in this folder."""
    files: dict[str, bytes] = {}

    def add(path: str, data: bytes) -> None:
        if path in files:
            raise RuntimeError(f"two cases are called {path}")
        files[path] = data

    for case in good_cases():
        add(f"good/{case.name}.kvc", case.parts.encode())
        add(f"good/{case.name}.json", pretty(facts(case)))
    index: dict[str, Any] = {}
    for bad in bad_cases():
        path = f"{bad.status}/{bad.name}.kvc"
        add(f"bad/{path}", bad.data)
        index[path] = {
            "status": bad.status,
            "why": bad.why,
            "offset": bad.offset,
            "field": bad.field,
        }
    add("bad/INDEX.json", pretty(dict(sorted(index.items()))))
    return files


# ---- Example ------------------------------------------------------------------------------------

HEADER_FIELDS = (
    ("magic", 8), ("version_major", 2), ("version_minor", 2), ("header_bytes", 4),
    ("incompat", 8), ("ro_compat", 8), ("compat", 8), ("file_bytes", 8), ("metadata_bytes", 8),
    ("payload_span", 8), ("tensor_count", 4), ("digest_alg", 1), ("chunk_log2", 1),
    ("align_log2", 1), ("reserved", 49), ("header_check", 8),
)  # fmt: skip
FOOTER_FIELDS = (
    ("root", 32), ("tag", 32), ("file_bytes", 8), ("reserved", 40), ("footer_check", 8),
    ("end_magic", 8),
)  # fmt: skip


def dump(data: bytes, at: int, label: str = "") -> Iterator[str]:
    """Yields lines of 16 bytes; the first carries the label."""
    for i in range(0, len(data), 16):
        line = f"{at + i:04x}  {data[i : i + 16].hex(' '):<47}  {label if i == 0 else ''}"
        yield line.rstrip()


def dump_text(data: bytes, at: int) -> Iterator[str]:
    """Yields lines of 16 bytes with their characters."""
    for i in range(0, len(data), 16):
        piece = data[i : i + 16]
        yield f"{at + i:04x}  {piece.hex(' '):<47}  {piece.decode('ascii')}"


def dump_fields(data: bytes, at: int, fields: tuple[tuple[str, int], ...]) -> Iterator[str]:
    """Yields the fields of a header or a footer."""
    for name, size in fields:
        value = data[:size]
        label = name
        if name not in ("magic", "end_magic", "root", "tag") and not name.endswith("_check"):
            label += f" {int.from_bytes(value, 'little')}"
        if size > 16 and not any(value):
            yield f"{at:04x}  {f'{size} zero bytes':<47}  {name}"
        else:
            yield from dump(value, at, label)
        data, at = data[size:], at + size


def dump_zeros(start: int, stop: int, label: str) -> str:
    """Returns the line for padding."""
    return f"{start:04x}  {f'{stop - start} zero bytes':<47}  {label}"


def example() -> str:
    """Returns the worked example as it stands in FORMAT.md."""
    parts = good.example()
    data = parts.encode()
    metadata_end = 128 + len(parts.metadata)
    p, t = parts.payload_offset(), parts.trailer_offset()
    first, second = parts.stored_digests()
    footer = len(data) - 128
    material = struct.pack("<QQ", len(parts.metadata), 2).hex(" ")
    lines = ["```"]
    lines += dump_fields(data[:128], 0, HEADER_FIELDS)
    lines += ["", f"metadata, {len(parts.metadata)} bytes"]
    lines += dump_text(parts.metadata, 128)
    lines += ["", dump_zeros(metadata_end, p, f"head padding, up to P = {p}"), ""]
    lines += dump(parts.tensors[0], p, 'layer.0.key: "key 01"')
    lines += dump(parts.tensors[1], p + 6, 'layer.0.value: "value2"')
    lines += ["", dump_zeros(p + 12, t, f"tail padding, up to T = {t}"), ""]
    lines += dump(first, t, "digest of layer.0.key (C = 0: no chunk values)")
    lines += dump(second, t + 32, "digest of layer.0.value")
    lines += [""]
    lines += dump_fields(data[footer:], footer, FOOTER_FIELDS)
    lines += ["```", ""]
    lines += [f"P = round_up(128 + {len(parts.metadata)}, 4096) = {p},"]
    lines += [f"T = round_up({p} + 12, 64) = {t}, file_bytes = {t} + 64 + 128 = {len(data)}."]
    lines += ["The root is derived from the 16 bytes", "", "```", material, "```", ""]
    lines += ["the metadata and the two digests, and is", "", "```"]
    lines += [kvc1.root_text(parts.stored_root()), "```", ""]
    tag = kvc1.tag_of(parts.stored_root(), good.KEY)
    lines += ["With the key `00 01 02 ... 1f` the tag would be", "", "```", tag.hex(), "```"]
    return "\n".join(lines) + "\n"


def format_text() -> str:
    """Returns FORMAT.md with the example in its place."""
    text = FORMAT.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + "\n" + example() + "\n" + END + tail


# ---- Commands -----------------------------------------------------------------------------------


def existing() -> set[str]:
    """Returns the paths of the files that are there."""
    found = [path for name in ("good", "bad") for path in (CORPUS / name).rglob("*")]
    return {path.relative_to(CORPUS).as_posix() for path in found if path.is_file()}


def differences() -> list[str]:
    """Returns a sentence for each file that is not as it should be."""
    files = corpus()
    found = existing()
    wrong = [f"{path} is missing" for path in sorted(set(files) - found)]
    wrong += [f"{path} does not belong here" for path in sorted(found - set(files))]
    for path in sorted(found & set(files)):
        if (CORPUS / path).read_bytes() != files[path]:
            wrong.append(f"{path} has other bytes")
    if FORMAT.read_text(encoding="utf-8") != format_text():
        wrong.append("the example in docs/FORMAT.md is another one")
    return wrong


def write() -> None:
    """Writes everything and removes what does not belong."""
    files = corpus()
    for path in existing() - set(files):
        (CORPUS / path).unlink()
    for path, data in files.items():
        target = CORPUS / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != data:
            target.write_bytes(data)
    text = format_text()
    if FORMAT.read_text(encoding="utf-8") != text:
        FORMAT.write_text(text, encoding="utf-8")
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")


def main(words: list[str]) -> int:
    """Runs a command and returns its exit code."""
    if words == ["--example"]:
        print(example(), end="")
        return 0
    if words == ["--check"]:
        wrong = differences()
        for sentence in wrong:
            print(sentence)
        return 1 if wrong else 0
    if words:
        print(__doc__, file=sys.stderr)
        return 2
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
