"""Named clusters ("contexts"), kept in `$XDG_CONFIG_HOME/bascule/contexts.json`.

    {"current": "production",
     "contexts": {"production": {"server": "broker.example:9292", "tls_ca": "/etc/ca.pem", "timeout": "10s"}}}

The file holds paths of keys and tokens, never their contents.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from bascule.cli.terminal import values
from bascule.errors import InvalidOption, OperatorError, StateError

SERVER_DEFAULT: Final = "127.0.0.1:9292"
VARIABLE: Final = "BASCULE_CONTEXT"
NAME_RIGHT: Final = "a name of letters, digits, `.`, `_` and `-`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How to reach a cluster."""

    server: str = SERVER_DEFAULT
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None
    token_plaintext: bool = False
    nats: str | None = None
    timeout: str | None = None

    def document(self) -> dict[str, object]:
        """The settings that differ from their defaults."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}


@dataclass(slots=True)
class Contexts:
    """All contexts, and the name of the current one."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            raise unknown(name, self)
        return found


def unknown(name: str, known: Contexts) -> StateError:
    names = ", ".join(f"`{one}`" for one in known.contexts)
    hint = f"known contexts: {names}" if names else f"add it with `bascule context add {name} --server HOST:PORT`"
    return StateError(f"context `{name}` does not exist", hint=hint)


def check_name(name: str) -> str:
    if not name or not all(char.isalnum() or char in "._-" for char in name) or len(name) > 100:
        raise values.wrong("NAME", name, NAME_RIGHT)
    return name


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


def file_path(environ: Mapping[str, str] | None = None) -> Path:
    found = os.environ if environ is None else environ
    home = found.get("XDG_CONFIG_HOME", "")
    # The XDG specification requires relative paths to be ignored.
    base = Path(home) if Path(home).is_absolute() else Path.home() / ".config"
    return base / "bascule" / "contexts.json"


def load() -> Contexts:
    path = file_path()
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Contexts()
    except (ValueError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("contexts", {}), dict):
        raise _damaged(path, "it is not a JSON object with `contexts`")
    current = document.get("current")
    if current is not None and not isinstance(current, str):
        raise _damaged(path, "`current` is not a string")
    return Contexts(current, {name: _parse(path, name, one) for name, one in document.get("contexts", {}).items()})


def _parse(path: Path, name: str, document: Any) -> Context:
    kinds = {one.name: bool if one.name in ("tls", "token_plaintext") else str for one in fields(Context)}
    if not isinstance(document, dict):
        raise _damaged(path, f"context `{name}` is not a JSON object")
    for key, value in document.items():
        if key not in kinds or not isinstance(value, kinds[key]):
            raise _damaged(
                path, f"context `{name}` has the setting `{key}`, which is unknown or has a value of the wrong type"
            )
    return Context(**document)


def _damaged(path: Path, reason: str) -> OperatorError:
    return OperatorError(
        f"`{path}` cannot be read: {reason}", hint="correct the file, or remove it and add the contexts again"
    )


def save(contexts: Contexts) -> None:
    """Replace the file atomically; only the user can read it."""
    path = file_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    document = {
        "current": contexts.current,
        "contexts": {name: one.document() for name, one in sorted(contexts.contexts.items())},
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, ensure_ascii=False, indent=2)
            file.write("\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# ── choosing ─────────────────────────────────────────────────────────────────────────────────────


def chosen(name: str | None, server: str | None) -> tuple[str | None, Context]:
    """The context to use and its name: from `--context`, else none with `--server`, else BASCULE_CONTEXT, else the current one."""
    wanted = name or (None if server is not None else os.environ.get(VARIABLE) or None)
    if wanted is None and server is not None:
        return None, Context()
    known = load()
    wanted = wanted or known.current
    if wanted is None:
        return None, Context()
    return wanted, known.get(wanted)


def read_token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidOption(
            f"the token file `{path}` cannot be read: {reason}", hint="give a file that holds only the token"
        ) from None
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidOption(
            f"the token file `{path}` holds no token", hint="it must hold one line of printable characters"
        )
    return token
