"""Which typefaces are drawn when: the first training's, later ones', and those kept apart.

The order within SEEN and HELD is part of the held-out sets: a seed picks faces by position.
"""

from dataclasses import dataclass
from functools import lru_cache

from PIL import ImageFont

from tools.screen_reader.files import FONTS

MONO = (
    "DejaVuSansMono.ttf DejaVuSansMono-Bold.ttf FiraCode-Regular.ttf Hack-Regular.ttf "
    "Hack-Bold.ttf JetBrainsMono-Regular.ttf LiberationMono-Regular.ttf LiberationMono-Bold.ttf "
    "Inconsolata.otf FreeMonoBold.ttf"
).split()
SANS = (
    "DejaVuSans.ttf DejaVuSans-Bold.ttf LiberationSans-Regular.ttf LiberationSans-Bold.ttf "
    "NotoSans-Regular.ttf NotoSans-Bold.ttf OpenSans-Regular.ttf Roboto-Regular.ttf "
    "Roboto-Medium.ttf Inter-Regular.otf Inter-SemiBold.otf Cantarell-Regular.otf Go-Regular.ttf"
).split()
SERIF = ["LiberationSerif-Regular.ttf"]
MORE_MONO = (
    "AnonymousPro.ttf B612Mono-Regular.otf CourierPrime.otf CourierPrimeCode.otf "
    "FantasqueSansMono-Regular.ttf FiraCode-Medium.ttf FreeMono.ttf Hermit-medium.otf "
    "JetBrainsMono-Bold.ttf JetBrainsMono-Medium.ttf LeagueMono-NarrowMedium.otf "
    "LeagueMono-Regular.otf Monoid-Regular.ttf Mplus1Code-Medium.otf MplusCodeLatin60-Medium.otf "
    "NotoSansMono-Regular.ttf OxygenMono-Regular.ttf agave-r-autohinted.ttf"
).split()
MORE_SANS = (
    "B612-Regular.otf Cabin-Medium.otf ClearSans-Medium.ttf ClearSans-Regular.ttf "
    "DejaVuSansCondensed.ttf FreeSans.ttf Inter-Medium.otf Junction.otf Karla-Medium.otf "
    "LiberationSansNarrow-Regular.ttf Manrope-Medium.ttf Mplus1-Medium.otf OpenSans-Semibold.ttf "
    "Oxygen-Sans.ttf Play-Regular.ttf Quicksand-Medium.ttf RobotoCondensed-Regular.ttf"
).split()
MORE_SERIF = (
    "DejaVuSerif.ttf FreeSerif.ttf LiberationSerif-Bold.ttf NotoSerif-Regular.ttf "
    "RobotoSlab-Regular.otf"
).split()


@dataclass(frozen=True)
class Faces:
    """Font files to draw from; `serif` joins the sans faces in three pictures of ten."""

    mono: list[str]
    sans: list[str]
    serif: list[str]


SEEN = Faces(MONO, SANS, SERIF)
TRAINING = Faces(MONO + MORE_MONO, SANS + MORE_SANS, SERIF + MORE_SERIF)
HELD = Faces(["mononoki-Regular.ttf", "Go-Mono.ttf"], ["Lato-Regular.ttf"], [])


class Font:
    """A face at one size in pixels, with each character's advance remembered."""

    def __init__(self, face: ImageFont.FreeTypeFont, size_px: int) -> None:
        self.face, self.size_px = face, size_px
        self.ascent_px = face.getmetrics()[0]
        self._advances: dict[str, float] = {}

    def advance(self, character: str) -> float:
        width = self._advances.get(character)
        if width is None:
            width = self._advances[character] = float(self.face.getlength(character))
        return width

    def width(self, text: str) -> float:
        """Pixels from the start of the text to its end, without kerning."""
        return sum(map(self.advance, text))

    def centres(self, text: str) -> list[float]:
        """The middle of each character, in pixels from the start of the text."""
        middles, end = [], 0.0
        for character in text:
            width = self.advance(character)
            middles.append(end + width / 2)
            end += width
        return middles


@lru_cache(maxsize=1200)
def font(name: str, size_px: int) -> Font:
    path = str(FONTS / name)
    face = ImageFont.truetype(path, size_px, layout_engine=ImageFont.Layout.BASIC)
    return Font(face, size_px)
