"""Where in an S3-compatible bucket a run keeps its files: s3://bucket/prefix. The bucket itself: trainer/hub/bucket.py."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LOCATION = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")


@dataclass(frozen=True)
class Location:
    bucket: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Raises ValueError for what is not s3://bucket/prefix."""
        match = _LOCATION.fullmatch(text)
        if match is None:
            raise ValueError("expected a folder or s3://bucket/prefix")
        return cls(match[1], (match[2] or "").strip("/"))

    def below(self, *names: str) -> Location:
        return Location(self.bucket, "/".join(name for name in (self.prefix, *names) if name))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"
