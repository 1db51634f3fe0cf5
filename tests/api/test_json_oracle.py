"""test_json_oracle.py: compares the JSON scanner, canonical writer and decimals with Python's own.

The reference is Python's `json`, made strict: what the format refuses is refused here by checks of
the value, and canonical text is the text that `json.dumps` gives for its own value. The C program
`json_tool` answers thousands of documents in one process; it is looked for in the folder
KVC_BUILD_DIR (default: build).
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import random
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("KVC_BUILD_DIR", "build")
CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "json"
MAX_INTEGER = (1 << 53) - 1
MAX_DEPTH = 16
SEED = 20260501
RANDOM_DOUBLES = 250_000
RANDOM_DOCUMENTS = 20_000

DUPLICATES = "duplicate keys"


class Refused(Exception):
    """The reference finds that a text cannot be stored."""


def find_tool() -> pathlib.Path:
    """Return the path of json_tool, which Meson may put in any folder below the build folder."""
    for path in sorted(BUILD.rglob("json_tool")):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    pytest.skip(f"json_tool is not built in {BUILD}")


def ask(mode: str, documents: Sequence[bytes], *more: str) -> list[str]:
    """Return the answer lines of one tool process, one for each document."""
    run = subprocess.run(
        [find_tool(), mode, *more],
        input=b"".join(struct.pack("<I", len(text)) + text for text in documents),
        capture_output=True,
        check=True,
        timeout=600,
    )
    lines = run.stdout.decode().splitlines()
    assert len(lines) == len(documents)
    return lines


# ---- The reference -------------------------------------------------------------------------------


def take_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Refused(f"{text} is not finite")
    return value if value != 0 else 0.0


def take_integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_INTEGER:
        raise Refused(f"{text} is too large")
    return int(text)


def take_constant(text: str) -> None:
    raise Refused(f"{text} is no JSON")


def check(value: Any, depth: int = 1) -> int:
    """Refuse text and nesting that cannot be stored; return how many values there are."""
    if isinstance(value, str):
        if "\0" in value or any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            raise Refused("U+0000 or half a surrogate pair")
        return 1
    if not isinstance(value, (dict, list)):
        return 1
    if depth > MAX_DEPTH:
        raise Refused("too deep")
    for key in value if isinstance(value, dict) else ():
        check(key)
    members = value.values() if isinstance(value, dict) else value
    return 1 + sum(check(member, depth + 1) for member in members)


def canonical(value: Any) -> bytes:
    """Return the canonical text of a value that can be stored."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def reference(document: bytes) -> tuple[Any, bool]:
    """Return the value of a document and whether an object in it has a key twice."""
    twice = False

    def take_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        members: dict[str, Any] = {}
        for key, value in pairs:
            twice = twice or key in members
            # A value that is overwritten is judged too: it is kept under a key of its own.
            members[key if key not in members else f"{key} {len(members)}"] = value
        return members

    try:
        value = json.loads(
            document.decode(),
            parse_float=take_float,
            parse_int=take_integer,
            parse_constant=take_constant,
            object_pairs_hook=take_object,
        )
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from error
    check(value)
    return value, twice


def expected_answers(document: bytes) -> dict[str, str]:
    """Return what the tool must answer in each mode; of a refusal only the word."""
    try:
        value, twice = reference(document)
    except Refused:
        return {"strict": "refuse", "any": "refuse", "canonical": "refuse"}
    if twice:
        return {"strict": "refuse", "any": "accept", "canonical": "refuse"}
    text = canonical(value)
    return {
        "strict": "accept" if text == document else "refuse",
        "any": "accept",
        "canonical": f"accept {text.hex()}",
    }


def compare(documents: Sequence[bytes]) -> dict[str, int]:
    """Hold the tool's answers to the reference's; return how many each mode accepted."""
    accepted = {}
    expected = [expected_answers(document) for document in documents]
    for mode in ("strict", "any", "canonical"):
        accepted[mode] = 0
        for document, wanted, line in zip(documents, expected, ask(mode, documents), strict=True):
            if line.startswith("refuse "):
                _, offset, problem = line.split(" ", 2)
                assert int(offset) <= len(document), (document, line)
                assert problem, (document, line)
                line = "refuse"
            assert line == wanted[mode], (mode, document, line)
            accepted[mode] += line != "refuse"
    return accepted


# ---- Documents -----------------------------------------------------------------------------------

INTERESTING = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"/", b" ", b"\n", b"\r", b"\t", b"\f"),
    *(b"0", b"1", b"9", b"-", b"+", b".", b"e", b"E", b"e+", b"E-", b"00", b"-0", b"0.0", b"-0.0"),
    *(b"1e5", b"1e+16", b"1e-05", b"1.50", b"1e308", b"1e309", b"1e-400", b"0.1", b"10000.0"),
    *(b"9007199254740991", b"9007199254740992", b"-9007199254740991", b"-9007199254740992"),
    *(b"true", b"false", b"null", b"NaN", b"Infinity", b"nul", b"{}", b"[]", b'""', b'"":0,'),
    *(b"\\u0000", b"\\u0001", b"\\u001f", b"\\u001F", b"\\u000a", b"\\u0041", b"\\u00e9"),
    *(b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\uD83D\\uDE00", b"\\u", b"\\u12", b"\\x"),
    *(b'\\"', b"\\\\", b"\\/", b"\\b", b"\\f", b"\\n", b"\\r", b"\\t", b"\\v", b"\\'", b"\\U"),
    *(b"\x00", b"\x01", b"\x1f", b"\x7f", b"\x80", b"\xbf", b"\xc0\x80", b"\xc2\x80", b"\xc1\xbf"),
    *(b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xee\x80\x80"),
    *(b"\xef\xbb\xbf", b"\xef\xbf\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80"),
    *(b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xe2\x82"),
]

CHARACTERS = "abzAZ09 _-./:,{}[]'\"\\\b\t\n\f\r\x01\x1f\x7f\x80é߿ࠀ€\ud7ff\ue000\uffff😀\U0010ffff"


def random_text(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return rng.choice(["", "a", "b", "ab", "layers", "tensor_manifest", "user"])
    return "".join(rng.choice(CHARACTERS) for _ in range(rng.randrange(12)))


def random_float(rng: random.Random) -> float:
    choice = rng.random()
    if choice < 0.4:
        return round(rng.uniform(-1e6, 1e6), rng.randrange(8)) + 0.0
    if choice < 0.6:
        return float(10 ** rng.randrange(22)) * rng.choice([1, -1, 1.5])
    value: float = struct.unpack("<d", rng.randbytes(8))[0]
    return value if math.isfinite(value) and value != 0 else 0.0


def random_value(rng: random.Random, depth: int) -> Any:
    choice = rng.random()
    if depth > 0 and choice < 0.35:
        return {random_text(rng): random_value(rng, depth - 1) for _ in range(rng.randrange(6))}
    if depth > 0 and choice < 0.6:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    if choice < 0.7:
        return rng.choice([True, False, None])
    if choice < 0.8:
        return rng.choice([0, 1, -1, 10, MAX_INTEGER, -MAX_INTEGER, rng.getrandbits(53)])
    return random_float(rng) if choice < 0.9 else random_text(rng)


def other_number(rng: random.Random, value: float) -> str:
    """Spell a float in one of many ways that read back as it."""
    ways: list[Callable[[], str]] = [
        lambda: repr(value),
        lambda: repr(value).replace("e", "E"),
        lambda: f"{value:.17e}",
        lambda: f"{value:.30E}",
        lambda: f"{Decimal(value):f}" if "." in f"{Decimal(value):f}" else f"{Decimal(value):f}.0",
        lambda: f"{value:.17e}".replace("e", rng.choice("000111") + "e"),
    ]
    return rng.choice(ways)()


def other_string(rng: random.Random, text: str) -> str:
    """Spell a string with escapes that need not be there."""
    out = []
    for c in text:
        if rng.random() < 0.3:
            units = c.encode("utf-16-be")
            pieces = (f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
            out.append(
                "".join(p.upper().replace("U", "u") if rng.random() < 0.3 else p for p in pieces)
            )
        elif c == "/" and rng.random() < 0.5:
            out.append("\\/")
        else:
            out.append(json.dumps(c, ensure_ascii=rng.random() < 0.2)[1:-1])
    return f'"{"".join(out)}"'


def spell(rng: random.Random, value: Any) -> str:
    """Spell a value as loosely as JSON allows, with its members in any order."""

    def space() -> str:
        return rng.choice(["", "", "", " ", "\n", "\t\r", "  "])

    if isinstance(value, dict):
        members = list(value.items())
        rng.shuffle(members)
        if members and rng.random() < 0.02:
            members.append(rng.choice(members))
        body = ",".join(
            f"{space()}{other_string(rng, key)}{space()}:{space()}{spell(rng, member)}{space()}"
            for key, member in members
        )
        return f"{{{body}{space()}}}"
    if isinstance(value, list):
        body = ",".join(f"{space()}{spell(rng, item)}{space()}" for item in value)
        return f"[{body}{space()}]"
    if isinstance(value, str):
        return other_string(rng, value)
    if isinstance(value, float):
        return other_number(rng, value)
    return json.dumps(value)


def mutate(rng: random.Random, document: bytes) -> bytes:
    """Change a document in one to three places."""
    text = bytearray(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice([0, 0, 1, 1, 2, 4]))
        choice = rng.random()
        if choice < 0.6:
            text[at:end] = rng.choice(INTERESTING)
        elif choice < 0.75:
            del text[at:end]
        elif choice < 0.85 and text:
            text[at % len(text)] ^= 1 << rng.randrange(8)
        elif choice < 0.95 and text:
            start = rng.randrange(len(text))
            text[at:at] = text[start : start + rng.randrange(1, 12)]
        else:
            del text[at:]
    return bytes(text)


def documents() -> Iterator[bytes]:
    """Yield canonical texts, loose spellings of the same values, and mutations of both."""
    rng = random.Random(SEED)
    for _ in range(RANDOM_DOCUMENTS // 4):
        value = random_value(rng, rng.choice([0, 1, 2, 3, 5]))
        strict = canonical(value)
        loose = spell(rng, value).encode()
        yield strict
        yield loose
        yield mutate(rng, strict)
        yield mutate(rng, loose)


# ---- Tests of the scanner and the writer ---------------------------------------------------------


def test_corpus() -> None:
    """The fuzz target's seeds, and every beginning of each."""
    seeds = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
    assert len(seeds) >= 40
    compare([seed[:end] for seed in seeds for end in range(len(seed) + 1)])


def test_every_token_in_every_place() -> None:
    """Each interesting piece alone, in a string, as a key, in an array and as a member."""
    frames = [
        b"%s",
        b'"%s"',
        b'"a%sb"',
        b'{"%s":1}',
        b'{"a%s":1,"b":2}',
        b"[%s]",
        b"[1%s]",
        b'{"a":%s}',
    ]
    frames += [b"[1,%s,2]", b'{"a":[],%s:2}', b" %s ", b"%s{}", b"{}%s", b"-%s", b"%s.5", b"%se1"]
    pairs = [a + b for a in INTERESTING for b in (b"", *INTERESTING)]
    accepted = compare([frame.replace(b"%s", piece) for frame in frames for piece in pairs])
    assert min(accepted.values()) > 1000


def test_every_pair_of_bytes() -> None:
    """Every byte in and out of a string, and every two bytes of 0x80 and more in a string."""
    singles = [bytes([byte]) for byte in range(256)]
    pairs = [bytes([a, b]) for a in range(0x80, 256) for b in range(256)]
    compare(
        [f % s for s in singles for f in (b"%s", b"[%s]", b'"%s"', b'"\\%s"', b"1%s", b'{"%s":0}')]
    )
    compare([b'"%s"' % pair for pair in pairs])


def test_utf8_borders() -> None:
    """Three and four bytes around every border of UTF-8."""
    seconds = (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    others = (0x7F, 0x80, 0xBF, 0xC0)
    compare(
        [b'"%s"' % bytes([a, b, c]) for a in range(0xE0, 0xF0) for b in seconds for c in others]
    )
    compare(
        [
            b'"%s"' % bytes([a, b, c, d])
            for a in range(0xF0, 0x100)
            for b in seconds
            for c in others
            for d in others
        ]
    )


def test_every_escape_of_four_digits() -> None:
    """All 65,536, alone and after the first half of a surrogate pair."""
    compare([b'"\\u%04x"' % point for point in range(0x10000)])
    compare([b'"\\ud83d\\u%04X"' % point for point in range(0, 0x10000, 7)])


def test_order_of_keys() -> None:
    """Pairs of keys that differ early, late, in length, and by an escape."""
    keys = [
        b"",
        b"a",
        b"aa",
        b"b",
        b"\\n",
        b"\\u0001",
        b"a\\n",
        b"a b",
        b" ",
        b"\\\\",
        b"]",
        b'\\"',
    ]
    keys += [
        b"#",
        b"[",
        b"/",
        b"0",
        b"\xc3\xa9",
        b"\xe2\x82\xac",
        b"\xef\xbf\xbf",
        b"\xf0\x9f\x98\x80",
    ]
    keys += [b"\\u0061", b"\\u000a", b"\\uffff", b"\\ud83d\\ude00", b"\\/", b"\x7f", b"\xc2\x80"]
    pairs = [(a, b) for a in keys for b in keys]
    compare([b'{"%s":1,"%s":2}' % pair for pair in pairs])
    compare([b'{"x%s":1,"x%sy":{"a":3}}' % pair for pair in pairs])


def test_random_documents() -> None:
    accepted = compare(list(documents()))
    assert RANDOM_DOCUMENTS // 4 <= accepted["strict"] < RANDOM_DOCUMENTS // 2
    assert accepted["any"] > accepted["canonical"] > RANDOM_DOCUMENTS // 2


def test_depth() -> None:
    deep = [b"[" * n + b"0" * (n > 0) + b"]" * n for n in range(1, 40)]
    deep += [b'{"a":' * n + b"1" + b"}" * n for n in range(1, 40)]
    deep += [b"[" * n for n in (16, 17, 1000, 100_000)]
    accepted = compare(deep)
    assert accepted["strict"] == 2 * MAX_DEPTH


@pytest.mark.parametrize("mode", ["strict", "any", "canonical"])
def test_values_are_counted(mode: str) -> None:
    rng = random.Random(SEED)
    for _ in range(20):
        value = random_value(rng, 4)
        text = canonical(value)
        count = check(value)
        assert ask(mode, [text], str(count))[0].startswith("accept")
        assert ask(mode, [text], str(count - 1))[0].endswith("there are more values than allowed")


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_many_members(order: str) -> None:
    """An object of 100,000 members takes no longer than its sorting, in any order."""
    keys = [f"{i:06d}" for i in range(100_000)]
    if order == "descending":
        keys.reverse()
    elif order == "random":
        random.Random(SEED).shuffle(keys)
    compare([json.dumps(dict.fromkeys(keys, 0)).encode()])


# ---- Tests of decimals ---------------------------------------------------------------------------


def compare_numbers(texts: Sequence[str]) -> None:
    """Hold the tool's reading of numbers, and its writing of their doubles, to Python's."""
    for text, line in zip(texts, ask("decimal", [text.encode() for text in texts]), strict=True):
        value = float(text)
        spelled = repr(value) if math.isfinite(value) else "none"
        same = text == spelled != "-0.0"
        bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
        assert line == f"{bits:016x} {spelled} {'canonical' if same else 'other'}", text


def doubles() -> Iterator[float]:
    """Yield doubles where mistakes are likely, and random ones of several kinds."""
    rng = random.Random(SEED)
    for exponent in range(-1074, 1024):
        yield from around(math.ldexp(1.0, exponent))
    for exponent in range(-324, 309):
        yield from around(float(f"1e{exponent}"))
        yield from around(float(f"{rng.randrange(1, 1000)}e{exponent - 2}"))
    for bits in (*range(1, 2000), *range((1 << 52) - 1000, (1 << 52) + 1000)):
        yield from_bits(bits)
    for bits in range((0x7FF << 52) - 1000, 0x7FF << 52):
        yield from_bits(bits)
    for quarter in range(4000):
        # Here the nearest decimals of 17 digits may be equally near.
        yield (1 << 50) + rng.getrandbits(48) + quarter % 4 / 4
        yield (1 << 49) + rng.getrandbits(48) + quarter % 8 / 8
    for _ in range(RANDOM_DOUBLES):
        value = from_bits(rng.getrandbits(64))
        if math.isfinite(value):
            yield value
    for _ in range(20_000):
        yield from_bits(rng.getrandbits(rng.randrange(1, 53)))
        yield round(rng.uniform(-1e5, 1e5), rng.randrange(10))
        yield float(rng.getrandbits(rng.randrange(1, 70)))


def from_bits(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def around(value: float) -> list[float]:
    """Return a double and its two neighbours."""
    return [math.nextafter(value, -math.inf), value, math.nextafter(value, math.inf)]


def test_doubles_are_written_as_python_writes_them() -> None:
    values = [value for value in doubles() if math.isfinite(value)]
    assert len(values) > RANDOM_DOUBLES
    compare_numbers([repr(value) for value in values])
    compare_numbers([f"-{abs(value)!r}" for value in values[:20_000]])
    compare_numbers(["0.0", "-0.0", "0.00", "0e0", "-0e-5"])


def test_numbers_are_read_to_the_nearest_double() -> None:
    """Numbers of up to a thousand digits, and those around the border between two doubles."""
    rng = random.Random(SEED + 1)
    texts = []
    for _ in range(20_000):
        digits = "".join(
            rng.choice("0123456789") for _ in range(rng.choice([1, 5, 17, 18, 20, 40, 800]))
        )
        whole = digits[: rng.randrange(len(digits) + 1)].lstrip("0") or "0"
        texts.append(f"{whole}.{digits}e{rng.randrange(-350, 330)}")
    for _ in range(5000):
        value = math.ldexp(rng.getrandbits(53), rng.randrange(-1074, 900))
        digits, exponent = exact_middle(value)
        below = str(int(digits) - 1).zfill(len(digits)) + "9" * rng.randrange(1, 900)
        above = digits + "0" * rng.randrange(900) + "1"
        texts += [f"{d[0]}.{d[1:]}0e{exponent}" for d in (digits, below, above)]
    compare_numbers(texts)


def exact_middle(low: float) -> tuple[str, int]:
    """Return all digits of the number halfway to the next double, and the exponent of the first."""
    middle = (Fraction(low) + Fraction(math.nextafter(low, math.inf))) / 2
    # The denominator is a power of two, so that so many digits behind the point are exact.
    places = middle.denominator.bit_length() - 1
    digits = str(middle.numerator * 5**places)
    return digits, len(digits) - 1 - places


def test_other_spellings_of_numbers() -> None:
    rng = random.Random(SEED + 2)
    texts = []
    for _ in range(20_000):
        value = random_float(rng)
        texts.append(other_number(rng, value))
        texts += [f"{value:.{rng.randrange(20)}e}", f"{value:.{rng.randrange(1, 20)}f}"]
    for mantissa in (
        "1",
        "1.0",
        "1.5",
        "10.0",
        "0.1",
        "9.99",
        "5.684341886080801",
        "5.684341886080802",
    ):
        texts += [
            f"{mantissa}{e}{n}" for e in ("e", "e+", "e-", "e0", "e+0", "E") for n in range(320)
        ]
    compare_numbers(texts)
