"""SentencePiece's messages are read with an older protobuf than the one that generated them."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("change", ["", "runtime_version.MAJOR = 5"])
def test_any_protobuf_reads_models(change):
    code = f"""
import os
from google.protobuf import runtime_version
{change}
from bertjax.data.tokenizers.sentencepiece_proto import sentencepiece_model_pb2 as messages
piece = messages.ModelProto.SentencePiece(piece="a", score=-1.5)
model = messages.ModelProto.FromString(messages.ModelProto(pieces=[piece]).SerializeToString())
assert not [name for name in os.environ if "PROTOBUF_VERSION_CHECK" in name]
print(model.pieces[0].piece, model.pieces[0].score)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert done.stdout == "a -1.5\n", done.stderr
