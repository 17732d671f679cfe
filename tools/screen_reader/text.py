"""What the synthetic screens say: words, numbers, names, paths, errors, sentences.

Every function takes the caller's random.Random and nothing else decides, so that a seed names a
picture: the order of the draws is part of the held-out sets and must not change.
"""

# The `%` templates keep each message's wording readable beside the draws that fill it.
# ruff: noqa: UP031
import random
from functools import cache

from tools.screen_reader.files import WORDS


@cache
def words() -> list[str]:
    """The word list that setup.sh wrote, one word a line."""
    return WORDS.read_text().split()


EXT = [
    "py",
    "txt",
    "json",
    "log",
    "c",
    "cpp",
    "rs",
    "go",
    "toml",
    "yaml",
    "md",
    "csv",
    "png",
    "conf",
    "sh",
    "js",
    "ts",
]
ERRNO = [
    "No such file or directory",
    "Permission denied",
    "File exists",
    "Is a directory",
    "Not a directory",
    "Connection refused",
    "Connection reset by peer",
    "Broken pipe",
    "No space left on device",
    "Operation not permitted",
    "Device or resource busy",
    "Invalid argument",
    "Too many open files",
    "Read-only file system",
    "Network is unreachable",
    "Connection timed out",
    "Address already in use",
    "Cannot allocate memory",
    "Text file busy",
    "Exec format error",
    "Directory not empty",
    "No route to host",
    "Input/output error",
    "Bad file descriptor",
    "Host is down",
    "Illegal seek",
    "Disk quota exceeded",
]
EXC = [
    "ValueError",
    "KeyError",
    "TypeError",
    "IndexError",
    "AttributeError",
    "RuntimeError",
    "ImportError",
    "OSError",
    "NameError",
    "FileNotFoundError",
    "ModuleNotFoundError",
    "ZeroDivisionError",
    "AssertionError",
    "TimeoutError",
    "PermissionError",
    "ConnectionError",
    "UnicodeDecodeError",
    "RecursionError",
    "MemoryError",
    "SyntaxError",
    "NotImplementedError",
]
BTN = [
    "OK",
    "Cancel",
    "Yes",
    "No",
    "Apply",
    "Close",
    "Save",
    "Discard",
    "Retry",
    "Abort",
    "Ignore",
    "Continue",
    "Delete",
    "Open",
    "Quit",
    "Help",
    "Next",
    "Back",
    "Finish",
    "Install",
    "Update",
    "Later",
    "Allow",
    "Deny",
    "Accept",
    "Decline",
    "Restart",
    "Don't Save",
    "Replace",
    "Skip",
    "Export",
    "Import",
    "Send",
    "Submit",
    "Reset",
    "Details",
    "Browse",
    "Stop",
    "Run",
    "Copy",
]
CMDS = [
    "ls",
    "cat",
    "cd",
    "rm",
    "cp",
    "mv",
    "git",
    "make",
    "python",
    "pip",
    "npm",
    "cargo",
    "ssh",
    "curl",
    "docker",
    "grep",
    "sudo",
    "vim",
    "tar",
    "go",
]
LV = ["INFO", "WARN", "ERROR", "DEBUG", "FATAL", "CRITICAL", "TRACE", "WARNING", "NOTICE"]


def word(r: random.Random, cap: bool = False) -> str:
    x = r.choice(words())
    if cap:
        return x[:1].upper() + x[1:]
    return x.lower() if r.random() < 0.85 else x


def num(r: random.Random) -> str:
    k = r.random()
    if k < 0.45:
        return str(r.randint(0, 10 ** r.randint(1, 5)))
    if k < 0.65:
        return "%.*f" % (r.randint(1, 2), r.random() * 10 ** r.randint(0, 3))
    if k < 0.75:
        return "%d%%" % r.randint(0, 100)
    if k < 0.85:
        return "%d:%02d" % (r.randint(0, 23), r.randint(0, 59))
    if k < 0.93:
        return f"{r.randint(1000, 999999):,}"
    return "-%d" % r.randint(1, 999)


def hexid(r: random.Random) -> str:
    return "".join(r.choice("0123456789abcdef") for _ in range(r.choice([4, 6, 8])))


def ident(r: random.Random) -> str:
    k = r.random()
    if k < 0.5:
        return word(r).lower() + "_" + word(r).lower()
    if k < 0.75:
        return word(r).lower() + word(r, True)
    return word(r).lower() + str(r.randint(0, 99))


def fname(r: random.Random) -> str:
    return (ident(r) if r.random() < 0.3 else word(r).lower()) + "." + r.choice(EXT)


def path(r: random.Random) -> str:
    p = [word(r).lower()[:7] for _ in range(r.randint(1, 2))]
    return r.choice(["/", "./", "~/", "/usr/", "/home/", "/etc/", "C:\\"]) + "/".join(p)


def ip(r: random.Random) -> str:
    return ".".join(str(r.randint(0, 255)) for _ in range(4))


def rnd(r: random.Random, n: int) -> str:
    return "".join(
        r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") for _ in range(n)
    )


def anyword(r: random.Random) -> str:
    k = r.random()
    if k < 0.62:
        return word(r)
    if k < 0.70:
        return word(r, True)
    if k < 0.78:
        return num(r)
    if k < 0.82:
        return word(r).upper()
    if k < 0.87:
        return ident(r)
    if k < 0.90:
        return fname(r)
    if k < 0.93:
        return hexid(r)
    if k < 0.95:
        return rnd(r, r.randint(3, 7))
    if k < 0.97:
        return word(r) + r.choice([",", ".", ":", "!", "?", ";"])
    return r.choice(
        [
            "(%s)",
            '"%s"',
            "'%s'",
            "[%s]",
            "<%s>",
            "{%s}",
            "#%s",
            "@%s",
            "--%s",
            "$%s",
            "&%s",
            "*%s",
            "%s=",
            "%s+",
            "~%s",
            "|%s",
            "^%s",
            "`%s`",
        ]
    ) % word(r)


def phrase(r: random.Random, maxc: int, minw: int = 1) -> str:
    out = anyword(r)
    n = r.randint(minw, 6)
    for _ in range(n - 1):
        x = anyword(r)
        if len(out) + 1 + len(x) > maxc:
            break
        out += " " + x
    return out[:maxc].strip()


def sentence(r: random.Random, maxc: int) -> str:
    T = [
        lambda: (
            "Do you want to %s the %s?"
            % (r.choice(["save", "delete", "open", "replace", "close", "move", "keep"]), word(r))
        ),
        lambda: (
            "Could not %s %s"
            % (r.choice(["open", "find", "load", "save", "read", "write", "start"]), fname(r))
        ),
        lambda: (
            "The %s %s was not found."
            % (r.choice(["file", "folder", "server", "user", "device", "page"]), word(r))
        ),
        lambda: "%s has stopped working." % word(r, True),
        lambda: (
            "%s %s is ready to install."
            % (word(r, True), ".".join(str(r.randint(0, 9)) for _ in range(2)))
        ),
        lambda: (
            "Are you sure you want to %s?"
            % r.choice(
                [
                    "quit",
                    "delete " + word(r),
                    "remove " + word(r),
                    "exit",
                    "reset " + word(r),
                    "log out",
                ]
            )
        ),
        lambda: (
            "%d %s %s."
            % (
                r.randint(2, 999),
                r.choice(["files", "items", "users", "messages", "errors", "updates"]),
                r.choice(["deleted", "found", "copied", "selected", "pending", "failed"]),
            )
        ),
        lambda: (
            "Unable to connect to %s"
            % (
                ip(r)
                if r.random() < 0.5
                else word(r).lower() + r.choice([".com", ".org", ".net", ".io"])
            )
        ),
        lambda: (
            "Your %s will expire in %d days."
            % (r.choice(["password", "license", "session", "trial", word(r)]), r.randint(1, 90))
        ),
        lambda: "Error code: %s" % (hexid(r) if r.random() < 0.5 else str(r.randint(1, 9999))),
        lambda: phrase(r, maxc, 3),
        lambda: phrase(r, maxc, 3),
        lambda: phrase(r, maxc, 2),
    ]
    for _ in range(8):
        s = r.choice(T)()
        if len(s) <= maxc:
            return s
    return phrase(r, maxc)


def pyerr(r: random.Random, maxc: int) -> str:
    for _ in range(8):
        e = r.choice(EXC)
        m = r.choice(
            [
                lambda: "'%s'" % ident(r),
                lambda: phrase(r, 24, 2),
                lambda: "name '%s' is not defined" % ident(r),
                lambda: "No module named '%s'" % word(r).lower(),
                lambda: "list index out of range",
                lambda: "division by zero",
                lambda: "invalid literal for int(): '%s'" % word(r),
                lambda: "expected %d, got %d" % (r.randint(0, 9), r.randint(10, 99)),
                lambda: "'%s'" % word(r),
            ]
        )()
        s = e + ": " + m
        if len(s) <= maxc:
            return s
    return r.choice(EXC) + ": " + word(r)[:6]


def sherr(r: random.Random, maxc: int) -> str:
    for _ in range(10):
        c = r.choice(CMDS)
        s = r.choice(
            [
                lambda c=c: "%s: %s: %s" % (c, fname(r), r.choice(ERRNO)),
                lambda: (
                    "%s: %s" % (r.choice(["error", "fatal", "Error", "ERROR"]), r.choice(ERRNO))
                ),
                lambda: "bash: %s: command not found" % word(r).lower(),
                lambda: "error: %s" % phrase(r, 26, 2),
                lambda: "fatal: %s" % phrase(r, 26, 2),
                lambda: "make: *** [%s] Error %d" % (word(r).lower(), r.randint(1, 255)),
                lambda: "npm ERR! code E%s" % word(r).upper()[:7],
                lambda: "error[E%04d]: %s" % (r.randint(1, 999), phrase(r, 20, 2)),
                lambda: "ssh: %s: %s" % (word(r).lower(), r.choice(ERRNO)),
                lambda: pyerr(r, maxc),
                lambda: "Segmentation fault (core dumped)",
                lambda: "Killed: %d" % r.randint(1, 31),
            ]
        )()
        if len(s) <= maxc:
            return s
    return "error: " + word(r)
