"""The protobuf messages of SentencePiece's model files, with any version of protobuf.

    from bertjax.data.tokenizers.sentencepiece_proto import sentencepiece_model_pb2

sentencepiece's generated module refuses a protobuf older than the one that it was generated with.
Apache Beam needs protobuf 6, but sentencepiece 0.2.3 asks for protobuf 7.36. The messages have only
fields of basic types, which protobuf 6 reads and writes in the same way.
"""

import os

from google.protobuf import runtime_version

_FLAG = "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK"

try:
    from sentencepiece import sentencepiece_model_pb2
except runtime_version.VersionError:
    os.environ[_FLAG] = "true"
    try:
        from sentencepiece import sentencepiece_model_pb2
    finally:
        del os.environ[_FLAG]

__all__ = ["sentencepiece_model_pb2"]
