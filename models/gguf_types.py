"""The tensor types and file types that a GGUF file names by number.

Sizes: ggml/src/ggml.c (type_traits) and ggml-common.h of the llama.cpp that is pinned in pyproject.toml.
File types: enum llama_ftype in include/llama.h.
"""

from __future__ import annotations

from llmcli.base.records import dataclass


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type: `block_elements` consecutive elements of a row take `block_bytes`."""

    name: str
    block_elements: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """The bytes of one row. Raises ValueError where the row is not a whole number of blocks."""
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise ValueError(f"{elements} elements are not a multiple of {self.name}'s block of {self.block_elements}")
        return blocks * self.block_bytes


def _types(*rows: tuple[int, str, int, int]) -> dict[int, GgmlType]:
    return {number: GgmlType(name, elements, size) for number, name, elements, size in rows}


GGML_TYPES: dict[int, GgmlType] = _types(
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

# Numbers that once stood for a type; llama.cpp removed them.
REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

TYPE_IDS: dict[str, int] = {kind.name: number for number, kind in GGML_TYPES.items()}

# Types that can be multiplied with and looked up on the CPU: those with a dot product in ggml-cpu.c. The others hold
# integers, or are what llama.cpp makes of the activations; as a weight they end in a null call or an abort.
WEIGHT_TYPES: frozenset[int] = frozenset(GGML_TYPES) - {
    TYPE_IDS[name] for name in ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64")
}

FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
