"""Bytes of an answer, piece by piece, as text: a token may end in the middle of a character.

However the bytes are cut, the text is that of decoding them whole with errors replaced; text that is complete is
handed out at once. Knows nothing of tokens.
"""

from __future__ import annotations

import codecs

_REPLACEMENT = "\ufffd"


class Utf8Assembler:
    """Holds back the bytes of an unfinished character, never more than three.

    lost    True once bytes that are not UTF-8 were replaced, so that a caller who promised exact bytes can say so
    """

    def __init__(self) -> None:
        # Python's own incremental decoder follows the Unicode advice on maximal subparts, as bytes.decode does:
        # a byte that cannot continue a character ends it at once, and only true prefixes wait.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waits = False
        self.lost = False

    def push(self, data: bytes) -> str:
        """The text that `data` completes."""
        if not self._waits and data.isascii():
            return data.decode("ascii")
        text = self._decode(data, final=False)
        self._waits = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """What is left: "" or one replacement character for an unfinished one. Ready for new text afterwards."""
        text = self._decode(b"", final=True)
        self._decoder.reset()
        self._waits = False
        return text

    def _decode(self, data: bytes, *, final: bool) -> str:
        before = self._decoder.getstate()[0]
        text = self._decoder.decode(data, final)
        # A replacement character may also have been in the bytes as such; only a changed byte string is a loss.
        if _REPLACEMENT in text and not (before + data).startswith(text.encode()):
            self.lost = True
        return text
