"""Our .safetensors code against the format's own library (the Python package safetensors): what it writes we read and
write back unchanged, and what it refuses we refuse.  Usage: safetensors_peer_test.py COPY_PROGRAM
Exit code 77: not run, because the library is not installed."""

import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy
    import safetensors
    from safetensors.numpy import save_file
except ImportError:
    print("not run: no Python packages 'safetensors' and 'numpy'")
    sys.exit(77)

copy_program = sys.argv[1]
types = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64",
         "int64", "float64"]
other_types = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}  # without a numpy type; bytes of an element
rng = random.Random(1)


def copy(path, target):
    run = subprocess.run([copy_program, path, target], capture_output=True, text=True)
    assert run.returncode in (0, 3), (run.returncode, run.stderr)
    assert run.stderr.count("\n") == (run.returncode == 3), run.stderr
    return run.returncode == 0


def peer_reads(path):
    try:
        return dict(safetensors.deserialize(Path(path).read_bytes()))
    except safetensors.SafetensorError:
        return None


def metadata_of(path):
    data = Path(path).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + n]).get("__metadata__")


with tempfile.TemporaryDirectory() as folder:
    source, target = f"{folder}/in.safetensors", f"{folder}/out.safetensors"

    written = 0
    for round in range(60):
        tensors = {}
        for name in rng.sample(["q_fp4", "k", "a/b", "ü", 'quote"', "x y", "n\n"], rng.randint(0, 6)):
            dtype = numpy.dtype(rng.choice(types))
            shape = [rng.randint(0, 4) for _ in range(rng.randint(0, 4))]
            count = int(numpy.prod(shape, dtype=int))
            data = rng.randbytes(count * dtype.itemsize)
            if dtype == bool:
                data = bytes(b & 1 for b in data)
            tensors[name] = numpy.frombuffer(data, dtype).reshape(shape)
        metadata = rng.choice([None, {"causal": "1", "ünï": "\"\\\n\t\u20ac"}])
        save_file(tensors, source, metadata)
        assert copy(source, target), (tensors, metadata)
        before, after = peer_reads(source), peer_reads(target)
        assert before is not None and before == after
        assert (metadata_of(source) or {}) == (metadata_of(target) or {})
        written += 1

    for dtype, size in other_types.items():
        header = json.dumps({"a": {"dtype": dtype, "shape": [3, 2], "data_offsets": [0, 6 * size]}}).encode()
        Path(source).write_bytes(struct.pack("<Q", len(header)) + header + rng.randbytes(6 * size))
        assert copy(source, target) and peer_reads(source) == peer_reads(target) != None, dtype
        written += 1

    # One flipped, cut or added byte each: whatever the peer refuses, we refuse.
    refused = stricter = 0
    save_file({"a": numpy.frombuffer(b"abcdef", numpy.uint8).reshape(2, 3),
               "b": numpy.frombuffer(b"wxyz", numpy.float32)}, source, {"k": "v"})
    whole = Path(source).read_bytes()
    for round in range(600):
        damaged = bytearray(whole)
        at = rng.randrange(len(whole))
        kind = rng.randrange(3)
        if kind == 0:
            damaged[at] = rng.randrange(256)
        elif kind == 1:
            del damaged[at:at + rng.randint(1, 9)]
        else:
            damaged[at:at] = rng.randbytes(rng.randint(1, 3))
        Path(source).write_bytes(damaged)
        ours, peer = copy(source, target), peer_reads(source) is not None
        assert peer or not ours, bytes(damaged)
        refused += not ours
        stricter += peer and not ours
    assert refused > 300

print(f"{written} files came back unchanged; of 600 damaged files {refused} were refused, "
      f"{stricter} of them by us alone")
