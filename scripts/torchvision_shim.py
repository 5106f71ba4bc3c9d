"""Make PyPI's torchvision importable beside CPU torch; `scripts/setup` copies this file into `.venv`.

PyPI's wheel is linked against CUDA. Beside CPU torch its C++ library does not load, and its Python files then fail while they
register fake kernels for operators that nobody declared. Declaring the operators' schemas first is enough, since none of them
is called here. Users of PyTorch's CPU index have a torchvision that fits and do not need this.

A `.pth` file imports this module at every start of Python, so it only installs an import hook; torch is imported when somebody
imports torchvision.
"""

import importlib.abc
import sys

_BOX = "Tensor {0}, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_BACK = ", SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias"
_STRIDES = ", ".join(f"SymInt {name}_{axis}" for name in ("stride", "pad", "dilation") for axis in "hw")
_TAIL = f"{_STRIDES}, SymInt groups, SymInt offset_groups, bool use_mask"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_BOX.format('input')}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_BOX.format('grad')}{_BACK}, int sampling_ratio, bool aligned) -> Tensor",
    f"ps_roi_align({_BOX.format('input')}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_BOX.format('grad').replace('rois,', 'rois, Tensor channel_mapping,')}"
    f", int sampling_ratio{_BACK}) -> Tensor",
    f"roi_pool({_BOX.format('input')}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_BOX.format('grad').replace('rois,', 'rois, Tensor argmax,')}{_BACK}) -> Tensor",
    f"ps_roi_pool({_BOX.format('input')}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_BOX.format('grad').replace('rois,', 'rois, Tensor channel_mapping,')}{_BACK}) -> Tensor",
    f"deform_conv2d({_DEFORM}, {_TAIL}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}, {_TAIL}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_library = None


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declare()


def _declare() -> None:
    global _library
    import torch

    if _library is None and not torch.cuda.is_available():
        _library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            _library.define(schema)


sys.meta_path.insert(0, _Finder())
