"""A process that converses with a tiny model, stores what it has, and dies on the way:

    python -m tests.engine.disk_child FOLDER RIG SEED CALL

It prints a line of JSON for every turn that is stored whole: ids, spans and what was sampled. It
dies by kill -9 where its threads together begin their CALLth function, Python's or C's, system
calls among them; 0: never, and the last line tells how many there were.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.engine.disk_rigs import Desk, Script, make_pages_short, opened_rig


class Count:
    def __init__(self, dies_at: int) -> None:
        self.calls, self._dies_at = 0, dies_at

    def begin(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        if event.endswith("call"):
            self.calls += 1
            if self.calls == self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, name: str, seed: str, call: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_short(patch)
        rig = opened_rig(name)
        count = Count(int(call))
        count.begin()
        desk = Desk.of(rig, name, Path(folder))
        script = Script(name, int(seed))
        for prompt in script.prompts():
            sampled = desk.asked(prompt)
            script.answered(prompt, sampled)
            assert desk.settle()
            spans = [(s.start, s.rows, s.fingerprint.hex()) for s in prompt.spans]
            turn = {"ids": prompt.ids.tolist(), "spans": spans, "sampled": sampled}
            print(json.dumps(turn), flush=True)
        desk.storing.finish(30.0)
        assert desk.disk.close(30.0)
        sys.setprofile(None)
        print(json.dumps({"calls": count.calls}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
