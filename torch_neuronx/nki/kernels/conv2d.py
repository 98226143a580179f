"""Two-dimensional convolution as a sum of matmuls: one for each tap of the window and each 128 input channels."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from torch_neuronx.nki.kernels.tiles import BANK, P, count, evacuate, spans, transpose


@nki.jit
def conv2d(x: Any, weight: Any, bias: Any = None, padding: int = 0) -> Any:
    """Convolution with stride 1.

    Channels are partitions. The moving operand of a tap is a window of the input that is read in place: rows of the image, shifted by the
    tap.

    Args:
        x: ``[batch, c_in, height, width]``.
        weight: ``[c_out, c_in, kernel height, kernel width]``.
        bias: ``[c_out, 1]`` or None.
        padding: zeros added on each side.

    Returns:
        ``[batch, c_out, height + 2 padding - kernel height + 1, width + 2 padding - kernel width + 1]``.

    Raises:
        AssertionError: a row of the result has more than 512 elements.
    """
    batch, _, height, width = x.shape
    c_out, _, kernel_h, kernel_w = weight.shape
    out_h, out_w = height + 2 * padding - kernel_h + 1, width + 2 * padding - kernel_w + 1
    assert out_w <= BANK, f"conv2d: a row of the result may have at most {BANK} elements, got {out_w}; cut the image into columns"
    out = nl.ndarray((batch, c_out, out_h, out_w), dtype=x.dtype, buffer=nl.shared_hbm)
    taps = _load_taps(weight)
    offsets = None if bias is None else _load_bias(bias)
    rows_at_once = max(1, BANK // out_w)
    block_rows = _rows_that_fit(x, padding, kernel_h, rows_at_once)
    turn = 0
    for image in range(batch):
        for y0, rows in spans(out_h, block_rows):
            inputs = _load_rows(x[image], y0 - padding, rows + kernel_h - 1, padding)
            for o, (o0, channels) in enumerate(spans(c_out, P)):
                result = nl.ndarray((channels, rows, out_w), dtype=x.dtype, buffer=nl.sbuf)
                for r0, n in spans(rows, rows_at_once):
                    product = _convolve(inputs, taps[o], r0, n, out_w, channels)
                    if offsets is None:
                        evacuate(result[:, r0 : r0 + n, :], product, turn)
                    else:
                        nisa.tensor_scalar(dst=result[:, r0 : r0 + n, :], data=product, op0=nl.add, operand0=offsets[o])
                    turn += 1
                nisa.dma_copy(dst=out[image, o0 : o0 + channels, y0 : y0 + rows, :], src=result)
    return out


def _rows_that_fit(x: Any, padding: int, kernel_h: int, multiple: int) -> int:
    """Rows of the result in a block: as many as 48 KiB of a partition's input hold, in multiples of what a matmul makes."""
    row_bytes = (x.shape[3] + 2 * padding) * 4 * count(x.shape[1], P)
    fit = 48 * 1024 // row_bytes - (kernel_h - 1)
    return max(multiple, fit // multiple * multiple)


def _load_rows(image: Any, first: int, rows: int, padding: int) -> list[Any]:
    """Rows ``first`` to ``first + rows`` of each 128 channels, with their zeros: ``[channels, rows, width + 2 padding]``."""
    c_in, height, width = image.shape
    start, stop = max(first, 0), min(first + rows, height)
    blocks = []
    for c0, channels in spans(c_in, P):
        block = nl.ndarray((channels, rows, width + 2 * padding), dtype=image.dtype, buffer=nl.sbuf)
        if padding:
            nisa.memset(dst=block, value=0.0)
        nisa.dma_copy(dst=block[:, start - first : stop - first, padding : padding + width], src=image[c0 : c0 + channels, start:stop, :])
        blocks.append(block)
    return blocks


def _load_taps(weight: Any) -> list[list[list[Any]]]:
    """``taps[output block][input block][tap]``: ``[c_in, c_out]``, transposed on the Tensor Engine."""
    c_out, c_in, kernel_h, kernel_w = weight.shape
    taps: list[list[list[Any]]] = []
    for o0, outputs in spans(c_out, P):
        taps.append([])
        for i0, inputs in spans(c_in, P):
            raw = nl.ndarray((outputs, inputs, kernel_h * kernel_w), dtype=weight.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=raw, src=weight[o0 : o0 + outputs, i0 : i0 + inputs])
            turned = [nl.ndarray((inputs, outputs), dtype=weight.dtype, buffer=nl.sbuf) for _ in range(kernel_h * kernel_w)]
            for tap, dst in enumerate(turned):
                transpose(dst, raw[:, :, tap])
            taps[-1].append([turned[row * kernel_w : (row + 1) * kernel_w] for row in range(kernel_h)])
    return taps


def _load_bias(bias: Any) -> list[Any]:
    loaded = []
    for o0, n in spans(bias.shape[0], P):
        tile = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=bias[o0 : o0 + n, :])
        loaded.append(tile)
    return loaded


def _convolve(inputs: list[Any], taps: list[Any], row: int, rows: int, out_w: int, channels: int) -> Any:
    """``[c_out, rows, out_w]`` in PSUM."""
    product = nl.ndarray((channels, rows, out_w), dtype=nl.float32, buffer=nl.psum)
    for block, of_block in zip(inputs, taps, strict=True):
        for dy, of_row in enumerate(of_block):
            for dx, tap in enumerate(of_row):
                window = block[:, row + dy : row + dy + rows, dx : dx + out_w]
                nisa.nc_matmul(dst=product, stationary=tap, moving=window)
    return product
