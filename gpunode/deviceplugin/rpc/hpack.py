"""Header compression of HTTP/2 (RFC 7541): decodes all of it, and encodes without tables and Huffman codes, as every peer must accept."""

from collections import deque
from collections.abc import Iterable

Header = tuple[bytes, bytes]

# Appendix A: entries with a value, and names of the others in their order
VALUES = """:method GET,:method POST,:path /,:path /index.html,:scheme http,:scheme https,:status 200,:status 204,:status 206,:status 304,\
:status 400,:status 404,:status 500"""
NAMES = """
accept-language accept-ranges accept access-control-allow-origin age allow authorization cache-control content-disposition
content-encoding content-language content-length content-location content-range content-type cookie date etag expect expires from host
if-match if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards proxy-authenticate
proxy-authorization range referer refresh retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary via
www-authenticate
"""
STATIC: tuple[Header, ...] = (
    (b":authority", b""),
    *((name, value) for name, _, value in (entry.partition(b" ") for entry in VALUES.encode().split(b","))),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *((name.encode(), b"") for name in NAMES.split()),
)
# Appendix B: bits of the code of each byte, and of the end. The code is canonical, so the lengths are all of it.
BITS = """
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 6 10 10
12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7
7 7 7 7 7 7 8 7 8 13 19 13 14 6 15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 20
22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 22 21 20 22
22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 26 26 20 19 22 23 22
25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 20 24 20 21 22 21 21 23 22 22
25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 30
"""
END = 256
TABLE = 4096  # bytes of the dynamic table: HTTP/2's own bound, which SETTINGS could change
OVERHEAD = 32  # bytes that an entry counts more than its texts


class Malformed(ValueError):
    """These bytes are no headers: the connection cannot go on."""


def _codes() -> dict[tuple[int, int], int]:
    """Byte by bits and code."""
    bits = [int(word) for word in BITS.split()]
    codes, code, before = {}, 0, 0
    for symbol in sorted(range(len(bits)), key=lambda symbol: (bits[symbol], symbol)):
        code <<= bits[symbol] - before
        before = bits[symbol]
        codes[before, code] = symbol
        code += 1
    return codes


CODES = _codes()


class Decoder:
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._dynamic: deque[Header] = deque()  # newest first
        self._size = 0
        self._bound = TABLE

    def decode(self, block: bytes) -> list[Header]:
        """The headers of a block. Raises Malformed."""
        headers: list[Header] = []
        at = 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 7)
                    headers.append(self._entry(index))
                elif first & 0xE0 == 0x20:
                    self._bound, at = _integer(block, at, 5)
                    if headers or self._bound > TABLE:
                        raise Malformed("a table's size")
                    self._evict()
                else:
                    kept = first & 0xC0 == 0x40
                    index, at = _integer(block, at, 6 if kept else 4)
                    name, at = (self._entry(index)[0], at) if index else _string(block, at)
                    value, at = _string(block, at)
                    headers.append((name, value))
                    if kept:
                        self._dynamic.appendleft((name, value))
                        self._size += len(name) + len(value) + OVERHEAD
                        self._evict()
        except IndexError:
            raise Malformed("it ends too early, or has no such entry") from None
        return headers

    def _entry(self, index: int) -> Header:
        if not index:
            raise Malformed("entry 0")
        return STATIC[index - 1] if index <= len(STATIC) else self._dynamic[index - len(STATIC) - 1]

    def _evict(self) -> None:
        while self._size > self._bound:
            name, value = self._dynamic.pop()
            self._size -= len(name) + len(value) + OVERHEAD


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """The number whose first byte has it in its last `bits` bits, and where it ends."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
    raise Malformed("a number is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] & 0x80
    length, at = _integer(block, at, 7)
    if at + length > len(block):
        raise Malformed("a text ends too early")
    data = block[at : at + length]
    return (_decode_huffman(data) if coded else data), at + length


def _decode_huffman(data: bytes) -> bytes:
    out = bytearray()
    code = bits = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            bits += 1
            symbol = CODES.get((bits, code))
            if symbol is not None:
                if symbol == END:
                    raise Malformed("a text has the end's code")
                out.append(symbol)
                code = bits = 0
    if bits > 7 or code != (1 << bits) - 1:  # the rest is filled up with ones
        raise Malformed("a text has no code")
    return bytes(out)


def encode(headers: Iterable[Header]) -> bytes:
    """A block with these headers, as literals."""
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers)


def _literal(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, size = len(text) - 127, bytearray((127,))
    while rest > 127:
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    size.append(rest)
    return bytes(size) + text
