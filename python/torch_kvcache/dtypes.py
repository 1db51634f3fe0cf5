# dtypes.py: the element types of KVC1, in the names of PyTorch and of the format.
# SPDX-License-Identifier: Apache-2.0

import torch

# Those of manifest version 1.
TORCH_TO_KVC: dict[torch.dtype, str] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.int8: "i8",
    torch.uint8: "u8",
}
KVC_TO_TORCH: dict[str, torch.dtype] = {name: dtype for dtype, name in TORCH_TO_KVC.items()}

# Those of manifest version 2, as far as this PyTorch has them.
_NAMES = {
    "float64": "f64",
    "float8_e4m3fn": "f8_e4m3fn",
    "float8_e5m2": "f8_e5m2",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
    "float8_e5m2fnuz": "f8_e5m2fnuz",
    "float8_e8m0fnu": "f8_e8m0",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint16": "u16",
    "uint32": "u32",
    "bool": "bool",
}
DTYPE_NAMES: dict[torch.dtype, str] = TORCH_TO_KVC | {
    getattr(torch, name): kvc for name, kvc in _NAMES.items() if hasattr(torch, name)
}
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
