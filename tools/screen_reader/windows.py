"""The dialog scene: a title bar, a message, buttons of which one is highlighted."""

from tools.screen_reader.canvas import SIDE, Canvas
from tools.screen_reader.colours import DARK, LIGHT, foreground, jitter, mix, theme
from tools.screen_reader.faces import font
from tools.screen_reader.layout import Scene, wrap
from tools.screen_reader.questions import (
    ask,
    ask_background,
    ask_error,
    ask_kind,
    ask_theme,
    read_everything,
)
from tools.screen_reader.text import BTN, sentence, word

ACC = [(25, 110, 230), (30, 150, 70), (210, 70, 20), (140, 50, 200), (0, 130, 140), (200, 30, 60)]


def dialog(c: Canvas) -> Scene:
    r = c.r
    dark = r.random() < 0.45
    name = r.choice(["Dark gray", "Black"]) if dark else r.choice(["White", "Light gray", "White"])
    bg = jitter(r, (DARK if dark else LIGHT)[name], 3)
    fg = foreground(r, bg)
    fn = r.choice(c.sans)
    fk = font(fn, c.px)
    ft = font(r.choice([fn, *c.sans]), c.px)
    title = r.choice(
        [
            lambda: word(r, True),
            lambda: word(r, True) + " " + word(r, True),
            lambda: r.choice(
                [
                    "Error",
                    "Warning",
                    "Confirm",
                    "Save changes?",
                    "Update",
                    "Delete file",
                    "Information",
                    "Question",
                    "Sign in",
                    "Login failed",
                ]
            ),
            lambda: (
                word(r, True)
                + " "
                + r.choice(["Error", "Setup", "Settings", "Installer", "Editor", "Manager"])
            ),
        ]
    )()
    nb = r.choice([1, 2, 2, 2, 3])
    btn = r.sample(BTN, nb)
    hi = r.randrange(nb)
    left = c.budget - len(title) - sum(map(len, btn))
    msg = sentence(r, max(12, left))
    n = max(14, min(c.line_length - 2, r.randint(16, 34)))
    ml = wrap(msg, n)
    aw = fk.width("abcdefghijklmnop") / 16
    lh = c.px * r.uniform(1.25, 1.5)
    pad = c.px * r.uniform(0.5, 1)
    bw = [fk.width(b) + c.px * r.uniform(1, 1.8) for b in btn]
    gap = c.px * 0.6
    bh = c.px * r.uniform(1.6, 2)
    cw = (
        max([fk.width(t) for t in ml] + [sum(bw) + gap * (nb - 1), ft.width(title) + c.px * 1.5])
        + 2 * pad
    )
    th = c.px * r.uniform(1.7, 2.1)
    ch = th + pad + lh * len(ml) + pad + bh + pad
    W = max(cw, 130)
    W = min(max(W, cw + (r.random() ** 2) * 0.3 * cw), max(cw, aw * SIDE / c.least_width * 1.05))
    H = max(ch, W / (1.2 + r.random() * (0.6 + c.difficulty)))
    tb = r.choice(
        [
            bg,
            tuple(max(0, v - 22) for v in bg) if not dark else tuple(min(255, v + 24) for v in bg),
            r.choice(ACC),
        ]
    )
    c.box((0, 0, W, th), fill=tb)
    if tb == bg:
        c.box((0, th, W, th), fill=mix(bg, fg, 0.8))
    tx = pad if r.random() < 0.6 else (W - ft.width(title)) / 2
    c.text(tx, (th - c.px * 1.2) / 2, title, ft, foreground(r, tb))
    if r.random() < 0.4:
        for k in range(3):
            c.box(
                (
                    W - (k + 1) * c.px * 0.8,
                    th * 0.4,
                    W - (k + 1) * c.px * 0.8 + c.px * 0.4,
                    th * 0.4 + c.px * 0.4,
                ),
                fill=mix(tb, fg, 0.6),
                radius=3,
            )
    mx = pad if r.random() < 0.7 else max(pad, (W - max(fk.width(t) for t in ml)) / 2)
    c.lines(ml, fk, mx, th + pad + (H - ch) * r.uniform(0, 0.5), lh, [fg] * len(ml))
    al = r.random()
    tot = sum(bw) + gap * (nb - 1)
    bx = W - pad - tot if al < 0.5 else (W - tot) / 2 if al < 0.85 else pad
    by = H - pad - bh
    acc = jitter(r, r.choice(ACC), 12)
    rad = r.choice([0, 3, 6])
    base = mix(bg, fg, 0.86)
    for i, b in enumerate(btn):
        fill = acc if i == hi else r.choice([base, base])
        c.box(
            (bx, by, bx + bw[i], by + bh),
            fill=fill,
            outline=None if i == hi else mix(bg, fg, 0.65),
            radius=rad,
        )
        c.text(
            bx + (bw[i] - fk.width(b)) / 2,
            by + (bh - c.px * 1.2) / 2,
            b,
            fk,
            (255, 255, 255) if i == hi else fg,
        )
        bx += bw[i] + gap
    qa: list[tuple[str, str, float]] = [
        (
            ask(
                r,
                "What is the title of the window?",
                "What is the window title?",
                "What is the title of the dialog?",
            ),
            title,
            2.5,
        ),
        (
            ask(
                r,
                "Which button is highlighted?",
                "Which button is highlighted?",
                "What is the default button?",
            ),
            btn[hi],
            2.5,
        ),
        (
            ask(
                r, "What is the message?", "What does the dialog say?", "What does the message say?"
            ),
            " ".join(ml),
            3,
        ),
        (ask(r, "Which buttons are there?", "What buttons are shown?"), ", ".join(btn), 1.2),
        (read_everything(r), title + "\n" + "\n".join(ml) + "\n" + " ".join(btn), 3),
        (ask_theme(r), theme(bg), 0.3),
        (ask_kind(r), "A dialog", 0.3),
        (ask_background(r), name, 0.5),
    ]
    if "rror" in title or "ailed" in title:
        qa.append((ask_error(r), " ".join(ml), 2))
    return Scene(W, H, bg, qa, "dialog")
