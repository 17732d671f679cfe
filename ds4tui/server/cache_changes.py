"""POST /v1/cache/pin and /v1/cache/clear: what people may change of what is stored on disk.

The disk tier may be used by any thread, so the engine goes on meanwhile; what has changed stands
in /v1/cache soon after.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ds4tui.cache.kvconversations import StoredConversation, as_json, named, stored_conversations
from ds4tui.cache.kvstore import DiskTier
from ds4tui.errors import StoreError
from ds4tui.server.errors import ApiError
from ds4tui.server.fields import Fields
from ds4tui.server.service import Service
from ds4tui.server.telling import told

_IDS_SHOWN = 5


async def pin(request: Request) -> Response:
    """Keep a conversation whatever the budget needs, or (`pinned` false) no more."""
    return await _changed(request, _pin)


async def clear(request: Request) -> Response:
    """Remove what is stored, of all models; what is pinned only if `pinned` is true."""
    return await _changed(request, _clear)


_Change = Callable[[DiskTier, Fields, bool], dict[str, Any]]


async def _changed(request: Request, change: _Change) -> Response:
    return await told(request, partial(_told, change), no_body=b"{}")


def _told(change: _Change, service: Service, fields: Fields) -> dict[str, Any]:
    disk = service.assistant.disk
    if disk is None:
        stats = service.assistant.stats.disk
        why = stats.why_not if stats is not None else "kv_disk is off"
        raise ApiError(409, f"Nothing is kept on disk here: {why}.", code="no_disk")
    try:
        return change(disk, fields, service.shows_texts)
    except StoreError as exc:  # another process writes, or the folder cannot be written
        raise ApiError(409, exc.message, code="disk_not_writable", hint=exc.hint) from exc
    except OSError as exc:
        raise ApiError(
            507, f"The disk refused it: {exc.strerror or exc}.", code="disk_failed"
        ) from exc


def _pin(disk: DiskTier, fields: Fields, shows_texts: bool) -> dict[str, Any]:
    name, wanted = fields.text("conversation"), fields.get("pinned")
    is_pinned = fields.boolean("pinned") if wanted is not None else True
    found = _named(disk, name)
    try:
        (disk.pin if is_pinned else disk.unpin)(found.leaf_id)
    except KeyError as exc:
        raise _unknown(found.name) from exc  # it went meanwhile
    return {"object": "cache.pin", **conversation_json(found, shows_texts), "is_pinned": is_pinned}


def _clear(disk: DiskTier, fields: Fields, shows_texts: bool) -> dict[str, Any]:
    freed = disk.clear(pinned=fields.boolean("pinned"))
    left = [conversation_json(each, shows_texts) for each in stored_conversations(disk.entries())]
    return {"object": "cache.clear", "freed_bytes": freed, "conversations": left}


def _named(disk: DiskTier, name: str | None) -> StoredConversation:
    if not name:
        raise ApiError(
            400,
            "conversation is missing.",
            param="conversation",
            hint="Send the name of one of disk.conversations in /v1/cache.",
        )
    found = named(stored_conversations(disk.entries()), name)
    if not found:
        raise _unknown(name)
    if len(found) > 1:
        names = ", ".join(each.name for each in found[:_IDS_SHOWN])
        raise ApiError(
            400,
            f"{len(found)} conversations begin with {name}: {names}.",
            param="conversation",
            hint="Give more of the name.",
        )
    return found[0]


def _unknown(name: str) -> ApiError:
    return ApiError(
        404,
        f"No stored conversation is called {name[:100]!r}.",
        code="conversation_not_found",
        param="conversation",
        hint="/v1/cache lists them in disk.conversations.",
    )


def conversation_json(found: StoredConversation, shows_texts: bool) -> dict[str, Any]:
    """Without how it begins unless `shows_texts`."""
    return as_json(found) | ({} if shows_texts else {"what": None})
