# dtypes.py: the element types of manifest version 1, in the names of PyTorch and of KVC1.
# SPDX-License-Identifier: Apache-2.0

import torch

TORCH_TO_KVC: dict[torch.dtype, str] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.int8: "i8",
    torch.uint8: "u8",
}
KVC_TO_TORCH: dict[str, torch.dtype] = {name: dtype for dtype, name in TORCH_TO_KVC.items()}
