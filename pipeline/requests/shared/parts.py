"""The content of a message: text and images, from every kind of part."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attrs import frozen

from pipeline.formats.images import image_problem
from pipeline.loose_json import Json, is_json, is_list
from pipeline.requests.shared.files import InlineFile, text_of_file
from pipeline.requests.shared.structure import WrongError, by_type, made, structures, wanted

Detail: TypeAlias = Literal["auto", "low", "high", "original"]


@frozen
class Part:
    """One part of a content field, checked."""


@frozen
class Text(Part):
    """Text, also of a file or a refusal."""

    text: str


@frozen
class Image(Part):
    """An image: a checked data URL, or an http(s) URL."""

    url: str
    detail: str | None = None

    def item(self) -> Json:
        more = {"detail": self.detail} if self.detail else {}
        return {"type": "input_image", "image_url": self.url, **more}


@frozen
class Content:
    """A message's content: a string, parts, or None if it has none."""

    value: str | tuple[Part, ...] | None = None

    @property
    def images(self) -> tuple[Image, ...]:
        parts = self.value if isinstance(self.value, tuple) else ()
        return tuple(part for part in parts if isinstance(part, Image))

    @property
    def texts(self) -> tuple[str, ...]:
        if isinstance(self.value, str):
            return (self.value,)
        return tuple(part.text for part in self.value or () if isinstance(part, Text))

    @property
    def text(self) -> str:
        """The texts, one per line."""
        return "\n".join(self.texts)

    def as_item(self, kind: str) -> str | list[Json]:
        """The content for an item of the Responses API, with text parts of the given type."""
        return self.value if isinstance(self.value, str) else self.parts(kind)

    def parts(self, kind: str) -> list[Json]:
        """The same, but always as an array of parts."""
        if isinstance(self.value, str):
            return [{"type": kind, "text": self.value}]
        return [
            part.item() if isinstance(part, Image) else {"type": kind, "text": part.text}
            for part in self.value or ()
            if isinstance(part, Text | Image)
        ]


# -- as they are sent ------------------------------------------------------------------------------


@frozen
class _Refusal:
    refusal: str


@frozen
class _Address:
    url: str
    detail: Detail | None = None


@frozen
class _ImageUrl:
    """The URL of an image, which may be a string or an object."""

    url: str
    detail: str | None


@frozen
class _Image:
    image_url: _ImageUrl | None = None
    detail: Detail | None = None
    file_id: str | None = None

    def image(self) -> Image:
        if self.image_url is None and self.file_id:
            raise WrongError(
                "refers to an image that is not stored here, so it cannot be read; send it in "
                "image_url, as data:image/png;base64,…",
                ".file_id",
            )
        if self.image_url is None:
            raise WrongError("is missing", ".image_url")
        problem = image_problem(self.image_url.url)
        if problem:
            raise WrongError(problem, ".image_url")
        return Image(self.image_url.url, self.detail or self.image_url.detail)


@frozen
class _File:
    file: InlineFile


_SENT: Final = {
    "text": Text,
    "input_text": Text,
    "output_text": Text,
    "refusal": _Refusal,
    "image_url": _Image,
    "input_image": _Image,
    "file": _File,
    "input_file": InlineFile,
}


@structures(_ImageUrl)
def _image_url(value: object) -> _ImageUrl:
    if isinstance(value, str):
        return _ImageUrl(value, None)
    if not is_json(value):
        raise wanted("a string or an object with a url", value)
    address = made(value, _Address)
    return _ImageUrl(address.url, address.detail)


@structures(Part)
def _part(value: object) -> Part:
    if is_json(value) and value.get("type") in ("input_audio", "audio"):
        raise WrongError("is audio, which is not supported; send it as text")
    match by_type(value, _SENT):
        case Text() as text:
            return text
        case _Refusal(words):
            return Text(words)
        case _Image() as image:
            return image.image()
        case _File(file):
            return Text(_inside(file, ".file"))
        case file:
            return Text(_inside(file, ""))


def _inside(file: InlineFile, at: str) -> str:
    try:
        return text_of_file(file)
    except WrongError as error:
        raise WrongError(error.problem, at + error.at) from None


@structures(Content)
def _content(value: object) -> Content:
    if value is None or isinstance(value, str):
        return Content(value)
    if not is_list(value):
        raise wanted("a string or an array of parts", value)
    return Content(made(value, tuple[Part, ...]))
