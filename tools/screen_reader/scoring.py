"""Scores of answers: exact ones, and character errors, over all and by question and scene."""

# What a question asks for, by words in it; the first that fits decides.
QUESTION_WORDS = [
    ("line", "line"),
    ("colo", "background"),
    ("dark", "theme"),
    ("kind", "kind"),
    ("screenshot of", "kind"),
    ("error", "error"),
    ("title", "title"),
    ("highlighted", "button"),
    ("default button", "button"),
    ("buttons", "buttons"),
    ("message", "message"),
    ("dialog say", "message"),
    ("number", "number"),
    ("command", "command"),
    ("value", "value"),
    ("set to", "value"),
    ("on or off", "onoff"),
    ("log level", "level"),
]


def edit_distance(a: str, b: str) -> int:
    """Levenshtein: insertions, deletions and substitutions of characters."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above = row
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
    return row[-1]


def question_kind(question: str) -> str:
    lowered = question.lower()
    for words, kind in QUESTION_WORDS:
        if words in lowered:
            return kind
    reads = any(words in lowered for words in ("say", "text", "code"))
    return "transcribe" if reads else "value"


def score(asked: list[tuple[str, str, str]], answers: list[str]) -> dict[str, dict[str, float]]:
    """asked: (question, right answer, scene). -> {group: {n, exact, cer}}, group "ALL" first.

    cer is the sum of edit distances, each at most its right answer's length, over the sum of those
    lengths.
    """
    sums: dict[str, list[int]] = {"ALL": [0, 0, 0, 0]}
    for (question, right, scene), answer in zip(asked, answers, strict=True):
        wrong = min(edit_distance(answer, right), len(right))
        exact = answer.strip() == right.strip()
        for group in ("ALL", question_kind(question), f"kind:{scene}"):
            total = sums.setdefault(group, [0, 0, 0, 0])
            for i, value in enumerate((1, exact, wrong, len(right))):
                total[i] += value
    return {
        group: {"n": n, "exact": round(exact / n, 3), "cer": round(wrong / max(1, length), 4)}
        for group, (n, exact, wrong, length) in sums.items()
        if n
    }
