"""test_b3.py: the plain BLAKE3 of the specification's tests against known hashes.

SPDX-License-Identifier: Apache-2.0

The input of BLAKE3's published test vectors is 0, 1, ..., 250, 0, 1, ...; the expected values come
from the official implementation.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import b3

KEY = b"whats the Elvish word for friend"
CONTEXT = "BLAKE3 2019-12-27 16:29:52 test vectors context"

# Length of the input, and the first 16 bytes of hash, keyed hash and derived key.
VECTORS = (
    (0, "af1349b9f5f9a1a6a0404dea36dcc949", "92b2b75604ed3c761f9d6f62392c8a92",
     "2cc39783c223154fea8dfb7c1b1660f2"),
    (1, "2d3adedff11b61f14c886e35afa03673", "6d7878dfff2f485635d39013278ae14f",
     "b3e2e340a117a499c6cf2398a19ee0d2"),
    (63, "e9bc37a594daad83be9470df7f7b3798", "bb1eb5d4afa793c1ebdd9fb08def6c36",
     "b6451e30b953c206e34644c6803724e9"),
    (64, "4eed7141ea4a5cd4b788606bd23f46e2", "ba8ced36f327700d213f120b1a207a3b",
     "a5c4a7053fa86b64746d4bb688d06ad1"),
    (65, "de1e5fa0be70df6d2be8fffd0e99ceaa", "c0a4edefa2d2accb9277c371ac12fcdb",
     "51fd05c3c1cfbc8ed67d139ad76f5cf8"),
    (1023, "10108970eeda3eb932baac1428c7a216", "c951ecdf03288d0fcc96ee3413563d8a",
     "74a16c1c3d44368a86e1ca6df64be6a2"),
    (1024, "42214739f095a406f3fc83deb889744a", "75c46f6f3d9eb4f55ecaaee480db732e",
     "7356cd7720d5b66b6d0697eb3177d9f8"),
    (1025, "d00278ae47eb27b34faecf67b4fe263f", "357dc55de0c7e382c900fd6e320acc04",
     "effaa245f065fbf82ac186839a249707"),
    (2048, "e776b6028c7cd22a4d0ba182a8bf6220", "879cf1fa2ea0e79126cb1063617a05b6",
     "7b2945cb4fef70885cc5d78a87bf6f62"),
    (2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3", "9f29700902f7c86e514ddc4df1e3049f",
     "2ea477c5515cc3dd606512ee72bb3e0e"),
    (3072, "b98cb0ff3623be03326b373de6b90952", "044a0e7b172a312dc02a4c9a818c036f",
     "050df97f8c2ead654d9bb3ab8c9178ed"),
    (5120, "9cadc15fed8b5d854562b26a9536d970", "2c493e48e9b9bf31e0553a22b23503c0",
     "7a7acac8a02adcf3038d74cdd1d34527"),
    (8193, "bab6c09cb8ce8cf459261398d2e7aef3", "954a2a75420c8d6547e3ba5b98d963e6",
     "af1e0346e389b17c23200270a64aa4e1"),
    (31744, "62b6960e1a44bcc1eb1a611a8d6235b6", "efa53b389ab67c593dba624d898d0f73",
     "39772aef80e0ebe60596361e45b061e8"),
    (65536, "68d647e619a930e7b1082f74f334b0c6", "160fb7538a11d83b9b311825a6baef08",
     "18a76cadb7e87ef4ed8faa11a9f79a05"),
    (65537, "7c99f9840a73dfcb6e5bfe4ff6d1558a", "8f9e30b67fc0c4c1d0d5fb87e183d482",
     "a3c91edd6f41668e7e0b1a54326b3f03"),
    (102400, "bc3e3d41a1146b069abffad3c0d44860", "1c35d1a5811083fd7119f5d5d1ba027b",
     "4652cff7a3f385a6103b5c260fc1593e"),
)  # fmt: skip


def published_input(length: int) -> bytes:
    """Returns the input of a test vector."""
    return bytes(i % 251 for i in range(length))


class Blake3(unittest.TestCase):
    """The three modes and the subtrees."""

    def test_vectors(self) -> None:
        """Hash, keyed hash and derived key have the published values."""
        for length, plain, keyed, derived in VECTORS:
            with self.subTest(length=length):
                data = published_input(length)
                self.assertEqual(b3.blake3(data).hex()[:32], plain)
                self.assertEqual(b3.blake3_keyed(KEY, data).hex()[:32], keyed)
                self.assertEqual(b3.blake3_derive(CONTEXT, data).hex()[:32], derived)

    def test_rows_combine_to_the_hash(self) -> None:
        """The chaining values of 64 KiB subtrees give the hash of the whole."""
        data = published_input(9 * 65536)
        for length in (65537, 131072, 131073, 3 * 65536 + 1, 5 * 65536, 7 * 65536 + 1025):
            with self.subTest(length=length):
                part = data[:length]
                row = [b3.subtree(part[i : i + 65536], i // 1024) for i in range(0, length, 65536)]
                self.assertEqual(b3.combine(row), b3.blake3(part))
                self.assertNotEqual(b3.combine(row[::-1]), b3.blake3(part))

    def test_wrong_arguments(self) -> None:
        """A key of another length and a row of one value are refused."""
        with self.assertRaises(ValueError):
            b3.blake3_keyed(b"short", b"")
        with self.assertRaises(ValueError):
            b3.combine([bytes(32)])


if __name__ == "__main__":
    unittest.main()
