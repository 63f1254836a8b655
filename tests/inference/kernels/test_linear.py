"""The linear kernels and those of head.cu, on either library, against torch in fp64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from inference.kernels.library import KernelLibrary
from inference.kernels.linear import (
    Format,
    LinearWeight,
    candidate_scratch,
    embed,
    head,
    kernel_of,
    linear_residual,
    rms_linear,
    top_candidates,
)
from inference.kernels.quantize import quantize_int4_linear, quantize_int8
from inference.kernels.reference_linear import (
    embed_reference,
    mask_logits_reference,
    rms_linear_reference,
    top_candidates_reference,
)

# Of the largest output of a row: activations keep 22 bits, sums are fp32.
TOLERANCE = 2e-6
EPS = 1e-6
FORMATS: list[Format] = ["fp32", "fp16", "int8", "int4"]
# rows, columns, group size: fewer rows than a tile and not a multiple of it, one or many tiles a
# block, slices that the columns fill and do not fill, the widest fast shape, and shapes that only
# the one-warp-a-row kernels take.
SHAPES = [
    (100, 64, 32),
    (5, 96, 32),
    (64, 256, 128),
    (200, 512, 128),
    (1100, 256, 32),
    (300, 512, 256),
    (77, 768, 128),
    (33, 320, 64),
    (50, 2048, 128),
    (40, 4096, 32),
    (40, 4096, 128),
    (30, 4128, 32),
    (30, 4224, 128),
    (24, 2080, 32),
    (20, 72, 24),
]


def make_weight(format_: Format, rows: int, columns: int, group_size: int = 32) -> LinearWeight:
    dense = torch.randn(rows, columns) * 0.05
    if format_ == "int8":
        return quantize_int8(dense)
    if format_ == "int4":
        return quantize_int4_linear(dense, group_size)
    return LinearWeight.dense(dense if format_ == "fp32" else dense.half())


def assert_rows_close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """Each row within ``tolerance`` of its largest magnitude."""
    error = (actual.double() - expected.double()).abs().amax(-1)
    bound = tolerance * expected.double().abs().amax(-1)
    assert bool((error <= bound).all()), f"{error.tolist()} above {bound.tolist()}"


@pytest.fixture(autouse=True)
def _seed_and_device(kernels: KernelLibrary) -> Iterator[None]:
    """Tensors of a test are made where its kernels run."""
    torch.manual_seed(7)
    with kernels.device:
        yield


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("rows", "columns", "group_size"), SHAPES)
def test_rms_linear(
    kernels: KernelLibrary, format_: Format, rows: int, columns: int, group_size: int
) -> None:
    weight = make_weight(format_, rows, columns, group_size)
    norm = torch.randn(columns)
    for batch in (1, 2, 4, 8):
        x = torch.randn(batch, columns) * torch.logspace(-3, 3, batch).unsqueeze(-1)
        for factor, zero_centred in ((norm, False), (norm, True), (None, False)):
            out = torch.full((batch, rows), torch.nan)
            settings = {"eps": EPS, "zero_centred": zero_centred, "weight": weight}
            rms_linear(kernels, x, factor, **settings, out=out)  # type: ignore[arg-type]
            assert_rows_close(out, rms_linear_reference(x, factor, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(300, 64), (70, 512), (20, 4096), (20, 4128)])
def test_linear_residual_adds(
    kernels: KernelLibrary, format_: Format, rows: int, columns: int
) -> None:
    weight = make_weight(format_, rows, columns)
    for batch in (1, 2, 4, 8):
        inputs, residual = torch.randn(batch, columns), torch.randn(batch, rows)
        expected = residual + rms_linear_reference(
            inputs, None, eps=0.0, zero_centred=False, weight=weight
        )
        linear_residual(kernels, inputs, weight, residual)
        assert_rows_close(residual, expected)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_row_does_not_depend_on_the_others(kernels: KernelLibrary, format_: Format) -> None:
    weight, norm = make_weight(format_, 600, 512, 128), torch.randn(512)
    x = torch.randn(8, 512)
    together = torch.empty(8, 600)
    settings = {"eps": EPS, "zero_centred": True, "weight": weight}
    rms_linear(kernels, x, norm, **settings, out=together)  # type: ignore[arg-type]
    for batch in (1, 2, 4):
        alone = torch.empty(batch, 600)
        rows = x[3 : 3 + batch].clone()
        rms_linear(kernels, rows, norm, **settings, out=alone)  # type: ignore[arg-type]
        assert torch.equal(alone, together[3 : 3 + batch])


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-12, 1e6, 1e30])
def test_activations_of_any_magnitude(
    kernels: KernelLibrary, format_: Format, factor: float
) -> None:
    weight = make_weight(format_, 24, 256, 128)
    x = torch.randn(2, 256) * factor
    x[1] = torch.randn(256)  # a padding row is zeros, and its neighbour is not
    out = torch.empty(2, 24)
    settings = {"eps": 0.0, "zero_centred": False, "weight": weight}
    rms_linear(kernels, x, None, **settings, out=out)  # type: ignore[arg-type]
    assert_rows_close(out, rms_linear_reference(x, None, **settings))  # type: ignore[arg-type]
    norm = torch.randn(256)
    settings["eps"] = EPS
    rms_linear(kernels, x, norm, **settings, out=out)  # type: ignore[arg-type]
    if factor < 1e18:  # beyond, the square of an fp32 is infinite; also in torch
        assert_rows_close(out, rms_linear_reference(x, norm, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("format_", FORMATS)
def test_every_integer_level_is_read_right(kernels: KernelLibrary, format_: Format) -> None:
    """One-hot activations read single weights: exact in every format."""
    weight = make_weight(format_, 40, 64, 32)
    if format_ == "int8":
        levels = torch.arange(40 * 64).remainder(256).sub(128).to(torch.int8).view(40, 64)
        assert weight.scales is not None
        weight = LinearWeight("int8", levels, weight.scales, 40, 64)
    dense = rms_linear_reference(torch.eye(64), None, eps=0.0, zero_centred=False, weight=weight)
    for start in range(0, 64, 8):
        out = torch.empty(8, 40)
        rows = torch.eye(64)[start : start + 8].clone()
        rms_linear(kernels, rows, None, eps=0.0, zero_centred=False, weight=weight, out=out)
        assert torch.equal(out, dense[start : start + 8].float())


@pytest.mark.parametrize("format_", FORMATS)
def test_slices_are_views(kernels: KernelLibrary, format_: Format) -> None:
    weight = make_weight(format_, 90, 128, 128)
    part = weight.slice_rows(30, 75)
    assert part.weight.data_ptr() == weight.weight[30].data_ptr()
    x = torch.randn(2, 128)
    whole, out = torch.empty(2, 90), torch.empty(2, 45)
    for w, to in ((weight, whole), (part, out)):
        rms_linear(kernels, x, None, eps=0.0, zero_centred=False, weight=w, out=to)
    assert torch.equal(out, whole[:, 30:75])
    assert part.size_bytes * 2 == weight.size_bytes


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("vocabulary", [1000, 77])
def test_head_masks_tokens(kernels: KernelLibrary, format_: Format, vocabulary: int) -> None:
    weight, norm = make_weight(format_, vocabulary, 64), torch.randn(64)
    x = torch.randn(2, 64)
    settings = {"eps": EPS, "zero_centred": True, "weight": weight}
    expected = rms_linear_reference(x, norm, **settings)  # type: ignore[arg-type]
    mask = torch.randint(-(2**31), 2**31, (2, -(-vocabulary // 32))).to(torch.int32)
    for mask_bits in (None, mask):
        logits = torch.full((2, vocabulary), torch.nan)
        head(kernels, x, norm, **settings, mask_bits=mask_bits, logits=logits)  # type: ignore[arg-type]
        if mask_bits is not None:
            wanted = mask_logits_reference(expected, mask_bits)
            assert 0.3 < float(wanted.isinf().double().mean()) < 0.7
            assert torch.equal(logits.isneginf(), wanted.isneginf())
            logits, wanted = logits.nan_to_num(neginf=0.0), wanted.nan_to_num(neginf=0.0)
            assert_rows_close(logits, wanted)
        else:
            assert_rows_close(logits, expected)


def candidates(library: KernelLibrary, logits: Tensor) -> tuple[Tensor, Tensor]:
    batch, vocabulary = logits.shape
    scratch = candidate_scratch(8, vocabulary, logits.device)
    ids = torch.full((batch, 64), 99, dtype=torch.int32)
    values = torch.full((batch, 64), torch.nan)
    top_candidates(library, logits, ids, values, scratch)
    return ids, values


@pytest.mark.parametrize("vocabulary", [1, 37, 64, 65, 512, 2048, 2049, 9000, 248_320])
def test_candidates(kernels: KernelLibrary, vocabulary: int) -> None:
    for batch in (1, 4) if vocabulary < 10_000 else (1,):
        logits = torch.randn(batch, vocabulary) * 3
        ids, values = candidates(kernels, logits)
        expected_ids, expected_values = top_candidates_reference(logits)
        assert torch.equal(ids, expected_ids)
        assert torch.equal(values, expected_values)


def test_candidates_of_hard_rows(kernels: KernelLibrary) -> None:
    """Ties, orders that crowd the best into one list, masks and values that are no numbers."""
    vocabulary = 20_000
    rising = torch.arange(vocabulary).float()
    crowded = torch.randn(vocabulary)
    crowded.view(-1, 250)[::10, :200] += 100.0  # every tenth stretch of ids
    one_block = torch.randn(vocabulary)
    lists = -(-vocabulary // 2048)
    blocks = torch.arange(vocabulary) // 256 % lists
    one_block[blocks == 3] += 50.0
    one_block[(blocks < 2) & (torch.arange(vocabulary) % 2 == 0)] += 60.0
    masked = torch.full((vocabulary,), -torch.inf)
    masked[[19_999, 4, 700]] = torch.tensor([1.0, -5.0, 1.0])
    broken = torch.randn(vocabulary)
    broken[::3] = torch.nan
    broken[7], broken[8] = torch.inf, -0.0
    rows = torch.stack(
        [
            rising,
            -rising,
            (rising % 3),
            torch.zeros(vocabulary),
            crowded,
            one_block,
            masked,
            broken,
        ]
    )
    ids, values = candidates(kernels, rows)
    expected_ids, expected_values = top_candidates_reference(rows)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(values, expected_values)


def test_candidates_when_whole_lists_are_large(kernels: KernelLibrary) -> None:
    """64 lists hold 64 candidates each above all others: the most that is ever kept."""
    vocabulary = 66 * 2048
    logits = torch.randn(1, vocabulary)
    position = torch.arange(vocabulary)
    logits[0, (position // 256 % 66 < 64) & (position % 256 < 9)] += 100.0
    ids, values = candidates(kernels, logits)
    expected_ids, expected_values = top_candidates_reference(logits)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(values, expected_values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [64, 256, 2048, 4104])
def test_embed(kernels: KernelLibrary, dtype: torch.dtype, columns: int) -> None:
    table = torch.randn(50, columns).to(dtype)
    token_ids = torch.tensor([0, 49, -1, 50, 7, 7, 31, 2], dtype=torch.int32)
    x = torch.full((8, columns), torch.nan)
    embed(kernels, token_ids, table, x)
    assert torch.equal(x, embed_reference(token_ids, table))
    assert torch.equal(x[:2], table[[0, 49]].float())
    assert not x[2:4].any()


def test_wrong_tensors_are_refused(kernels: KernelLibrary) -> None:
    weight = make_weight("fp16", 16, 64)
    x, out = torch.zeros(2, 64), torch.zeros(2, 16)

    def run(x: Tensor, out: Tensor, norm: Tensor | None = None) -> None:
        rms_linear(kernels, x, norm, eps=0.0, zero_centred=False, weight=weight, out=out)

    with pytest.raises(ValueError, match=r"x is torch.float16 \[2, 64\]"):
        run(x.half(), out)
    with pytest.raises(ValueError, match=r"out is torch.float32 \[2, 15\]"):
        run(x, out[:, :15].contiguous())
    with pytest.raises(ValueError, match="norm is"):
        run(x, out, torch.zeros(63))
    with pytest.raises(ValueError, match="batch of 9 rows"):
        run(torch.zeros(9, 64), torch.zeros(9, 16))
    with pytest.raises(ValueError, match="not aligned"):
        run(torch.zeros(129)[1:].view(2, 64), out)
    bits = torch.zeros(2, 2, dtype=torch.int32)
    settings = {"eps": 0.0, "zero_centred": False, "weight": weight, "logits": out}
    with pytest.raises(ValueError, match="mask_bits is"):
        head(kernels, x, None, **settings, mask_bits=bits)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="larger than 524288"):
        candidate_scratch(1, 524_289, torch.device("cpu"))


def test_each_shape_has_its_kernel(kernels: KernelLibrary) -> None:
    names = {
        (256 * 8, 128, "fp16"): "linear_fp16",
        (256 * 16, 128, "int8"): "linear_int8",
        (256 * 8, 128, "int4"): "linear_int4",
        (256 * 8, 32, "int4"): "linear_int4_narrow",
        (256 * 16, 32, "int4"): "rows_int4",
        (256, 256, "int4"): "linear_int4_ragged",
        (320, 64, "int4"): "linear_int4_narrow_ragged",
        (256 * 17, 128, "fp16"): "rows_fp16",
        (72, 24, "int8"): "rows_int8",
        (64, 64, "fp32"): "rows_fp32",
    }
    for (columns, group_size, format_), name in names.items():
        weight = make_weight(format_, 8, columns, group_size)  # type: ignore[arg-type]
        assert kernel_of(weight).name == name


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple of 8"):
        LinearWeight.dense(torch.zeros(4, 12))
    with pytest.raises(ValueError, match="needs scales"):
        LinearWeight("int8", torch.zeros(4, 16, dtype=torch.int8), None, 4, 16)
    with pytest.raises(ValueError, match="has no scales"):
        LinearWeight("fp16", torch.zeros(4, 16).half(), torch.ones(4), 4, 16)
    words = torch.zeros(4, 8, dtype=torch.int32)
    with pytest.raises(ValueError, match="do not divide into groups"):
        LinearWeight("int4", words, torch.ones(4, 2).half(), 4, 64, 48)
    with pytest.raises(ValueError, match="scales is"):
        LinearWeight("int4", words, torch.ones(4, 3).half(), 4, 64, 32)
