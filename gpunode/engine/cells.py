"""Cells of tables that people read otherwise than programs: str() is for people, JSON has the value. Pure."""

from __future__ import annotations

from datetime import datetime

from gpunode.wording import few

NAMED = 3  # of several names
GIB = 1024**3


class Bytes(int):
    """For people in GiB, for programs in bytes."""

    def __str__(self) -> str:
        return f"{self / GIB:.1f} GiB"


class Percent(int):
    """For people with its sign."""

    def __str__(self) -> str:
        return f"{int(self)} %"


class Celsius(int):
    """For people with its unit."""

    def __str__(self) -> str:
        return f"{int(self)} °C"


class Part(int):
    """For people with the whole that it is a part of, where that is known."""

    whole: int | None

    def __new__(cls, part: int, whole: int | None) -> Part:
        made = super().__new__(cls, part)
        made.whole = whole
        return made

    def __str__(self) -> str:
        return f"{int(self)}" if self.whole is None else f"{int(self)}/{self.whole}"


class Silent(int):
    """A number that people do not see."""

    def __str__(self) -> str:
        return ""


class ForPrograms(str):
    """A cell that people do not see."""

    __slots__ = ()

    def __str__(self) -> str:
        return ""


class Names(tuple[str, ...]):
    """For people the first of them."""

    __slots__ = ()

    def __str__(self) -> str:
        return few(self, NAMED)


class Moment(str):
    """RFC 3339; for people the time of day here, with the date where that is another."""

    __slots__ = ()

    def __str__(self) -> str:
        text = str.__str__(self)
        if not text:
            return ""
        then = datetime.fromisoformat(text).astimezone()
        today = then.date() == datetime.now().astimezone().date()
        return then.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
