"""Why something must be evaluated again: a small vocabulary that people can learn."""

from enum import StrEnum


class Cause(StrEnum):
    REPLY_RESERIALISED = "reply re-serialised"
    THINKING_DROPPED = "thinking dropped"
    TOOL_ARGUMENTS_REORDERED = "tool arguments reordered"
    SYSTEM_TEXT_CHANGED = "system text changed"
    TOOLS_CHANGED = "tools changed"
    IMAGE_REPLACED = "image replaced"
    IMAGE_REMOVED = "image removed"
    EARLY_MESSAGE_EDITED = "early message edited"
    OTHER_CONVERSATION = "other conversation"
    WINDOW_WRAPPED = "window wrapped"
    SNAPSHOT_EVICTED = "snapshot evicted"
    BRANCH_EVICTED = "branch evicted"
    MODEL_CHANGED = "model changed"
    SESSION_POISONED = "session poisoned"
