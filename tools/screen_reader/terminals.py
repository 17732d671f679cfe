"""Monospaced scenes with questions: a terminal, code, a log."""

# ruff: noqa: UP031
import random

from tools.screen_reader.canvas import Canvas
from tools.screen_reader.colours import (
    DARK,
    LIGHT,
    foreground,
    jitter,
    luminance,
    mix,
    theme,
)
from tools.screen_reader.layout import Scene, block, picture_size, wrap
from tools.screen_reader.questions import (
    ask,
    ask_background,
    ask_error,
    ask_kind,
    ask_theme,
    read_everything,
)
from tools.screen_reader.scenes import plain
from tools.screen_reader.text import (
    CMDS,
    ERRNO,
    EXC,
    LV,
    fname,
    ident,
    num,
    path,
    phrase,
    sentence,
    sherr,
    word,
)


def terminal(c: Canvas) -> Scene:
    r = c.r
    if r.random() < 0.75:
        name = r.choice(["Black", "Dark gray", "Dark blue", "Purple", "Black"])
        bg = jitter(r, DARK[name], 4)
    else:
        name = r.choice(["White", "Light yellow"])
        bg = jitter(r, LIGHT[name], 3)
    fg = foreground(r, bg)
    pr = r.choice(["$ ", "$ ", "# ", "> ", "%s$ " % word(r).lower()[:5], "~ %" + " ", ">>> "])
    lines: list[str] = []
    cols = []
    left = c.budget
    cmd = None
    if r.random() < 0.75:
        cmd = r.choice(
            [
                lambda: "%s %s" % (r.choice(CMDS), fname(r)),
                lambda: "%s %s" % (r.choice(CMDS), path(r)),
                lambda: "%s -%s %s" % (r.choice(CMDS), r.choice("abcdefrlvxyz"), word(r).lower()),
                lambda: r.choice(
                    [
                        "make",
                        "ls",
                        "git status",
                        "pytest",
                        "npm test",
                        "cargo build",
                        "git push",
                        "df -h",
                        "git pull",
                    ]
                ),
                lambda: "cd " + path(r),
                lambda: "%s %s" % (word(r).lower(), word(r).lower()),
            ]
        )()
        cmd = cmd[: max(6, c.line_length - len(pr))].strip()
        lines.append(pr + cmd)
        cols.append(fg)
        left -= len(lines[-1])
    if r.random() < 0.3 and left > 40:
        t = phrase(r, min(c.line_length, left - 20))
        lines.append(t)
        cols.append(fg)
        left -= len(t)
    if r.random() < 0.25 and left > 60 and c.line_length > 35:
        t = '  File "%s", line %d' % (fname(r), r.randint(1, 999))
        if len(t) <= c.line_length:
            lines.append(t)
            cols.append(fg)
            left -= len(t)
    err = None
    if r.random() < 0.8 or not lines:
        full = sherr(r, min(max(left, 14), int(c.line_length * 1.6)))
        ls = wrap(full, c.line_length)
        err = " ".join(ls)
        ec = r.choice([fg, fg, (230, 60, 60) if luminance(bg) < 130 else (180, 0, 0)])
        lines += ls
        cols += [ec] * len(ls)
    else:
        t = phrase(r, min(c.line_length, max(left, 6)))
        lines.append(t)
        cols.append(fg)
    fk, cw, a, lh = block(c, lines, mono=True, spacing=r.uniform(1.15, 1.6))
    W, H = picture_size(c, cw, lh * len(lines), lh, a)
    x = r.uniform(1, max(2, min(24, W - cw - 1)))
    y = r.uniform(1, max(2, (H - lh * len(lines) - 1) * r.random()))
    c.lines(lines, fk, x, y, lh, cols)
    qa: list[tuple[str, str, float]] = [
        (read_everything(r), "\n".join(lines), 3),
        (ask_background(r), name, 0.5),
        (ask_theme(r), theme(bg), 0.3),
        (ask_kind(r), "A terminal", 0.3),
    ]
    if err:
        qa.append((ask_error(r), err, 4))
    if cmd:
        qa.append(
            (
                ask(r, "What command was run?", "Which command was typed?", "What is the command?"),
                cmd,
                2,
            )
        )
    return Scene(W, H, bg, qa, "terminal")


KW = [
    "def",
    "return",
    "if",
    "for",
    "while",
    "import",
    "from",
    "class",
    "let",
    "const",
    "fn",
    "int",
    "void",
    "else",
    "in",
    "not",
    "pub",
    "var",
]


def codeline(r: random.Random, most: int) -> str:
    T = [
        lambda: "def %s(%s):" % (ident(r), word(r).lower()),
        lambda: "return %s" % ident(r),
        lambda: "import %s" % word(r).lower(),
        lambda: "from %s import %s" % (word(r).lower(), word(r).lower()),
        lambda: "%s = %s" % (ident(r), num(r)),
        lambda: "%s = %s(%s)" % (word(r).lower(), word(r).lower(), word(r).lower()),
        lambda: "for %s in %s:" % (r.choice("ijkxn"), ident(r)),
        lambda: "if %s == %d:" % (word(r).lower(), r.randint(0, 99)),
        lambda: 'print("%s")' % phrase(r, 16),
        lambda: "let %s = %d;" % (word(r).lower(), r.randint(0, 999)),
        lambda: "const %s = '%s';" % (word(r).lower(), word(r)),
        lambda: "int %s = %d;" % (word(r).lower(), r.randint(0, 999)),
        lambda: "%s.%s(%d)" % (word(r).lower(), ident(r), r.randint(0, 99)),
        lambda: "# %s" % phrase(r, 22, 2),
        lambda: "// %s" % phrase(r, 22, 2),
        lambda: "%s[%d] += %d" % (word(r).lower(), r.randint(0, 9), r.randint(1, 99)),
        lambda: "fn %s() -> %s {" % (word(r).lower(), r.choice(["i32", "u8", "bool", "String"])),
        lambda: "while %s < %d:" % (word(r).lower()[:5], r.randint(1, 999)),
        lambda: "class %s:" % word(r, True),
        lambda: 'raise %s("%s")' % (r.choice(EXC), word(r)),
    ]
    for _ in range(10):
        s = r.choice(T)()
        if len(s) <= most:
            return s
    return word(r)[:5].lower() + " = " + str(r.randint(0, 99))


def code(c: Canvas) -> Scene:
    r = c.r
    dark = r.random() < 0.65
    name = r.choice(["Dark gray", "Black", "Dark blue"]) if dark else "White"
    bg = jitter(r, (DARK if dark else LIGHT)[name], 4)
    fg = foreground(r, bg)
    n = r.choice([1, 2, 2, 3, 3, 4])
    left = c.budget
    lines: list[str] = []
    ind = 0
    num_on = r.random() < 0.3
    gut = 3 if num_on else 0
    for _ in range(n):
        if left < 12 and lines:
            break
        t = codeline(r, min(c.line_length - gut - ind, max(left, 12)))
        lines.append(" " * ind + t)
        left -= len(t) + ind
        ind = 4 if t.endswith((":", "{")) else (ind if r.random() < 0.6 else 0)
    fk, cw, a, lh = block(c, lines, mono=True)
    gx = a * gut
    W, H = picture_size(c, cw + gx, lh * len(lines), lh, a)
    x = r.uniform(1, max(2, min(24, W - cw - gx - 1)))
    y = r.uniform(1, max(2, (H - lh * len(lines) - 1) * r.random()))
    pal = [
        jitter(r, p, 10)
        for p in (
            [(198, 120, 221), (152, 195, 121), (229, 192, 123), (97, 175, 239)]
            if dark
            else [(160, 30, 160), (20, 120, 40), (150, 90, 0), (20, 70, 190)]
        )
    ]
    n0 = r.randint(1, 40)
    for i, t in enumerate(lines):
        yy = y + i * lh
        if num_on:
            c.text(x, yy, str(n0 + i), fk, mix(bg, fg, 0.55))
        xx = x + gx
        if t.strip().startswith(("#", "//")):
            c.text(xx, yy, t, fk, mix(bg, pal[1], 0.35))
            continue
        st = len(t) - len(t.lstrip())
        parts = t[st:].split(" ", 1)
        xx += a * st
        if parts[0] in KW and len(parts) > 1:
            c.text(xx, yy, parts[0], fk, pal[0])
            c.text(xx + fk.width(parts[0] + " "), yy, parts[1], fk, fg)
        else:
            c.text(xx, yy, t[st:], fk, fg if r.random() < 0.8 else pal[3])
    qa: list[tuple[str, str, float]] = [
        (
            ask(r, read_everything(r), "What does the code say?", "Read the code."),
            "\n".join(lines),
            5,
        ),
        (ask_theme(r), theme(bg), 0.4),
        (ask_kind(r), "Code", 0.4),
        (ask_background(r), name, 0.4),
    ]
    i = r.randrange(len(lines))
    if not num_on and len(lines) > 1:
        qa.append(("What does line %d say?" % (i + 1), lines[i].strip(), 1.5))
    if num_on:
        qa.append(("What is on line %d?" % (n0 + i), lines[i].strip(), 1.5))
    return Scene(W, H, bg, qa, "code")


def log(c: Canvas) -> Scene:
    r = c.r
    dark = r.random() < 0.6
    name = r.choice(["Black", "Dark gray"]) if dark else r.choice(["White", "Light gray"])
    bg = jitter(r, (DARK if dark else LIGHT)[name], 3)
    fg = foreground(r, bg)
    left = c.budget
    lines: list[str] = []
    cols = []
    err = None
    lv1 = None
    st = r.randrange(4)
    h, m, s = r.randint(0, 23), r.randint(0, 59), r.randint(0, 59)
    for _ in range(r.randint(1, 3)):
        if left < 22 and lines:
            break
        lv = r.choice(LV)
        s += r.randint(0, 9)
        pre = [
            "%02d:%02d:%02d %s " % (h, m, s % 60, lv),
            "[%s] " % lv,
            "%s: " % lv,
            "%02d:%02d [%s] " % (h, m, lv.lower()),
        ][st]
        room = min(c.line_length - len(pre), left - len(pre))
        if room < 5:
            continue
        msg = (
            sentence(r, room)
            if r.random() < 0.5
            else r.choice(
                [
                    lambda room=room: phrase(r, room, 2),
                    lambda: "%s=%s" % (word(r).lower(), num(r)),
                    lambda: "took %d ms" % r.randint(1, 9999),
                    lambda: r.choice(ERRNO),
                    lambda: "user %s logged in" % word(r).lower(),
                    lambda: (
                        "GET /%s %d" % (word(r).lower(), r.choice([200, 301, 403, 404, 500, 502]))
                    ),
                ]
            )()
        )
        msg = msg[:room].strip()
        lines.append(pre + msg)
        left -= len(lines[-1])
        cols.append(
            jitter(r, (235, 80, 70), 10)
            if lv in ("ERROR", "FATAL", "CRITICAL") and dark and r.random() < 0.6
            else fg
        )
        lv1 = lv if len(lines) == 1 else None
        if lv in ("ERROR", "FATAL", "CRITICAL"):
            err = msg if err is None else ""
    if not lines:
        return plain(c)
    fk, cw, a, lh = block(c, lines, mono=True)
    W, H = picture_size(c, cw, lh * len(lines), lh, a)
    x = r.uniform(1, max(2, min(20, W - cw - 1)))
    y = r.uniform(1, max(2, (H - lh * len(lines) - 1) * r.random()))
    c.lines(lines, fk, x, y, lh, cols)
    qa: list[tuple[str, str, float]] = [
        (read_everything(r), "\n".join(lines), 4),
        (ask_kind(r), "A log", 0.3),
        (ask_theme(r), theme(bg), 0.3),
        (ask_background(r), name, 0.3),
        (ask(r, "What is the last line?", "What does the last line say?"), lines[-1], 1.2),
    ]
    if err:
        qa.append((ask_error(r), err, 4))
    if lv1:
        qa.append(
            (
                "What is the log level?",
                lines[0].split("]")[0].split("[")[-1] if "[" in lines[0] else lv1,
                1.5,
            )
        )
    return Scene(W, H, bg, qa, "log")
