"""Scenes with questions: plain text, one number, a settings panel."""

# ruff: noqa: UP031

from tools.screen_reader.canvas import Canvas
from tools.screen_reader.colours import (
    DARK,
    LIGHT,
    background,
    foreground,
    jitter,
    mix,
    theme,
)
from tools.screen_reader.faces import font
from tools.screen_reader.layout import Scene, block, picture_size
from tools.screen_reader.questions import (
    ask,
    ask_background,
    ask_kind,
    ask_theme,
    read_everything,
)
from tools.screen_reader.text import (
    num,
    phrase,
    sentence,
    word,
)


def plain(c: Canvas) -> Scene:
    r = c.r
    name, bg = background(r, saturated=True)
    n = r.choice([1, 1, 2, 2, 3, 3, 4, 5])
    left = c.budget
    lines = []
    for _ in range(n):
        if left < 4:
            break
        t = (
            phrase(r, min(c.line_length, left))
            if r.random() < 0.7
            else sentence(r, min(c.line_length, left))
        )
        t = t[: c.line_length].strip()
        if t:
            lines.append(t)
            left -= len(t)
    c.px = int(c.px * r.uniform(1, 1.5))
    fk, cw, a, lh = block(c, lines, mono=r.random() < 0.4)
    W, H = picture_size(c, cw, lh * len(lines), lh, a)
    x = r.uniform(2, max(3, W - cw - 2))
    y = r.uniform(1, max(2, H - lh * len(lines) - 1))
    fg = foreground(r, bg, coloured=True)
    c.lines(
        lines,
        fk,
        x,
        y,
        lh,
        [fg if r.random() < 0.8 else foreground(r, bg, coloured=True) for _ in lines],
    )
    qa: list[tuple[str, str, float]] = [
        (read_everything(r), "\n".join(lines), 6),
        (ask_background(r), name, 1),
    ]
    if len(lines) > 1:
        i = r.randrange(len(lines))
        qa.append(
            (ask(r, "What does line %d say?" % (i + 1), "Read line %d." % (i + 1)), lines[i], 1.2)
        )
        qa.append(
            (ask(r, "What is the last line?", "What does the last line say?"), lines[-1], 0.6)
        )
        qa.append(
            (ask(r, "What is the first line?", "What does the first line say?"), lines[0], 0.6)
        )
    return Scene(W, H, bg, qa, "plain")


def number(c: Canvas) -> Scene:
    r = c.r
    name, bg = background(r, saturated=True)
    v = num(r)
    lab = r.choice(
        [
            word(r, True),
            word(r, True) + " " + word(r),
            r.choice(
                [
                    "Total",
                    "Count",
                    "Score",
                    "Balance",
                    "Speed",
                    "CPU",
                    "Memory",
                    "Temperature",
                    "Downloads",
                    "Price",
                ]
            ),
        ]
    )
    f1 = font(r.choice(c.sans), c.px)
    f2 = font(r.choice(c.sans + c.mono), int(c.px * r.uniform(1.0, 2.2)))
    w1 = f1.width(lab)
    w2 = f2.width(v)
    lh = c.px * 1.5
    fg = foreground(r, bg)
    hh = lh + f2.size_px * 1.3
    inline = r.random() < 0.35
    if inline:
        lab2 = lab + ":"
        f2 = f1
        w1 = f1.width(lab2 + " ")
        w2 = f1.width(v)
        W, H = picture_size(c, w1 + w2, lh, lh, w1 / (len(lab) + 2))
        x = r.uniform(2, max(3, W - w1 - w2 - 2))
        y = r.uniform(1, max(2, H - lh - 1))
        c.text(x, y, lab2 + " " + v, f1, fg)
    else:
        W, H = picture_size(c, max(w1, w2), hh, lh, w1 / len(lab))
        x = r.uniform(2, max(3, W - max(w1, w2) - 2))
        y = r.uniform(1, max(2, H - hh - 1))
        c.text(x, y, lab, f1, fg)
        c.text(x, y + lh, v, f2, foreground(r, bg, coloured=True))
    qa: list[tuple[str, str, float]] = [
        (
            ask(
                r,
                "What number is shown?",
                "What number is shown?",
                "Which number do you see?",
                "What is the number?",
            ),
            v,
            4,
        ),
        (ask(r, "What is the %s?" % lab, "What is the value of %s?" % lab), v, 1.5),
        (read_everything(r), (lab + ": " + v) if inline else (lab + "\n" + v), 2),
        (ask_background(r), name, 1),
    ]
    return Scene(W, H, bg, qa, "number")


def settings(c: Canvas) -> Scene:
    r = c.r
    dark = r.random() < 0.45
    name = r.choice(["Dark gray", "Black"]) if dark else r.choice(["White", "Light gray"])
    bg = jitter(r, (DARK if dark else LIGHT)[name], 3)
    fg = foreground(r, bg)
    fk = font(r.choice(c.sans), c.px)
    ft = font(r.choice(c.sans), int(c.px * 1.15))
    title = r.choice(
        [
            lambda: "Settings",
            lambda: word(r, True),
            lambda: word(r, True) + " settings",
            lambda: r.choice(
                ["Preferences", "Options", "Network", "Display", "General", "Sound", "Privacy"]
            ),
        ]
    )()
    left = c.budget - len(title)
    rows: list[tuple[str, str]] = []
    for _ in range(r.randint(1, 4)):
        lab = r.choice(
            [
                lambda: word(r, True),
                lambda: word(r, True) + " " + word(r).lower(),
                lambda: r.choice(
                    [
                        "Wi-Fi",
                        "Bluetooth",
                        "Volume",
                        "Language",
                        "Theme",
                        "Font size",
                        "Brightness",
                        "Proxy",
                        "Port",
                        "Notifications",
                        "Airplane mode",
                        "Time zone",
                    ]
                ),
            ]
        )()
        val = r.choice(
            [
                lambda: r.choice(["On", "Off"]),
                lambda: r.choice(["On", "Off"]),
                lambda: num(r),
                lambda: word(r, True),
                lambda: r.choice(
                    ["Auto", "None", "Default", "Enabled", "Disabled", "English", "Dark", "Light"]
                ),
            ]
        )()
        if len(lab) + len(val) + 2 > min(left, c.line_length):
            continue
        if lab in [z[0] for z in rows]:
            continue
        rows.append((lab, val))
        left -= len(lab) + len(val)
    if not rows:
        rows = [("Port", num(r))]
    aw = fk.width("abcdefghijklmnop") / 16
    lh = c.px * r.uniform(1.5, 2.2)
    pad = c.px * 0.7
    cw = max([fk.width(a + b) + c.px * 1.5 for a, b in rows] + [ft.width(title)]) + 2 * pad
    ch = c.px * 2 + lh * len(rows) + pad
    W, H = picture_size(c, cw, ch, lh, aw)
    c.text(pad, pad * 0.6, title, ft, fg)
    y0 = c.px * 2 + (H - ch) * r.uniform(0, 0.4)
    tog = r.random() < 0.5
    for i, (a, b) in enumerate(rows):
        yy = y0 + i * lh
        c.text(pad, yy, a, fk, fg)
        bw = fk.width(b)
        c.text(
            W - pad - bw,
            yy,
            b,
            fk,
            mix(bg, fg, 0.25) if r.random() < 0.5 else fg,
        )
        if tog:
            c.box(
                (pad, yy + lh * 0.93, W - pad, yy + lh * 0.93),
                fill=mix(bg, fg, 0.85),
            )
    i = r.randrange(len(rows))
    a, b = rows[i]
    qa: list[tuple[str, str, float]] = [
        (ask(r, "What is the value of %s?" % a, "What is %s set to?" % a), b, 4),
        (read_everything(r), title + "\n" + "\n".join("%s: %s" % z for z in rows), 3),
        (ask(r, "What is the title of the window?", "What is the title?"), title, 1.5),
        (ask_theme(r), theme(bg), 0.3),
        (ask_kind(r), "A settings panel", 0.3),
        (ask_background(r), name, 0.4),
    ]
    on = [z for z in rows if z[1] in ("On", "Off")]
    if on:
        z = r.choice(on)
        qa.append(("Is %s on or off?" % z[0], z[1], 1.5))
    return Scene(W, H, bg, qa, "settings")
