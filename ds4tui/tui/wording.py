"""Sentences of the app that are longer than a label. Pure functions of what happened."""

from pathlib import Path

from ds4tui.advice import advice
from ds4tui.assistant import ModelInfo
from ds4tui.cache.foreseen import Foreseen
from ds4tui.errors import ContextOverflow, StoreError
from ds4tui.events import Decision
from ds4tui.pictures.capture import Capture
from ds4tui.tui.clipboard import CopyOutcome
from ds4tui.tui.forecast import Forecast
from ds4tui.tui.panels import dropped_words
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import counted, seconds_words, size_words

NO_MODEL = "No model is open, so nothing was sent; your text stays here. /model NAME opens one."
ASIDE = " · not part of the conversation"
UNANSWERED = "This question got no answer when ds4tui ended; it is back in the prompt."
DRAFT_STAYS = "What you had typed stays with the chat that you left."
NOTHING_ASKED = "Nothing of yours stands in this conversation yet."
NOTHING_TO_COPY = "There is nothing to copy yet."
NO_BRANCHES = "This conversation has one branch. /regen and /edit make others."
EARLIER_STAYS = "There is no other answer; the conversation is what it was."
NO_CONVERSATION = "There is no conversation to continue yet."

BUSY_HERE = "An answer is written here; the agent's conversation can be opened after it."
ANOTHER_BRANCH = "This conversation went on from an earlier message: that branch is shown now."

PASTED_NAME = "pasted.png"
TAKEN_NAME = "screenshot.png"
CHOOSE_A_PART = "Choose a part of the screen with the mouse; Esc there leaves."
PICTURE_IS_SLOW = "The picture is still being read; the question is back in the prompt."
NAME_HINT = "Names with spaces may stand in quotes; @ in the prompt completes them."
MISSED_HINT = "Correct its name; sent again as it is, it stays words."
NO_CAPTURE_HINT = "Install one, or take it with the system's own key and send it with /image."

WARNING_S = 15.0  # two sentences take their time

SEE_LOG = "The log file has the details."

# A message and its hint.
Words = tuple[str, str]


def prompt_borders(
    *,
    is_queued: bool,
    is_busy: bool,
    opening: str,
    is_at_end: bool,
    is_held: bool = False,
    editing: str = "",
) -> tuple[str, str]:
    """The prompt's title (what it waits for) and subtitle (what Enter does)."""
    title = "" if is_at_end else "↓ more below: Ctrl+End"
    busy = f"{opening} is being opened" if opening else "an answer is written" if is_busy else ""
    if is_held:
        return "sent when its picture is read", "what you type now is the next draft"
    if is_queued:
        when = "the model is open" if opening else "this answer is done"
        return f"queued: sent when {when}", "Enter or any change takes it back"
    if editing:
        return editing, "Enter asks it on a branch of its own · Esc leaves it as it was"
    if busy:
        return title, f"{busy} · Enter queues"
    return title, "Enter sends · Shift+Enter or Ctrl+J new line · / commands"


def mark(which: int, count: int) -> str:
    """`‹2/3›`: the second of three branches; "" where there is one."""
    return f"‹{which}/{count}›" if count > 1 else ""


def tree_title(count: int) -> str:
    return f"{counted(count, 'branch')} of this conversation"


def editing(number: int, count: int, cost: str) -> str:
    """`editing question 2 of 3 · keeps about 812 of 850 resident tokens, drops 38`."""
    what = f"editing question {number:,} of {count:,}"
    return f"{what} · {cost}" if cost else what


def forecast_words(cost: Forecast | None) -> str:
    """What a question will keep and drop, before it is asked; "" if that cannot be told."""
    if cost is None:
        return ""
    if not cost.is_resident:
        if cost.held is None:
            return f"takes about {cost.evaluated:,} tokens and keeps what is held of them elsewhere"
        left = cost.evaluated - cost.held
        return f"takes {cost.evaluated:,} tokens: {cost.held:,} are held, {left:,} are computed"
    return f"keeps about {cost.kept:,} of {cost.resident:,} resident tokens, drops {cost.dropped:,}"


def foreseen(cost: Foreseen | None) -> str:
    """Where the tokens of a conversation are, and what its next question takes; "" if no model is
    open."""
    if cost is None:
        return ""
    held = ((cost.in_memory, "from memory"), (cost.on_disk, "from disk"))
    parts = [f"{count:,} {where}" for count, where in held if count]
    parts.append(f"{cost.to_compute:,} to compute")
    about = f"about {seconds_words(max(cost.estimated_ms, 100.0))}"
    return f"takes {cost.prompt:,} tokens: {', '.join(parts)}, {about}"


def does_not_fit(error: ContextOverflow) -> str:
    return f"does not fit: {error.message}"


def kept_words(decision: Decision) -> str:
    """What an act on a conversation kept and dropped, after it was done."""
    return f" · kept {decision.kept:,}, dropped {dropped_words(decision)}"


def another_answer(cost: str) -> str:
    return f"One more answer: {cost}." if cost else "One more answer."


def forked(cost: str) -> str:
    what = "A new conversation, with your question in the prompt"
    return f"{what}: it {cost}." if cost else f"{what}."


def exported(path: Path, count: int) -> str:
    return f"{counted(count, 'message')} were written to {path}."


def taken_in(count: int) -> str:
    return (
        f"A new conversation of {counted(count, 'message')}; its KV state is computed when asked."
    )


def resumed(cost: str) -> str:
    """After a stored conversation was opened."""
    return f"Resumed. The next question {cost.rstrip('.')}." if cost else "Resumed."


def branch_shown(cost: str) -> str:
    """After another branch was gone to."""
    done = "Another branch is shown."
    return f"{done} The next question {cost}." if cost else done


def opening(name: str, words: str) -> str:
    """What the opening of a model does; "" if none is opened."""
    return f"opening {name}: {words}" if name and words else f"opening {name}" if name else ""


def no_command(name: str) -> str:
    return f"There is no command /{name}. (A space before the slash sends it as text.)"


def copied(what: str, outcome: CopyOutcome) -> str:
    """The truth about a copy: done, or sent to a terminal that does not answer."""
    if outcome.tool == "tmux":
        return f"{what} was copied to tmux's buffer and handed to its terminal."
    if outcome.tool is not None:
        return f"{what} was copied ({outcome.tool})."
    why = f" ({outcome.problem})" if outcome.problem else ""
    return f"{what} was sent to the terminal{why}; whether it took it, terminals do not say."


def nothing_taken(taken: Capture) -> str:
    """The person left, or the program failed: most of them do not say which."""
    why = f" ({taken.problem})" if taken.problem else ""
    return f"No screenshot was taken{why}."


def no_pictures(folder: Path) -> str:
    return f"There are no pictures in {folder}. /image PATH takes one from elsewhere."


def second_press(is_busy: bool) -> str:
    """After the first Ctrl+C."""
    return "Ctrl+C again quits." + (" Esc stops the answer." if is_busy else "")


def nothing_is_kept(problem: StoreError) -> Words:
    return (
        f"Conversations are not kept: {problem.message} "
        "What you write now is lost when ds4tui ends.",
        problem.hint,
    )


def request_stopped(client: str) -> str:
    return f"The request of {client} is stopped; what there is of its reply is kept."


def agents_not_kept(problem: StoreError) -> str:
    return f"What agents say is not kept: {problem.message} {problem.hint}".strip()


def not_pulled(name: str) -> Words:
    return (
        "No model is open.",
        f"/model {name} offers the download again, /model PATH opens a GGUF file, "
        f"`ds4tui pull {name}` does it outside.",
    )


def open_model(info: ModelInfo | None) -> Words:
    if info is None:
        return "No model is open.", "/model NAME or /model PATH opens one."
    sight = f" It sees pictures, by {info.vision}." if info.vision else " It sees no pictures."
    return (
        f"{info.name}: {info.architecture}, {info.quantisation}, {info.parameters / 1e6:,.0f}M "
        f"parameters, {size_words(info.file_bytes)}, {info.context_tokens:,} tokens of context."
        f"{sight}",
        info.path,
    )


def agent_at_work(name: str) -> str:
    return f"An agent's request is at work; /model {name} again stops it and opens {name}."


def keys_not_used(problems: tuple[str, ...]) -> Words:
    """Of `[keys]` in config.toml."""
    return "The keys of config.toml are not used; the usual ones hold.", "\n".join(problems)


def beside(key: str) -> str:
    return (
        "An agent goes on from an earlier message of this conversation; its branch is kept beside "
        f"what is shown. {key} lists what agents do."
    )


def tripwire(words: str, cause: str, key: str = "/decisions") -> Words:
    """Many requests and no reuse, in the engine's words, and what helps against its cause."""
    told = advice(cause)
    what = " ".join(filter(None, (told.meaning, told.help))) if told else ""
    return f"{words}.", f"{what} {key} shows each decision.".strip()


_THINKING: dict[bool | None, str] = {
    True: "The model is asked to think.",
    False: "The model is asked not to think.",
    None: "The model thinks or not, as it was made.",
}


def thinking(wanted: bool | None, without_switch: str) -> Words:
    """How thinking is set; `without_switch` is the model that has none for it, "" if it has."""
    words = no_switch(without_switch) if without_switch else _THINKING[wanted]
    hint = "/think on, off and auto switch it; show and hide unfold and fold what is thought."
    return words, hint


def draft_waits(title: str, key: str) -> str:
    return f"A draft waits in “{one_line(title) or '(no title)'}”: {key} lists it."


DROPS_NOTHING = "Nothing of what is held is dropped: sampling stands in no row of it."


def system_cost(before: Foreseen | None, after: Foreseen | None) -> str:
    """What another system prompt keeps and loses of a conversation, before it is set."""
    first = "The system prompt stands before everything, so another one drops the rest."
    if before is None or after is None:
        return f"{first} How much that is cannot be told now."
    kept = after.in_memory + after.on_disk
    lost = max(0, before.in_memory + before.on_disk - kept)
    return (
        f"{first} {kept:,} tokens are kept and {lost:,} lost to this conversation: the next "
        f"question computes {after.to_compute:,}."
    )


def tuned(is_default: bool, cost: str) -> str:
    """After sampling or the system prompt were set."""
    where = "this conversation and, as the default, others" if is_default else "this conversation"
    return f"Kept for {where}. {cost or DROPS_NOTHING}"


def no_switch(name: str) -> str:
    return f"The template of {name} has no switch for thinking: it thinks or not, as it was made."


def thoughts_shown(is_shown: bool) -> str:
    return f"What the model thinks is {'shown' if is_shown else 'folded to a line'} from now on."


def thinking_set(wanted: bool | None, cost: str) -> str:
    """After thinking was switched, with what the next question costs."""
    done = _THINKING[wanted]
    return f"{done} The next question {cost}." if cost else done


def system_prompt(system: str) -> Words:
    if not system:
        return "This chat has no system prompt of its own.", "/system TEXT sets one."
    return f"The system prompt of this chat: {system}", "/system off removes it."


def system_prompt_set(system: str, cost: Forecast | None) -> Words:
    """What a new system prompt costs, told before the next question pays for it."""
    done = "The system prompt is set." if system else "The system prompt is removed."
    if cost is None:
        return done, "It holds from the next question on."
    if not cost.is_resident:
        return done, (
            "It stands before everything else: the "
            f"{cost.evaluated:,} tokens of this chat are evaluated with the next question, "
            "whatever is held of it."
        )
    return done, (
        f"It stands before everything else: of {cost.resident:,} resident tokens the next question "
        f"keeps {cost.kept:,} and drops {cost.dropped:,}, which are set aside if there is room; "
        f"{cost.evaluated:,} tokens of this chat are evaluated (again)."
    )
