"""bad_frame.py: hostile files whose header, footer, padding, digests or payload are wrong.

SPDX-License-Identifier: Apache-2.0

Everything but the defect is correct: checks, digests and root are computed over what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cases import Bad, b3, cache, kvc1, opaque, pattern, small

TOP = 2**64 - 1
FOOTER = kvc1.FOOTER_BYTES


def foreign() -> Iterator[Bad]:
    """Yields beginnings of other formats."""
    tensors = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    zip_head = b"PK\x03\x04\x14\x00\x00\x08\x00\x00" + bytes(16)
    zip_head += b"\x10\x00\x00\x00archive/data.pkl"
    numpy = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"
    samples = {
        "safetensors": struct.pack("<Q", len(tensors)) + tensors + b"\1\2\3\4",
        "gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(200),
        "llama-session": struct.pack("<III", 0x6767736E, 9, 4) + bytes(200),
        "llama-sequence": struct.pack("<III", 0x67677371, 2, 4) + bytes(200),
        "llama-session-big-endian": b"ggsn" + struct.pack(">II", 9, 4) + bytes(200),
        "torch-zip": zip_head + bytes(200),
        "pickle-2": b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01u." + bytes(200),
        "pickle-4": b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.",
        "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(200),
        "numpy": b"\x93NUMPY\x01\x00" + struct.pack("<H", len(numpy)) + numpy + bytes(200),
        "kvc-01-quantised": b"KVC\x01"
        + struct.pack("<BBBBIIIB", 8, 1, 0, 3, 5, 0, 512, 2).ljust(200),
        "kvc-01-versioned": b"KVC\x01" + struct.pack("<IIIII", 1, 3, 32, 1024, 5) + bytes(200),
        "plain-text": b"This is a text, and no cache at all.\n" * 8,
        "json": kvc1.canonical(kvc1.identity()),
        "zeros": bytes(4352),
        "one-byte": b"\x00",
        "seven-bytes": b"\x89KVC\x01\r\n",
        "end-magic-first": kvc1.END_MAGIC + bytes(200),
        "magic-at-1": b"\x00" + small().encode(),
        "lower-case": b"\x89kvc1\r\n\x1a" + small().encode()[8:],
        "kvc2": b"\x89KVC2\r\n\x1a" + small().encode()[8:],
    }
    for name, data in samples.items():
        yield Bad("foreign", name, f"another format: {name}", data, 0)


def mangled() -> Iterator[Bad]:
    """Yields whole files after a transfer in text mode."""
    data = small().encode()
    samples = {
        "crlf-to-lf": data.replace(b"\r\n", b"\n"),
        "lf-to-crlf": data.replace(b"\n", b"\r\n"),
        "cr-to-lf": data.replace(b"\r", b"\n"),
        "lf-to-cr": data.replace(b"\n", b"\r"),
        "crlf-to-cr": data.replace(b"\r\n", b"\r"),
        "high-bit-stripped": bytes(byte & 0x7F for byte in data),
        "latin-1-to-utf-8": data.decode("latin-1").encode(),
        "cp1252-to-utf-8": "".join(
            bytes([b]).decode("cp1252", errors="ignore") or chr(b) for b in data
        ).encode(),
        "replacement-characters": data.decode("utf-8", errors="replace").encode(),
        "question-marks": bytes(byte if byte < 128 else 0x3F for byte in data),
        "non-ascii-dropped": bytes(byte for byte in data if byte < 128),
        "non-ascii-dropped-crlf-to-lf": bytes(b for b in data if b < 128).replace(b"\r\n", b"\n"),
        "short-crlf-to-lf": data[:40].replace(b"\r\n", b"\n"),
    }
    for name, changed in samples.items():
        yield Bad("mangled", name, f"a text-mode transfer: {name}", changed, 0)


def sizes() -> Iterator[Bad]:
    """Yields empty, cut, grown and unfinished files."""
    yield Bad("empty", "no-bytes", "a file of zero bytes", b"", None)
    data = small().encode()
    size = len(data)
    for length in (1, 7, 8, 9, 127, 128, 129, 780, 4095, 4096, 4108, size - 129, size - 1):
        why = f"the first {length} of {size} bytes"
        yield Bad("truncated", f"first-{length}", why, data[:length], length)
    after = {
        "one-zero": b"\0",
        "one-byte": b"\xff",
        "footer-again": data[-128:],
        "file-again": data,
        "page-of-zeros": bytes(4096),
    }
    for name, more in after.items():
        why = f"{len(more)} bytes after the end"
        yield Bad("trailing", name, why, small(trailing=more).encode(), size)
    last = size - FOOTER
    why = "the footer is zero"
    yield Bad("unfinished", "footer-zero", why, small(footer=bytes(128)).encode(), last)
    metadata, tensors = cache()
    reserved = kvc1.parts(metadata, tensors, footer=bytes(128)).encode()
    reserved = reserved[:128] + bytes(size - 128)
    yield Bad("unfinished", "header-only", "zeros after the header", reserved, last)
    hole = data[:4096] + bytes(size - 4096)
    yield Bad("unfinished", "no-payload", "zeros after the metadata", hole, last)


def unsupported() -> Iterator[Bad]:
    """Yields versions, features and algorithms that a reader of format 1.1 does not know."""
    for major in (0, 2, 256, 65535):
        data = small(version_major=major).encode()
        yield Bad("version", f"major-{major}", f"major version {major}", data, 8, "version_major")
    other = {"incompat": TOP, "digest_alg": 9, "header_bytes": 256, "header_reserved": b"\1" * 49}
    strange = small(version_major=2, **other)
    why = "a later major version whose other fields mean something else"
    yield Bad("version", "major-2-other-fields", why, strange.encode(), 8, "version_major")
    names = {2: "chunk-codec", 3: "tail-header", 4: "encrypted"}
    for bit in (2, 3, 4, 5, 31, 32, 63):
        data = small(incompat=1 << bit).encode()
        name = f"incompat-bit-{bit}" + (f"-{names[bit]}" if bit in names else "")
        yield Bad("feature", name, f"bit {bit} of incompat", data, 16, "incompat")
    data = small(incompat=TOP).encode()
    yield Bad("feature", "incompat-all", "all bits of incompat", data, 16, "incompat")
    data = small(incompat=kvc1.MANIFEST_2 | kvc1.SEGMENT | 4).encode()
    why = "both known bits of incompat, which have no business here, and an unknown one"
    yield Bad("feature", "incompat-known-and-unknown", why, data, 16, "incompat")
    metadata, tensors = cache()
    metadata["tensor_manifest"]["version"] = 3
    both = kvc1.parts(metadata, tensors, incompat=4).encode()
    why = "manifest version 3 and an unknown bit: the bit is judged first"
    yield Bad("feature", "manifest-3-and-bit", why, both, 16, "incompat")
    for alg in (0, 2, 255):
        data = small(digest_alg=alg).encode()
        yield Bad("feature", f"digest-alg-{alg}", f"digest_alg {alg}", data, 68, "digest_alg")
    for log2 in (0, 10, 15, 17, 64, 255):
        data = small(chunk_log2=log2).encode()
        yield Bad("feature", f"chunk-log2-{log2}", f"chunk_log2 {log2}", data, 69, "chunk_log2")
    for log2 in (1, 5, 7, 11, 13, 63, 64, 255):
        made = small()
        made.payload = made.stored_payload()
        made.align_log2 = log2
        data = made.encode()
        yield Bad("feature", f"align-log2-{log2}", f"align_log2 {log2}", data, 70, "align_log2")


def structure() -> Iterator[Bad]:
    """Yields header and footer fields that are impossible."""
    for size in (0, 127, 129, 256, 4096, 2**32 - 1):
        data = small(header_bytes=size).encode()
        yield Bad("structure", f"header-bytes-{size}", f"{size}", data, 12, "header_bytes")
    for at in (0, 24, 48):
        reserved = bytes(at) + b"\1" + bytes(48 - at)
        data = small(header_reserved=reserved).encode()
        yield Bad("structure", f"header-reserved-{at}", "not zero", data, 71 + at, "reserved")
    metadata_bytes = (0, 1, (16 << 20) + 1, 2**32, 2**63, TOP, TOP - 127, TOP - 4223)
    for value in metadata_bytes:
        data = small(metadata_bytes=value).encode()
        why = f"{value} bytes of metadata"
        yield Bad("structure", f"metadata-bytes-{value}", why, data, 48, "metadata_bytes")
    why = "metadata that do not fit the file"
    data = small(metadata_bytes=16 << 20).encode()
    yield Bad("structure", "metadata-bytes-do-not-fit", why, data)
    data = small(payload_span=0).encode()
    yield Bad("structure", "payload-span-0", "no payload", data, 56, "payload_span")
    spans = (65, 2**32, 2**53 - 1, 2**53, 2**63, TOP - 4095, TOP - 4159, TOP - 63, TOP)
    for value in spans:
        data = small(payload_span=value).encode()
        yield Bad("structure", f"payload-span-{value}", "does not fit the file", data)
    for value in (65537, 2**31, 2**32 - 1, 2**27, 2**27 + 2):
        data = small(tensor_count=value).encode()
        why = f"{value} tensors"
        yield Bad("structure", f"tensor-count-{value}", why, data, 64, "tensor_count")
    for value in (3, 65536):
        data = small(tensor_count=value).encode()
        yield Bad("structure", f"tensor-count-{value}", "digests do not fit the file", data)
    size = len(small().encode())
    for value in (0, 128, 256, size - 1, 2**53, 2**63, TOP):
        data = small(file_bytes=value).encode()
        why = f"file_bytes {value} in a file of {size}"
        yield Bad("structure", f"file-bytes-{value}", why, data, 40, "file_bytes")
    last = size - FOOTER
    for at in (0, 39):
        data = small(footer_reserved=bytes(at) + b"\x80" + bytes(39 - at)).encode()
        yield Bad("structure", f"footer-reserved-{at}", "not zero", data, last + 72 + at)
    for value in (0, size - 1, size + 1, TOP):
        data = small(footer_file_bytes=value).encode()
        why = f"file_bytes is {size} in the header and {value} in the footer"
        yield Bad("structure", f"footer-file-bytes-{value}", why, data, last + 64, "file_bytes")


def checks() -> Iterator[Bad]:
    """Yields header and footer checks, end magics and roots that do not match."""
    data = small().encode()
    last = len(data) - FOOTER
    yield Bad("header_check", "zero", "zero", small(header_check=bytes(8)).encode(), 120)
    flipped = bytes([data[120] ^ 1]) + data[121:128]
    yield Bad("header_check", "one-bit", "a bit", small(header_check=flipped).encode(), 120)
    reverse = data[120:128][::-1]
    yield Bad("header_check", "reversed", "reversed", small(header_check=reverse).encode(), 120)
    other = small(compat=1).encode()
    yield Bad("header_check", "other-header", "of another header", other[:120] + data[120:], 120)
    for at in (8, 10, 12, 16, 24, 32, 40, 48, 56, 64, 68, 69, 70, 71, 119):
        changed = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
        yield Bad("header_check", f"byte-{at}", f"header byte {at} changed", changed, 120)
    yield Bad("footer_check", "zero", "zero", small(footer_check=bytes(8)).encode(), last + 112)
    for at in (0, 31, 32, 63, 64, 72, 111, 112, 119):
        changed = data[: last + at] + bytes([data[last + at] ^ 1]) + data[last + at + 1 :]
        yield Bad("footer_check", f"byte-{at}", f"footer byte {at} changed", changed, last + 112)
    ends = {"zero": bytes(8), "forwards": kvc1.MAGIC, "one-bit": b"\x1a\n\r1CVK\x88"}
    for name, end in ends.items():
        why = f"end magic: {name}"
        yield Bad("footer_check", f"end-{name}", why, small(end_magic=end).encode(), last + 120)
    text = b"a text written over the footer".ljust(128)
    yield Bad("footer_check", "text", "a text over the footer", small(footer=text).encode())
    footer = opaque().encode()[-128:]
    why = "the footer of a file of another size"
    yield Bad("structure", "footer-of-another-file", why, small(footer=footer).encode())


def roots() -> Iterator[Bad]:
    """Yields roots that the metadata and digests do not give."""
    made = small()
    text = made.metadata
    digests = made.stored_digests()
    last = len(made.encode()) - FOOTER
    lengths = struct.pack("<QQ", len(text), 2)
    joined = b"".join(digests)
    derive = b3.blake3_derive
    wrong = {
        "zero": bytes(32),
        "ones": b"\xff" * 32,
        "plain-hash": b3.blake3(lengths + text + joined),
        "other-context": derive("KVC1 1.1 root", lengths + text + joined),
        "tag-context": derive(kvc1.TAG_CONTEXT, lengths + text + joined),
        "without-lengths": derive(kvc1.ROOT_CONTEXT, text + joined),
        "lengths-swapped": derive(
            kvc1.ROOT_CONTEXT, struct.pack("<QQ", 2, len(text)) + text + joined
        ),
        "digests-swapped": kvc1.root_of(text, digests[::-1]),
        "one-digest": kvc1.root_of(text, digests[:1]),
        "metadata-only": kvc1.root_of(text, []),
        "other-metadata": kvc1.root_of(text.replace(b"example", b"exbmple"), digests),
        "with-header": derive(kvc1.ROOT_CONTEXT, made.encode()[:128] + lengths + text + joined),
    }
    for name, root in wrong.items():
        yield Bad("root", name, f"root: {name}", small(root=root).encode(), last, "root")
    data = made.encode()
    for name, at in {"metadata": 200, "first-digest": last - 64, "last-digest": last - 1}.items():
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        yield Bad("root", f"changed-{name}", f"a bit in the {name}", changed, last, "root")
    not_json = text[:-1] + b"!"
    damaged = data.replace(text, not_json)
    why = "damaged metadata that are not JSON: the root is judged first"
    yield Bad("root", "changed-json", why, damaged, last, "root")


def padding() -> Iterator[Bad]:
    """Yields padding and gaps that are not zero."""
    made = small()
    end = 128 + len(made.metadata)
    room = 4096 - end
    for name, at in {"first": 0, "middle": room // 2, "last": room - 1}.items():
        head = bytes(at) + b"\x01" + bytes(room - at - 1)
        data = small(head_padding=head).encode()
        yield Bad("padding", f"head-{name}", "after the metadata", data, end + at)
    spaces = small(head_padding=b" " * room).encode()
    yield Bad("padding", "head-spaces", "spaces after the metadata", spaces, end)
    for name, at in {"first": 0, "last": 51}.items():
        tail = bytes(at) + b"\x80" + bytes(51 - at)
        data = small(tail_padding=tail).encode()
        yield Bad("padding", f"tail-{name}", "after the payload", data, 4108 + at)
    both = small(head_padding=bytes(room - 1) + b"\1", tail_padding=b"\1" + bytes(51)).encode()
    why = "before and after the payload: the first is named"
    yield Bad("padding", "head-and-tail", why, both, 4095)
    metadata, tensors = cache(layers=2, kv_heads=1, head_dim=5, sequence_length=3)
    base = kvc1.parts(metadata, tensors, align_log2=6)
    payload = base.stored_payload()
    at_p = base.payload_offset()
    places = {"first": 15, "last": 63, "second-gap": 64 + 15, "third-gap": 128 + 40}
    for name, at in places.items():
        changed = payload[:at] + b"\x01" + payload[at + 1 :]
        data = kvc1.parts(metadata, tensors, align_log2=6, payload=changed).encode()
        yield Bad("padding", f"gap-{name}", "between tensors, align 64", data, at_p + at)
    wide = kvc1.parts(metadata, tensors, align_log2=12)
    payload = wide.stored_payload()
    changed = payload[:4095] + b"\xff" + payload[4096:]
    data = kvc1.parts(metadata, tensors, align_log2=12, payload=changed).encode()
    yield Bad("padding", "gap-4096", "between tensors, align 4096", data, at_p + 4095)


def rows() -> Iterator[Bad]:
    """Yields chunk values that do not give the tensor digest."""
    body = pattern(65537, 5)
    good = kvc1.chunk_values(body)
    digest = [kvc1.tensor_digest(body)]
    alone = [b3.blake3(piece) for piece in kvc1.grid(body)]
    from_zero = [b3.subtree(piece, 0) for piece in kvc1.grid(body)]
    wrong = {
        "first-value": [bytes([good[0][0] ^ 1]) + good[0][1:], good[1]],
        "last-value": [good[0], good[1][:31] + bytes([good[1][31] ^ 0x80])],
        "swapped": [good[1], good[0]],
        "repeated": [good[0], good[0]],
        "zero": [bytes(32), bytes(32)],
        "plain-hashes": alone,
        "counters-from-0": from_zero,
    }
    at = opaque(body).trailer_offset()
    for name, row in wrong.items():
        data = opaque(body, rows=[row], digests=digest).encode()
        yield Bad("row", name, f"chunk values: {name}", data, at)
    metadata, tensors = cache(head_dim=1, sequence_length=65537)
    first, second = (kvc1.chunk_values(tensor) for tensor in tensors)
    made = kvc1.parts(metadata, tensors)
    digests = made.stored_digests()
    data = kvc1.parts(metadata, tensors, rows=[second, first], digests=digests).encode()
    why = "the rows of two tensors are swapped"
    yield Bad("row", "rows-swapped", why, data, made.trailer_offset())
    changed = [second[0], bytes(32)]
    data = kvc1.parts(metadata, tensors, rows=[first, changed], digests=digests).encode()
    why = "a value of the second tensor"
    yield Bad("row", "second-tensor", why, data, made.trailer_offset() + 64)


def chunks() -> Iterator[Bad]:
    """Yields payload that does not match digests which are themselves in order."""
    metadata, tensors = cache()
    digests = [kvc1.tensor_digest(tensor) for tensor in tensors]
    at = small().payload_offset()
    changed = {
        "first-byte": ([b"\x80" + tensors[0][1:], tensors[1]], at),
        "last-byte": ([tensors[0], tensors[1][:-1] + b"\x80"], at + 6),
        "tensors-swapped": (tensors[::-1], at),
        "zero": ([bytes(6), bytes(6)], at),
        "shifted": ([tensors[0][1:] + b"\0", tensors[1]], at),
    }
    for name, (bodies, place) in changed.items():
        data = kvc1.parts(metadata, bodies, digests=digests).encode()
        yield Bad("chunk", name, f"payload: {name}", data, place)
    for name, made in {
        "digest-keyed": [b3.blake3_keyed(bytes(32), tensor) for tensor in tensors],
        "digest-swapped": digests[::-1],
        "digest-zero": [bytes(32), bytes(32)],
    }.items():
        data = kvc1.parts(metadata, tensors, digests=made).encode()
        yield Bad("chunk", name, f"tensor digests: {name}", data, at)
    body = pattern(65537, 5)
    row = kvc1.chunk_values(body)
    at = opaque(body).payload_offset()
    flipped = {
        "grid-0": (bytes([body[0] ^ 1]) + body[1:], at),
        "grid-0-end": (body[:65535] + b"\xff" + body[65536:], at),
        "grid-1": (body[:65536] + bytes([body[65536] ^ 1]), at + 65536),
    }
    for name, (other, place) in flipped.items():
        data = opaque(other, rows=[row]).encode()
        yield Bad("chunk", name, "a byte of a tensor of two chunks", data, place)
    forged = [row[0], row[0]]
    data = opaque(body, rows=[forged]).encode()
    why = "a row that gives the digest, but is not that of the payload"
    yield Bad("chunk", "row-forged", why, data, at + 65536)
    whole = opaque(body, rows=[[b3.blake3(p) for p in kvc1.grid(body)]]).encode()
    why = "a row of plain hashes, and a digest made of them"
    yield Bad("chunk", "row-of-plain-hashes", why, whole, at)


def cases() -> Iterator[Bad]:
    """Yields all files of this module."""
    groups = (foreign, mangled, sizes, unsupported, structure, checks, roots, padding, rows, chunks)
    for group in groups:
        yield from group()
