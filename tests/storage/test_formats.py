"""Codecs alone: the codes of their sources, bounds, rounding at random, what is special."""

# Sees mutants of: dithered, floats, storage.

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import gradtx
from gradtx.storage import FORMATS, Encoded
from gradtx.storage.companded import Companded
from gradtx.storage.draws import Draws
from gradtx.storage.dynamic import DynamicMap, LinearMap
from gradtx.storage.encoded import Blocks, as_codec, blocks_of, numbers_of
from gradtx.storage.floats import Float8, Short
from gradtx.storage.marked import Marked

NAMES = sorted(FORMATS)
QUICK = ("int8", "int4")
slow = pytest.mark.slow
LENGTH = 512


def some(*names):
    """Codecs, of which only some are quick tests."""
    slow = pytest.mark.slow
    return [pytest.param(n, marks=[] if n in QUICK else slow) for n in names]


def codec(name, **options):
    return gradtx.Codec(name, **options)


@functools.cache
def through(name, signed, rounding="nearest"):
    """A compiled round trip of a vector, and what it is kept as."""

    def run(x, key):
        slot = Encoded.of(x, codec(name, signed=signed, rounding=rounding), key)
        return slot.load(), slot.parts

    return jax.jit(run)


def trip(x, name, signed, **rest):
    return np.asarray(through(name, signed, **rest)(x, jax.random.key(0))[0], np.float64)


def blocks(x, name):
    """A vector's blocks as rows."""
    return x.reshape(-1, FORMATS[name].block or 1)


def dynamic_map(signed, bits=8):
    """The values of the dynamic map in NumPy's float64, as T. Dettmers describes it (2015)."""
    found = [0.0, 1.0]
    for decade in range(bits - 1):
        ends = np.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1)
        values = 10.0 ** (decade - bits + 2) * (ends[1:] + ends[:-1]) / 2
        found += [*values, *-values] if signed else [*values]
    return np.sort(found)


def meanings(signed, bits=8):
    """What codes are read as: a second moment of code 0 as half of the least with another code."""
    values = dynamic_map(signed, bits)
    return values if signed else np.r_[(values[0] + values[1]) / 4, values[1:]]


def samples(signed, shape=(512, 256), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp(2 * rng.normal(size=shape))
    return np.float32(x if signed else x * x)


def nearest(x, values):
    """The nearest of a map to each number of blocks in rows, and how far a decision was."""
    a = np.float64(x) / np.abs(np.float64(x)).max(1, keepdims=True)
    middles = (values[1:] + values[:-1]) / 2
    code = np.searchsorted(middles, a, side="right")
    at = np.clip(np.searchsorted(middles, a), 0, len(middles) - 1)
    near = [np.abs(a - middles[np.clip(at + d, 0, len(middles) - 1)]) for d in (-1, 0)]
    return code, np.minimum(*near) / np.abs(a)


@pytest.mark.parametrize("signed", [True, False])
def test_int8_has_the_dynamic_map(signed):
    x, values = samples(signed), dynamic_map(signed)
    loaded, parts = through("int8", signed)(x.reshape(-1), None)
    code, margin = nearest(x, values)
    got = np.asarray(parts["codes"]).reshape(x.shape)
    # Where two values are as near as float32 can tell, either is right.
    np.testing.assert_array_equal(got[margin > 2e-7], code[margin > 2e-7])
    assert (got != code).sum() <= 10
    scale = np.abs(x).max(1, keepdims=True)
    np.testing.assert_array_equal(np.asarray(parts["scale"])[:, None], scale)
    np.testing.assert_allclose(loaded.reshape(x.shape), meanings(signed)[got] * scale, rtol=5e-7)


@pytest.mark.parametrize(("bits", "signed"), [(8, True), (8, False), (4, True)])
def test_codes_change_halfway_between_the_values_of_the_dynamic_map(bits, signed):
    values, form = dynamic_map(signed, bits), DynamicMap(bits, signed)
    codes = np.arange(2**bits)
    read = jax.jit(form.value)(codes)
    np.testing.assert_allclose(read, meanings(signed, bits), rtol=2e-7)
    np.testing.assert_array_equal(np.signbit(read), values < 0)  # zero has no sign
    middle = (values[1:] + values[:-1]) / 2
    for side, want in ((-2e-7, codes[:-1]), (2e-7, codes[1:])):
        near = np.float32(middle + side * np.abs(middle))
        np.testing.assert_array_equal(jax.jit(form.code)(near), want)


@pytest.mark.slow
def test_int4_has_the_maps_of_its_source():
    """A. Li, J. Chen and J. Zhu, Memory Efficient Optimizers with 4-bit States, 2023."""
    for signed in (True, False):
        x = samples(signed, (256, 128))
        values = dynamic_map(True, 4) if signed else np.arange(1, 17) / 16
        loaded, parts = through("int4", signed)(x.reshape(-1), None)
        code, margin = nearest(x, values)
        assert (margin < 2e-7).sum() < 10
        want = values[code] * np.abs(x).max(1, keepdims=True)
        clear = margin > 2e-7
        np.testing.assert_allclose(loaded.reshape(x.shape)[clear], want[clear], rtol=1e-6)
        assert parts["codes"].shape == (x.size // 2,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_those_of_torchao_and_bitsandbytes_on_a_million_values(signed):
    """bitsandbytes looks codes up in bounds between the values of its map on every device but a
    CPU, whose own kernel is coarser: here its map, with those bounds."""
    torch = pytest.importorskip("torch")
    torchao = pytest.importorskip("torchao.optim.quant_utils")
    bitsandbytes = pytest.importorskip("bitsandbytes.functional")
    x = samples(signed, (4096, 256))
    ours = np.asarray(through("int8", signed)(x.reshape(-1), None)[1]["codes"]).reshape(x.shape)
    given = torch.tensor(x)
    scaled, _ = torchao.scale_tensor(given.reshape(-1), 256)
    table = torch.tensor(torchao.create_dynamic_map(signed))
    theirs = torchao.quantize_8bit_with_qmap(scaled, table).numpy().reshape(x.shape)
    code = bitsandbytes.create_dynamic_map(signed)
    bounds = (code[1:] + code[:-1]) / 2
    largest = given.abs().amax(1, keepdim=True)
    others = torch.bucketize(given * (1 / largest), bounds).numpy()
    _, margin = nearest(x, dynamic_map(signed))
    for known in (theirs, others):
        # Two of a million lie within an ulp of the middle between two values.
        assert (ours != known).sum() <= 5
        assert np.all(margin[ours != known] < 2e-7)


@pytest.mark.quick(5)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", NAMES)
def test_no_second_moment_vanishes(name, rounding):
    """It is divided by: read as zero it would make a step as large as its gradient is over eps."""
    if rounding not in FORMATS[name].roundings:
        pytest.skip("it has one rounding")
    x = np.random.default_rng(0).permutation(np.geomspace(1, 1e-14, LENGTH)).astype(np.float32)
    assert trip(x, name, False, rounding=rounding).min() > 0


@pytest.mark.parametrize(
    ("name", "block", "kind", "most"),
    [
        ("int8_companded", 32, np.float16, (127, 255)),
        ("int4_companded", 128, np.float32, (7, 15)),
    ],
)
def test_companded_is_its_equations(name, block, kind, most):
    """FlashOptim: groups with a scale, 2x / (1 + |x|), a root for second moments."""
    m, v = (np.float64(samples(signed, (64, block))) for signed in (True, False))
    scale = np.float64(kind(np.abs(m).max(1, keepdims=True)))
    z = most[0] * 2 * (m / scale) / (1 + np.abs(m / scale))
    z = np.clip(np.floor(z + 0.5), -most[0], most[0]) / most[0]
    want = z / (2 - np.abs(z)) * scale
    np.testing.assert_allclose(trip(np.float32(m.ravel()), name, True), want.ravel(), 1e-5)
    scale = np.float64(kind(np.sqrt(v).max(1, keepdims=True)))
    code = np.clip(np.floor(most[1] * np.sqrt(v) / scale + 0.5), 1, most[1])
    want = (code / most[1] * scale) ** 2
    np.testing.assert_allclose(trip(np.float32(v.ravel()), name, False), want.ravel(), 1e-5)


def test_scales_in_half_precision_are_its_numbers():
    """The least and the largest one in place of 0 and infinity; at random one of the two around."""
    form = Companded(8, 32, jnp.float16)
    x = np.float32([[1e-9], [0], [1e6], [1e-3], *[[1 / 3], [0.7]] * 32])
    draws = Draws.of((1, 2), x.shape)._replace(of_scale=True)

    @jax.jit
    def scales(x):
        return [form.encode(x, 1, True, how)["scale"][:, 0] for how in (None, draws)]

    near, drawn = scales(x)
    np.testing.assert_array_equal(near[:4], np.float32([2.0**-24, 0, 65504, np.half(1e-3)]))
    for first, around in ((4, [0.33325, 0.3335]), (5, [0.6997, 0.7002])):
        np.testing.assert_array_equal(np.unique(drawn[first::2]), np.half(around))


def test_what_is_companded_rounds_and_keeps_signs_by_its_sizes():
    short, shorter = Companded(8, 32, jnp.float16), Companded(4, 128, jnp.float32)
    assert short.roundings == ("nearest", "stochastic", "scale")
    assert (short.of_averages, shorter.of_averages) == ("scale", "nearest")
    assert (short.keeps_signs, shorter.keeps_signs) == (True, False)


def test_the_expanded_range_is_that_of_the_type():
    """COAT (H. Xi et al., 2024), 4.1: sign(x) |x|^k with k = log(R of e4m3) / log(R of x)."""
    x = samples(True, (16, 128))
    size = np.abs(np.float64(x))
    ratio = size.max(1, keepdims=True) / size.min(1, keepdims=True)
    power = np.log(448 / 2**-9) / np.log(ratio)
    _, parts = through("f8_expanded", True)(x.reshape(-1), None)
    np.testing.assert_allclose(parts["power"], power[:, 0], rtol=1e-5)
    codes = np.asarray(parts["codes"]).reshape(x.shape).astype(np.float64)
    np.testing.assert_allclose(np.abs(codes).max(1), 448)
    np.testing.assert_allclose(np.abs(codes).min(1), 2**-9)


@pytest.mark.slow
def test_a_narrow_range_is_expanded_as_if_it_were_one_half():
    form = Float8(jnp.float8_e4m3fn, expand=True)
    parts = form.encode(jnp.full((1, 128), 3.0), 1, True, None)
    np.testing.assert_allclose(parts["power"], np.log2(448 / 2**-9), rtol=1e-6)


def test_a_quotient_that_underflows_is_not_read_as_half_of_the_largest():
    x = np.zeros(128, np.float32)
    x[:2] = 10.0, 1.2e-38
    loaded = trip(x, "f8_expanded", signed=False)
    np.testing.assert_allclose(loaded[0], 10.0, rtol=1e-6)
    assert 0 < loaded[1] < 1e-36


def test_float16_ends_before_the_momentum_of_a_falling_gradient_does():
    assert Short(jnp.bfloat16).keeps_signs
    assert not Short(jnp.float16).keeps_signs


@pytest.mark.parametrize("name", ["f8_e4m3", "f8_e5m2"])
def test_eight_bit_floats_are_the_nearest(name):
    x = samples(True, (64, 128))
    dtype = FORMATS[name].dtype
    if rounds_to_float16_first(dtype):
        pytest.skip("the older code generator of this jaxlib rounds to float16 first")
    scale = np.abs(x).max(1, keepdims=True)
    kept = (x / scale * np.float32(jnp.finfo(dtype).max)).astype(dtype).astype(np.float64)
    want = kept / float(jnp.finfo(dtype).max) * scale
    np.testing.assert_allclose(trip(x.reshape(-1), name, True), want.reshape(-1), rtol=1e-6)


def test_bf16_and_eight_bits_are_the_upper_24_bits():
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) < 3e38)]
    kept = (x.view(np.uint32).astype(np.uint64) + 128) >> 8 << 8
    want = kept.astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(trip(x, "bf16+8", True), want)
    largest = 2.0**128 - 129 * 2.0**112
    ends = np.array([np.inf, -np.inf, 3.4e38, np.nan, -np.nan], np.float32)
    np.testing.assert_array_equal(
        trip(ends, "bf16+8", True), [largest, -largest, largest, np.nan, np.nan]
    )


def test_the_least_bf16_may_become_zero_beside_its_residual():
    """As compilers may do to numbers below the least normal one: below zero are bits of NaN."""
    parts = {"values": jnp.array([0.0, -0.0], jnp.bfloat16), "residual": jnp.int8([-5, -5])}
    assert FORMATS["bf16+8"].decode(parts, 0, True, None).tolist() == [0, 0]


# The largest error over the largest size in a block, for signed numbers and for squares.
BOUNDS = {
    "bf16": (2**-8, 2**-8),
    "f16": (2**-11, 2**-11),
    "bf16+8": (2**-16, 2**-16),
    "f8_e4m3": (1 / 28, 1 / 28),
    "f8_e5m2": (1 / 14, 1 / 14),
    "int8": (0.9 / 128, 0.9 / 256),
    "int8_companded": (1 / 127 + 2**-11, 1 / 255 + 2**-10),
    "int4": (0.9 / 8, 1 / 16),
    "int4_companded": (1 / 7, 1 / 15),
    "int4_dithered": (1 / 14, 1 / 16),
}


@st.composite
def vectors(draw):
    """Blocks over the range of float32: constant ones, one outlier, some zeros, near the least."""
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    largest = 10.0 ** draw(st.integers(-30, 30))
    kind = draw(st.sampled_from(["normal", "constant", "outlier", "sparse", "wide"]))
    x = rng.normal(size=LENGTH)
    if kind == "constant":
        x = np.full(LENGTH, rng.normal())
    elif kind == "outlier":
        x = x * 1e-3
        x[rng.integers(LENGTH)] = 1
    elif kind == "sparse":
        x = x * (rng.random(LENGTH) < 0.1)
    elif kind == "wide":
        x = x * 10.0 ** rng.uniform(-20, 0, LENGTH)
    return x / max(np.abs(x).max(), 1e-30) * largest


@functools.cache
def rounds_to_float16_first(dtype):
    """Whether the code generator of this jaxlib rounds twice on the way to an 8-bit float."""
    above_half = jnp.float32(1 + 2.0 ** -(jnp.finfo(dtype).nmant + 1) + 2.0**-14)
    return bool(jax.jit(lambda x: x.astype(dtype))(above_half) == 1)


def bound(name, signed):
    """The largest error over the largest size in a block."""
    form = FORMATS[name]
    twice = type(form) is Float8 and rounds_to_float16_first(form.dtype)
    # Half a unit of float16 beside half a unit of the type.
    more = 2.0 ** (jnp.finfo(form.dtype).nmant - 10) if twice else 0
    return BOUNDS[name][not signed] * (1 + more)


@pytest.mark.quick(2)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", some(*BOUNDS))
@given(x=vectors())
def test_round_trips_are_within_the_bound(name, signed, x):
    x = np.float32(x if signed else np.abs(x))
    if name in ("f16", "int8_companded"):  # whose range, or that of its scale, is float16's
        x = x / np.abs(x).max() if np.abs(x).max() else x
        x[np.abs(x) < 1e-3] = 0
    got = trip(x, name, signed)
    largest = np.abs(np.float64(blocks(x, name))).max(1, keepdims=True)
    error = np.abs(blocks(got - x, name))
    assert np.all(error <= bound(name, signed) * largest * (1 + 1e-5) + 1.2e-38)


@pytest.mark.parametrize("signed", [True, False])
def test_the_expanded_range_keeps_a_share_of_every_entry(signed):
    """Half a step of the type's least numbers, before the power that stretches it back."""
    x = samples(signed, (LENGTH,))
    loaded, parts = through("f8_expanded", signed)(x, jax.random.key(0))
    power = np.repeat(np.asarray(parts["power"], np.float64), 128)
    share = np.float64(loaded) / x
    assert np.all(share <= 1.5 ** (1 / power))
    assert np.all(share >= 0.5 ** (1 / power))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", some(*NAMES))
def test_what_is_not_a_number_is_never_silently_zero(name, signed):
    """What is infinite is read as the largest number that there is room for."""
    for bad in (np.nan, np.inf, *([-np.inf] if signed else [])):
        x = np.abs(samples(True, (LENGTH,)))
        x[5] = bad
        got = trip(x, name, signed)
        assert np.isnan(got[5]) if np.isnan(bad) else 6e4 < got[5] * np.sign(bad) < np.inf
        block = FORMATS[name].block or 1
        x[5] = 1.0
        others = slice(block + 6, None)  # other blocks are as they were
        np.testing.assert_array_equal(got[others], trip(x, name, signed)[others])


ROUNDINGS = [(n, r) for n in NAMES for r in FORMATS[n].roundings]


@pytest.mark.quick(1)
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    ("name", "rounding"),
    [pytest.param(*c, marks=[] if c[0] == "f16" else pytest.mark.slow) for c in ROUNDINGS],
)
@given(x=vectors(), power=st.integers(-30, 38), bad=st.sampled_from([3.4e38, 65519, np.inf]))
def test_codes_are_finite_where_numbers_are_not_nan(name, rounding, signed, x, power, bad):
    """Numbers and scales stop at the largest ones, whatever is beside them in the block."""
    x = np.float32(np.clip(x * 10.0**power, -3.4e38, 3.4e38))
    x[[3, 300]] = bad, -bad
    x = x if signed else np.abs(x)
    loaded, parts = through(name, signed, rounding)(x, jax.random.key(0))
    for found in (loaded, *parts.values()):
        assert np.isfinite(np.float64(found)).all()
    assert loaded[3] > 6e4 or bad < 1e38


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", some(*NAMES))
def test_zeros_and_what_is_below_normal(name, signed):
    np.testing.assert_array_equal(trip(np.zeros(LENGTH, np.float32), name, signed), 0)
    tiny = np.float32(np.linspace(0, 1e-40, LENGTH))
    got = trip(tiny, name, signed)
    assert np.all(np.abs(got) <= 1.2e-38)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(*(n for n in NAMES if "stochastic" in FORMATS[n].roundings)))
@pytest.mark.parametrize("signed", [True, False])
def test_rounding_at_random_is_right_on_average(name, signed):
    """The mean of many draws is the number, within four standard errors; nearest is not."""
    rng = np.random.default_rng(1)
    x = np.float32(rng.uniform(0.2, 1, 64) * (rng.choice([-1, 1], 64) if signed else 1))
    x[::32] = 1
    many = jax.jit(
        jax.vmap(
            lambda key: Encoded.of(
                jnp.asarray(x), codec(name, signed=signed, rounding="stochastic"), key
            ).load()
        )
    )
    draws = np.asarray(many(jax.random.split(jax.random.key(1), 2000)), np.float64)
    want = np.float64(x)
    if "companded" in name:  # unbiased in what is rounded, not in the number
        scale = 1 if not signed else float(FORMATS[name].types["scale"](np.abs(x).max()))
        draws, want = (
            (np.sqrt(draws), np.sqrt(want))
            if not signed
            else (2 * y / scale / (1 + np.abs(y / scale)) for y in (draws, want))
        )
    if name == "f8_expanded":
        power = float(Encoded.of(jnp.asarray(x), codec(name, signed=signed)).parts["power"][0])
        draws, want = (np.sign(y) * np.abs(y) ** power for y in (draws, want))
    error = (draws.mean(0) - want) * (want > -0.88)  # the signed maps have no -1
    assert np.all(np.abs(error) < 5 * draws.std(0) / np.sqrt(2000) + 2e-5)
    assert (draws.std(0) > 0).sum() > 20


def test_rounding_at_random_takes_one_of_the_two_codes_around_a_number():
    x = samples(True, (LENGTH,))
    near, drawn = (
        np.int32(through("int8", True, rounding)(x, jax.random.key(0))[1]["codes"])
        for rounding in ("nearest", "stochastic")
    )
    assert set(drawn - near) == {-1, 0, 1}


@pytest.mark.parametrize(("rounding", "scales"), [("stochastic", 1), ("scale", 2)])
def test_either_codes_or_their_scale_are_rounded_at_random(rounding, scales):
    x, rounds = samples(False, (32,)), through("int8_companded", False, rounding)  # one block
    parts = [rounds(x, jax.random.key(i))[1] for i in range(16)]
    assert len({float(p["scale"][0]) for p in parts}) == scales
    of_one = [p["codes"] for p in parts if p["scale"][0] == parts[0]["scale"][0]]
    assert bool(np.ptp(of_one, axis=0).any()) == (scales == 1)


def test_beside_codes_that_are_rounded_at_random_a_scale_is_rounded_up():
    x = samples(False, (LENGTH,))
    _, parts = through("int8_companded", False, "stochastic")(x, jax.random.key(0))
    root = np.sqrt(blocks(x, "int8_companded").max(1))
    near = np.float16(root)
    want = np.where(near < root, np.nextafter(near, np.float16(np.inf)), near)
    assert 0 < (near < root).mean() < 1
    np.testing.assert_array_equal(parts["scale"], want)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_at_random_a_code_or_the_one_on_the_other_side_of_the_number_is_taken(name, signed):
    """Always the other one here, where there is one: the least and the largest have none beyond."""

    class Drawn:
        def uniform(self, shape):
            return jnp.zeros(shape)

    form, x = FORMATS[name], samples(signed, (1024,))
    x[::8] *= np.linspace(0, 1e-2, 128)  # below the least code too
    x[np.argmin(x)] = -x.max() if signed else 0
    linear = name == "int4" and not signed
    values = np.arange(1, 17) / 16 if linear else meanings(signed, form.bits)
    encode = jax.jit(
        lambda x, d: form.encode(x, 0, signed, Drawn() if d else None), static_argnums=1
    )
    a = np.float64(x / x.max())
    low = np.clip(np.searchsorted(values, a, "right") - 1, 0, None)
    high = np.clip(np.searchsorted(values, a), None, 2**form.bits - 1)
    near, drawn = (np.int32(encode(x, d)["codes"]) for d in (False, True))
    np.testing.assert_array_equal(drawn, low + high - near)
    x[0] = np.inf
    assert encode(x, True)["codes"][0] == 2**form.bits - 1


@pytest.mark.slow
def test_codes_fit_four_bits_also_above_the_scale():
    """The largest scale is less than the largest number."""
    np.testing.assert_array_equal(
        LinearMap(4).code(jnp.array([0.0, 1.0, 4.0, jnp.inf])), [0, 15, 15, 15]
    )


@pytest.mark.slow
def test_dither_is_right_on_average_and_replayed():
    x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, 256), jnp.float32)
    slot = Encoded.of(x, codec("int4_dithered"), jax.random.key(1))
    np.testing.assert_array_equal(slot.load(), slot.load())

    def again(slot, _):
        slot = slot.store(x)
        return slot, slot.load()

    draws = jax.lax.scan(again, slot, length=400)[1]
    total = np.sum(np.asarray(draws, np.float64), axis=0)
    # A uniform error over steps of 1/7 has the standard deviation 1 / (7 sqrt(12)).
    assert np.abs(total / 400 - x).max() < 5 / (7 * np.sqrt(12)) / np.sqrt(400)


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [0.0, 0.25, 1 - 2**-23])
def test_dithered_codes_are_the_nearest_integers(drawn):
    """The last number that can be drawn would round 1 up to a code of five bits."""

    class Drawn:
        def uniform(self, shape):
            return jnp.full(shape, drawn, jnp.float32)

    x = np.linspace(-1, 1, 128, dtype=np.float32)
    form = FORMATS["int4_dithered"]
    parts = form.encode(jnp.asarray(x), 0, True, Drawn())
    y = np.float32(7) * x + np.float32(drawn - 0.5)
    want = np.minimum(np.floor(y + np.float32(0.5)), 7)  # a half rounds up
    np.testing.assert_array_equal(parts["codes"], want + 8)
    read = form.decode(parts, 0, True, Drawn())
    np.testing.assert_allclose(read, (want - (drawn - 0.5)) / 7, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_are_read_and_written_as_in_an_array(name, axis):
    if axis is not None and FORMATS[name].block is None:
        axis = None  # each entry is kept alone
    indices, values = jnp.array([3, 39, 40, 41]), jnp.ones((4, 300))

    @jax.jit
    def run(x):
        slot = Encoded.of(x, codec(name, axis=axis), jax.random.key(0))
        return slot, slot.put(indices, values)

    slot, new = run(samples(True, (40, 300)))
    assert jax.tree.structure(new) == jax.tree.structure(slot)
    rows, before, after = map(np.asarray, (slot.take(indices), slot.load(), new.load()))
    np.testing.assert_array_equal(rows[:2], before[indices[:2]])
    np.testing.assert_array_equal(rows[2:], 0)
    alone = axis != 0 and name != "int4_dithered" and (axis == 1 or FORMATS[name].block is None)
    if alone:  # other rows keep their bits
        others = np.array([i for i in range(40) if i not in (3, 39)])
        np.testing.assert_array_equal(after[others], before[others])
        np.testing.assert_allclose(after[np.array([3, 39])], 1, atol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1,), (7,), (300,), (3, 5, 7), (257, 129)])
def test_shapes_that_blocks_do_not_divide(name, shape):
    x = samples(True, shape)
    loaded = jax.jit(lambda x: Encoded.of(x, codec(name)).load())(x)
    assert loaded.shape == shape
    assert np.abs(loaded - x).max() / np.abs(x).max() < 0.13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rounding"),
    [pytest.param(*c, marks=[] if c == ("bf16", "stochastic") else slow) for c in ROUNDINGS],
)
def test_codes_are_the_same_in_double_precision(name, rounding):
    x, c = samples(True, (LENGTH,)), codec(name, rounding=rounding)

    @jax.jit
    def both(x):
        slot = Encoded.of(x, c, jax.random.key(3))
        return slot.load(), slot.parts

    want = both(x)
    with jax.enable_x64(True):
        found = both(x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (codec("bf16", block=64), "takes no block and no axis"),
        (codec("bf16", axis=0), "takes no block and no axis"),
        (codec("int8", block=1), "takes a block of 2 entries or more, not 1"),
        (codec("int4", block=3), "takes a block of 2 entries or more, and even, not 3"),
    ],
)
def test_blocks_that_a_codec_cannot_have(given, says):
    with pytest.raises(ValueError, match=says):
        as_codec("store", given)


@pytest.mark.parametrize("given", ["bf16", codec("int8", block=3), codec("int4", block=2)], ids=str)
def test_blocks_that_a_codec_can_have(given):
    assert as_codec("store", given) == (codec(given) if isinstance(given, str) else given)


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        ((1,), (0, 1, 1)),
        ((7,), (0, 1, 7)),  # shorter than a block
        ((600,), (0, 3, 200)),  # blocks of one size
        ((1, 2), (1, 1, 2)),
        ((0, 3), (1, 1, 3)),
        ((300, 40, 512), (2, 2, 256)),  # 24,000 scales; along the others 40,960 and 153,600
    ],
)
def test_blocks_lie_along_the_axis_that_needs_the_fewest(shape, want):
    assert blocks_of(codec("int8"), shape) == want


def test_only_blocks_that_are_full_need_no_padding():
    blocks = Blocks(1, 2, 4)
    assert blocks.fill((3, 8))
    assert not blocks.fill((8, 7))


@pytest.mark.slow
def test_entries_of_four_bits_are_those_of_the_slot():
    """In its shape, out of bytes that each hold one from both halves of a padded block."""
    x = jnp.linspace(1.0, -0.5, 15).reshape(5, 3)
    (codes,) = jax.jit(lambda x: Encoded.of(x, codec("int4", axis=0, block=8)).entries())(x)
    want = DynamicMap(4, True).code(x / jnp.max(jnp.abs(x), 0))
    np.testing.assert_array_equal(codes, want)


@pytest.mark.slow
def test_dither_is_subtracted_in_blocks_along_any_axis():
    x = samples(True, (200, 3))

    @jax.jit
    def run(x):
        slot = Encoded.of(x, codec("int4_dithered", axis=0))
        return slot.load(), slot.parts["scale"]

    loaded, scale = run(x)
    assert np.all(np.abs(loaded - x) <= np.repeat(scale, 100, 0) / 14 * (1 + 1e-5))


@pytest.mark.slow
def test_keys_of_a_slot_are_those_of_runs_that_were_saved():
    """The seed 0 if none is given, and 0 folded in at each step: a run goes on with its bits."""
    slot, key = Encoded.of(jnp.ones(128), codec("int4_dithered")), jax.random.key(0)
    for kept in (slot, slot.store(jnp.ones(128))):
        key = jax.random.fold_in(key, 0)
        np.testing.assert_array_equal(kept.key, jax.random.key_data(key))
    assert [int(x) for x in numbers_of(np.array([1, 2**32 - 2], np.uint32))] == [1, -2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [codec("int4_dithered"), codec("bf16", rounding="stochastic")])
def test_rows_as_a_slot_of_their_own_have_the_random_numbers_of_the_whole(kind):
    """The blocks of 301 entries are padded; after a step as well, and of rows of rows."""
    x = jnp.asarray(samples(True, (6, 301, 2)))
    slot = Encoded.of(x, kind._replace(axis=None if kind.name == "bf16" else 1), jax.random.key(3))
    some = slot.of_rows({n: part[2:4] for n, part in slot.parts.items()}, 2, jnp.int32(2))
    np.testing.assert_array_equal(some.load(), slot.load()[2:4])
    last = some.of_rows({n: part[1:] for n, part in some.parts.items()}, 1, jnp.int32(1))
    np.testing.assert_array_equal(last.load(), slot.load()[3:4])
    some, slot = some.store(2 * x[2:4]), slot.store(2 * x)
    jax.tree.map(
        np.testing.assert_array_equal, some.parts, {n: v[2:4] for n, v in slot.parts.items()}
    )
    np.testing.assert_array_equal(some.load(), slot.load()[2:4])


def test_kernels_are_for_slots_computed_in_float32():
    """And for those with more than a conversion to compute."""

    def can(name, dtype):
        return Marked.can(jax.eval_shape(lambda: Encoded.of(jnp.ones(128, dtype), codec(name))))

    assert can("int8", jnp.float32)
    assert can("int8", jnp.bfloat16)
    assert not can("bf16", jnp.float32)
    with jax.enable_x64(True):
        assert not can("int8", jnp.float64)


class Drawn:
    """Draws that are all one number: none is above 1 - 2**-23."""

    of_scale = False

    def __init__(self, number):
        self.number = number

    def uniform(self, shape):
        return jnp.full(shape, self.number, jnp.float32)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", [n for n in NAMES if "stochastic" in FORMATS[n].roundings])
def test_no_draw_leads_beyond_the_largest_entry(name, signed):
    """In float32 127 and the largest draw are 128, whose code would be that of -1.0."""
    form, x = FORMATS[name], jnp.tile(jnp.array([1.0, -1.0 if signed else 0.5]), 64)
    for number in (0.0, 1 - 2.0**-23):
        parts = form.encode(x, 0, signed, Drawn(number))
        if "codes" in parts and jnp.issubdtype(parts["codes"].dtype, jnp.integer):
            bits = 8 // form.per_byte
            assert int(parts["codes"].max()) < 2 ** (bits - (parts["codes"].dtype == jnp.int8))
        read = form.decode(parts, 0, signed, Drawn(number))
        assert bool(jnp.all(jnp.sign(read) == jnp.sign(x)))
        assert float(jnp.max(jnp.abs(read))) == pytest.approx(1, rel=2e-3)
