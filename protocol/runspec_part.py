"""What every part of a run spec is: a strict table that leaves its defaults out, and the kinds of values that stand in it."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, ClassVar, Literal, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.fields import FieldInfo


def _decimal(text: str) -> str:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("expected a decimal number in quotes, such as '0.25'") from None
    if not value.is_finite() or value < 0:
        raise ValueError("expected a finite decimal that is not negative")
    return text


def _digest(text: str) -> str:
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError("expected 64 lower-case hex digits")
    return text


DecimalText = Annotated[str, AfterValidator(_decimal)]
"""A non-negative decimal written as a string."""
HexDigest = Annotated[str, AfterValidator(_digest)]
"""SHA-256 in lower-case hex."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value for name, value in handler(self).items() if not _is_default(fields[name], getattr(self, name))
        }


class PinnedFile(Part):
    """A file that the spec names and the hub serves; roles keep it in the machine's task folder."""

    sha256: HexDigest
    """Of the file's bytes."""
    size: int = Field(gt=0, lt=2**44)
    """Bytes."""
    suffix: ClassVar[str]


class Later:
    """Marks a kind that was added when specs had been written already: left out at its default, so that those keep their digests."""


def _is_default(field: FieldInfo, value: Any) -> bool:
    """Whether a field need not be written: it holds its default, and names no kind or version."""
    always = get_origin(field.annotation) is Literal and not any(isinstance(mark, Later) for mark in field.metadata)
    return not field.is_required() and not always and value == field.get_default()
