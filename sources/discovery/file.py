"""The discovery file, followed by polling."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from sources.discovery.config import ConfigError, SourceConfig, parse_config, text_of


@dataclass(slots=True)
class WatchedFile:
    """A configuration file followed by polling.

    A change counts once two polls in a row saw the same content: a file caught half written must not take
    engines out of the registry. While the file is broken or gone the last good list stays, and ``error``
    says why.
    """

    path: Path
    config: SourceConfig
    error: str | None = None
    _used: str = ""
    _seen: str = ""

    @classmethod
    def load(cls, path: Path) -> WatchedFile:
        """Read it for the first time; raises ConfigError."""
        text = text_of(path)
        digest = _digest(text)
        return cls(path, parse_config(text, str(path)), None, digest, digest)

    def poll(self) -> bool:
        """Look again; True where ``config`` is a new one now."""
        try:
            text = text_of(self.path)
        except ConfigError as error:
            self.error, self._seen = str(error), ""
            return False
        digest, before = _digest(text), self._seen
        self._seen = digest
        if digest == self._used:
            self.error = None
            return False
        if digest != before:
            return False
        try:
            config = parse_config(text, str(self.path))
        except ConfigError as error:
            self.error = str(error)
            return False
        self._used, self.error = digest, None
        changed, self.config = config != self.config, config
        return changed


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
