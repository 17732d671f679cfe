#!/bin/sh
# What training needs and git does not keep: fonts and words out of Debian's packages (no root, nothing is
# installed), and the tokenizer out of the text GGUF. usage: setup.sh TEXT_GGUF, in the repository's root.
# All fonts are free ones (OFL, Apache, Bitstream Vera, GPL with the font exception); none is shipped.
set -e
data="${SCREEN_READER_DATA:-build/screen_reader}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$data/fonts"
packages="fonts-dejavu-core fonts-dejavu-extra fonts-liberation fonts-noto-core fonts-noto-mono
fonts-hack fonts-firacode fonts-go fonts-inconsolata fonts-inter fonts-jetbrains-mono fonts-lato
fonts-open-sans fonts-roboto-unhinted fonts-cantarell fonts-mononoki fonts-freefont-ttf
fonts-fantasque-sans fonts-b612 fonts-anonymous-pro fonts-clear-sans fonts-cabin fonts-karla
fonts-league-mono fonts-agave fonts-courier-prime fonts-oxygen fonts-monoid fonts-roboto-slab
fonts-manrope fonts-play fonts-hermit fonts-quicksand fonts-junction fonts-mplus wamerican"
(cd "$work" && apt-get download $packages && for p in *.deb; do dpkg -x "$p" tree; done)
python3 - "$work/tree/usr/share/fonts" "$data/fonts" <<'PYTHON'
import shutil, sys
from pathlib import Path
from tools.screen_reader.faces import HELD, TRAINING
found = {}
for path in sorted(Path(sys.argv[1]).rglob("*.[ot]tf")):
    found.setdefault(path.name.replace(" ", ""), path)
for name in {*TRAINING.mono, *TRAINING.sans, *TRAINING.serif, *HELD.mono, *HELD.sans}:
    shutil.copy(found[name], Path(sys.argv[2]) / name)
PYTHON
grep -E '^[A-Za-z]{3,9}$' "$work/tree/usr/share/dict/american-english" >"$data/words.txt"
python3 -m tools.screen_reader.prompts "$1"
