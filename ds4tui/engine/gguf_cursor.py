"""A cursor over the bytes of a GGUF header that never reads past the end nor believes a length.

Every refusal is one GGUFError sentence that begins with the file's name.
"""

import mmap
import struct
from typing import NoReturn

from ds4tui.errors import GGUFError

Buffer = bytes | mmap.mmap

MAX_NAME_BYTES = 65_535  # the format's own limit for keys

DAMAGED = "The file is damaged: download it again."
TRUNCATED = "Download it again."

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def shown(name: str) -> str:
    """`name` for a message: quoted, control characters escaped, of bounded length."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


class Cursor:
    """Reads `source` (the whole file) from `at` on; each method leaves `at` behind what it read.

    `what` in all methods says what is being read, for the message when it is not there.
    """

    def __init__(self, source: Buffer, file_name: str) -> None:
        self.source = source
        self.size = len(source)
        self.at = 0
        self.file_name = file_name

    def fail(self, problem: str, hint: str = DAMAGED) -> NoReturn:
        raise GGUFError(f"{self.file_name}: {problem}", hint)

    def need(self, length: int, what: str) -> None:
        missing = self.at + length - self.size
        if missing > 0:
            raise GGUFError(
                f"{self.file_name} is truncated: it ends in its header, inside {what}; "
                f"at least {missing:,} bytes are missing.",
                TRUNCATED,
            )

    def check_count(self, count: int, item_bytes: int, what: str) -> None:
        """Refuse a declared count of items that the rest of the file cannot hold."""
        left = self.size - self.at
        if count > left // item_bytes:
            self.fail(f"{count:,} {what} are declared, which {left:,} bytes cannot hold.")

    def u32(self, what: str) -> int:
        self.need(4, what)
        self.at += 4
        value: int = U32.unpack_from(self.source, self.at - 4)[0]
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        self.at += 8
        value: int = U64.unpack_from(self.source, self.at - 8)[0]
        return value

    def skip(self, length: int, what: str) -> int:
        """Step over `length` bytes; returns where they begin."""
        self.need(length, what)
        self.at += length
        return self.at - length

    def take(self, length: int, what: str) -> bytes:
        start = self.skip(length, what)
        return self.source[start : self.at]

    def name(self, what: str) -> str:
        """A length and that many bytes of UTF-8: the name of `what`."""
        length = self.u64(f"the name of {what}")
        if not 0 < length <= MAX_NAME_BYTES:
            self.fail(f"the name of {what} is said to be {length:,} bytes long.")
        raw = self.take(length, f"the name of {what}")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"the name of {what} is not UTF-8.")

    def skip_strings(self, count: int, what: str) -> None:
        # The one loop that opening a real file spends its time in: 100,000 to 500,000 turns.
        at, last, source, length_at = self.at, self.size - 8, self.source, U64.unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + length_at(source, at)[0]
        else:
            self.skip(at - self.at, what)
            return
        self.need(at + 8 - self.at, what)
