"""Steps on stored slots as kernels: in interpret mode against the plain path, and what is cut."""

import functools
import re
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from gradtx.kernels import mosaic_gpu, stored_step
from gradtx.kernels.cutting import CALLS, cuts
from gradtx.kernels.tiling import mosaic_gpu_tiling
from gradtx.programs.interpreter import equations
from gradtx.programs.opaque import MOSAIC_GPU, TRITON, offers_mosaic_gpu, opaque
from gradtx.storage.encoded import Blocks, blocks_of
from tests.programs import an_h100, gpu_kernels, without

pytestmark = pytest.mark.compiled

GPU = stored_step.GPUS[TRITON]
CHIPS = {"TPU": stored_step.TPU, "GPU": GPU, "CPU": stored_step.CPU}
CHIPS[MOSAIC_GPU] = stored_step.GPUS[MOSAIC_GPU]
needs_mosaic_gpu = pytest.mark.skipif(not offers_mosaic_gpu(), reason="JAX before 0.12")
PLAIN = stored_step.CPU._replace(codecs=frozenset())
# In the last place. A later XLA computes a product and a sum as one in one of two programs.
ROUNDING_OF_SCALES = int(jax.__version_info__ >= (0, 11))


def numbers(shape, seed, wide=False):
    rng = np.random.default_rng(seed)
    size = 10 ** rng.uniform(-4, 0, shape) if wide else 1
    return jnp.asarray(rng.normal(size=shape) * size, jnp.float32)


def on(chip, monkeypatch, **static):
    """From here on steps run as on a chip, in interpret mode: how many kernels each has."""
    made = []

    def counted(*args):
        found = cuts(*args)
        made.append(len(found))
        return found

    run = functools.partial(stored_step.with_kernels, backend=chip, interpret=True, **static)
    monkeypatch.setattr(stored_step, "cuts", counted)
    # What interprets Mosaic GPU's kernels has effects, which a lowered primitive may not have.
    in_place = SimpleNamespace(bind=run) if chip is CHIPS[MOSAIC_GPU] else None
    monkeypatch.setattr(stored_step, "program_p", in_place or opaque("stored_step", run))
    return made


def stepped(tx, params, steps=2):
    """Parameters and state after some steps."""

    @jax.jit
    def step(params, state, grads):
        return gradtx.apply_gradients(tx, grads, params, state)

    state = tx.init(params)
    for k in range(steps):
        grads = jax.tree.map(lambda p, k=k: numbers(p.shape, k + 1, wide=True), params)
        params, state = step(params, state, grads)
    return params, state


def check_states(state, same, units=0):
    """The same codes to the bit, and scales to so many units in the last place.

    A scale is the largest entry of an average, which may be one unit larger or smaller where XLA
    fuses its product and sum in one of two programs, and so rounds once in place of twice.
    """
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        if units and jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_array_max_ulp(a, b, units)
        else:
            np.testing.assert_array_equal(a, b)


def check(tx, params, chip, monkeypatch, count, units=0):
    """The same state, but for `units` of its scales, and parameters to a unit in the last place."""
    on(PLAIN, monkeypatch)
    want, state = stepped(tx, params)
    made = on(chip, monkeypatch)
    found, same = stepped(tx, params)
    assert max(made, default=0) == count
    check_states(state, same, units)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-7, atol=3e-7)


slow = pytest.mark.slow
LEAVES = [
    ("TPU", (512, 160), 1),  # two tiles of columns, the second not full
    ("TPU", (2, 2560, 24), 1),  # stacked, and two tiles of eight blocks, the second not full
    ("TPU", (100, 64), 1),  # one block of another size
    ("TPU", (256, 4, 8), 0),  # dimensions after the block's
    ("TPU", (1024,), 0),
    ("GPU", (512, 160), 1),
    ("GPU", (256, 4, 8), 1),
    ("GPU", (3, 4, 512), 1),  # blocks along rows
    ("GPU", (1024,), 1),
    ("CPU", (512, 1536), 1),  # three tiles of columns in each block
    ("CPU", (250, 3, 5), 1),
    ("CPU", (1024,), 1),
    ("CPU", (520, 64), 0),
]
QUICK = (("TPU", (100, 64), 1), ("GPU", (512, 160), 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "shape", "count"),
    [pytest.param(*leaf, marks=[] if leaf in QUICK else slow) for leaf in LEAVES],
)
def test_a_kernel_writes_the_codes_of_the_plain_path(chip, shape, count, monkeypatch):
    tx = gradtx.store(gradtx.adamw(1e-3, weight_decay=0.1), min_size=1)
    check(tx, numbers(shape, 0), CHIPS[chip], monkeypatch, count, ROUNDING_OF_SCALES)


RANDOM4 = gradtx.Codec("int4", rounding="stochastic")


@slow
@pytest.mark.parametrize(
    ("chip", "shape", "codec", "count"),
    [
        ("GPU", (250, 12), "int8", 1),  # no power of 2
        ("GPU", (521, 40), "int8", 1),  # three blocks of 174; the second tile not full
        ("GPU", (3, 2, 521), "int8", 1),  # the same along rows
        ("GPU", (521,), "int8", 1),
        ("GPU", (509, 8), RANDOM4, 1),
        ("GPU", (521, 8), RANDOM4, 0),  # on a GPU 4 bits need a power of 2
        ("TPU", (521, 160), "int8", 0),  # three blocks of 174, which are no whole registers
        ("TPU", (527, 160), "int8", 1),
        ("TPU", (261, 40), "f8_expanded", 1),
        ("TPU", (200, 2, 768), gradtx.Codec("int8", axis=-1, rounding="stochastic"), 1),
        ("TPU", (4, 300), gradtx.Codec("int8", axis=-1), 0),  # blocks of 150 in rows
        ("TPU", (2, 1201, 24), RANDOM4, 1),  # two tiles of eight blocks
    ],
)
def test_blocks_of_any_size_may_be_padded(chip, shape, codec, count, monkeypatch):
    """With a decay of 1/2, so that a fused product and sum is rounded as the two are."""
    tx = gradtx.store(gradtx.sgd(0.1, momentum=0.5), codec, min_size=1)
    check(tx, numbers(shape, 0), CHIPS[chip], monkeypatch, count)


RANDOM8 = gradtx.Codec("int8", rounding="stochastic")
RANDOM16 = gradtx.Codec("bf16", rounding="stochastic")
BOTH = {"0.trace": RANDOM16, "1.0.trace": RANDOM8}


@pytest.mark.parametrize(
    ("codec", "size", "fits"), [("int4", 256, True), ("int4", 174, False), ("int8", 174, True)]
)
def test_codes_of_four_bits_need_blocks_of_a_power_of_2_on_a_gpu(codec, size, fits):
    cut = SimpleNamespace(codecs={gradtx.Codec(codec)}, drawn=(), eqns=())
    shard = SimpleNamespace(shape=(size, 8), blocks=Blocks(0, 1, size))
    assert GPU.fits(cut, shard) == fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "shape", "codecs", "count"),
    [
        ("GPU", (256, 160), RANDOM8, 1),
        ("TPU", (2, 2560, 24), RANDOM8, 1),
        ("CPU", (512, 1536), RANDOM8, 1),
        ("TPU", (2, 300, 128), RANDOM16, 1),  # the second piece of 256 rows not full
        ("TPU", (300, 64), RANDOM16, 0),  # which a TPU may keep column by column
        ("TPU", (300,), RANDOM16, 0),
        ("GPU", (300, 128), RANDOM16, 0),
        ("CPU", (300, 128), RANDOM16, 0),
        ("TPU", (3, 527, 40), BOTH, 1),  # blocks of 176, the last padded
        ("GPU", (3, 521, 40), BOTH, 1),
        ("GPU", (3, 512), BOTH, 1),
        ("CPU", (3, 512, 4), BOTH, 1),
    ],
)
def test_a_kernel_draws_the_numbers_of_the_plain_path(chip, shape, codecs, count, monkeypatch):
    """In several tiles, from the place of an entry in its slot.

    With decays of 1/2, so that a fused product and sum is rounded as the two are.
    """
    inner = gradtx.chain(gradtx.trace(0.5), gradtx.sgd(0.1, momentum=0.5))
    tx = gradtx.store(inner, codecs, min_size=1)
    check(tx, numbers(shape, 0), CHIPS[chip], monkeypatch, count)


@pytest.mark.slow
def test_on_a_cpu_what_is_between_codes_takes_no_room(monkeypatch):
    """A tile of each slot, and not the slot; the codes of the plain path, 4-bit ones too.

    And codes are not computed where they are written, which XLA does on one core.
    """
    tx, p = gradtx.store(gradtx.adam(1e-2), "int4"), numbers((1024, 1024), 0)

    def step(p, s, g):
        return gradtx.apply_gradients(tx, g, p, s)

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(p, tx.init(p), p).compile()
    # 2.52 bytes an entry with jaxlib 0.8.0; 1.51 with 0.10.2, and with 0.12.
    most = 2.6 if jax.__version_info__ < (0, 10) else 2
    assert compiled.memory_analysis().temp_size_in_bytes < most * p.size
    kernels_of_xla = re.findall(r"^%\S+ \(.*?^}", compiled.as_text(), re.MULTILINE | re.DOTALL)
    assert [k for k in kernels_of_xla if " floor(" in k]
    writing = [k for k in kernels_of_xla if "dynamic-update-slice(" in k]
    assert writing
    assert not [k for k in writing if " floor(" in k]
    check(tx, p[:, :64], stored_step.CPU, monkeypatch, 1)


CHAINS = {
    "lion": (gradtx.lion(1e-2), "int8", 1),
    "schedule": (gradtx.adam(gradtx.linear_schedule(0.1, 0, 5)), "int8", 1),
    "a slot in another codec": (gradtx.adam(1e-2), {"mu": "bf16", "nu": "int8"}, 1),
    "a slot in no codec": (gradtx.adam(1e-2), {"nu": "int8"}, 1),
    # At a norm that clips, sums in the order of another chip would differ in the last bits.
    "clipped": (gradtx.chain(gradtx.clip_by_global_norm(1e9), gradtx.adam(1e-2)), "int8", 1),
    "lamb": (gradtx.lamb(1e-2), "int8", 1),
    "f8_e4m3": (gradtx.adam(1e-2), "f8_e4m3", 1),
    "companded": (gradtx.adam(1e-2), "int8_companded", 1),
    "a slot in float16": (gradtx.adam(1e-2), {"mu": "f16", "nu": "int8"}, 1),
    "companded, 4 bits": (gradtx.adam(1e-2), "int4_companded", 1),
    "int4": (gradtx.adam(1e-2), "int4", 1),
    "blocks of two sizes": (gradtx.adam(1e-2), {"mu": "int8", "nu": "f8_e4m3"}, 0),
    "dithered": (gradtx.adam(1e-2), "int4_dithered", 1),
    "f8 at random": (gradtx.adam(1e-2), gradtx.Codec("f8_e4m3", rounding="stochastic"), 1),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("codec", ["bf16", "f16"])
def test_slots_in_shorter_floats_are_not_copied(codec):
    """The new parameter is computed from the old slots, and so before the new ones are written."""
    tx = gradtx.store(gradtx.adamw(1e-3), codec)
    p = {n: jax.ShapeDtypeStruct((1024, 512), jnp.float32) for n in ("a", "b")}

    def step(p, s, g):
        return gradtx.apply_gradients(tx, g, p, s)

    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(p, jax.eval_shape(tx.init, p), p)
    # Where random numbers are drawn, their keys need some hundred bytes; a slot is a megabyte.
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 4096


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "clipped" else slow) for n in CHAINS]
)
def test_whole_chains_are_one_kernel(name, monkeypatch):
    """What reads the whole leaf, as a norm, stays outside; slots in no blocks are inside."""
    inner, codec, count = CHAINS[name]
    check(
        gradtx.store(inner, codec, min_size=1),
        numbers((256, 32), 0),
        GPU,
        monkeypatch,
        count,
    )


@slow
@pytest.mark.parametrize(
    ("codec", "count"),
    [
        ("int8_companded", 1),
        ({"0.trace": "f16", "1.0.trace": "int8"}, 0),  # the slot would be copied to be seen so
    ],
)
def test_a_tpu_sees_the_bits_of_scales_in_float16(codec, count, monkeypatch):
    inner = gradtx.chain(gradtx.trace(0.5), gradtx.sgd(0.1, momentum=0.5))
    tx = gradtx.store(inner, codec, min_size=1)
    check(tx, numbers((256, 32), 0), stored_step.TPU, monkeypatch, count)


@slow
def test_one_kernel_serves_all_leaves_of_a_kind(monkeypatch):
    """Each leaf is a call of it; a small leaf is left to XLA; a norm beside them is shared.

    The norm stays below its bound: a chip sums its squares in another order."""
    params = {f"{i}": numbers((256, 16), i) for i in range(5)} | {"b": numbers((16,), 9)}
    tx = gradtx.chain(gradtx.clip_by_global_norm(1e3), gradtx.store(gradtx.adam(1e-2)))
    check(tx, params, stored_step.TPU, monkeypatch, 5)


@pytest.mark.slow
def test_in_a_loop_and_by_hand(monkeypatch):
    """In the loop of `guard`, and in an update whose result is added outside."""
    p, g = numbers((256, 32), 0), numbers((256, 32), 1)
    tx = gradtx.store(gradtx.adam(1e-2))
    guarded = gradtx.guard(tx)
    on(PLAIN, monkeypatch)
    want = jax.jit(tx.update)(g, tx.init(p), p)
    made = on(stored_step.TPU, monkeypatch)
    # The function is another one, or JAX would find the program that it has.
    found = jax.jit(lambda *args: tx.update(*args))(g, tx.init(p), p)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-7)

    def step(p, s, g):
        return gradtx.apply_gradients(guarded, g, p, s)

    jax.eval_shape(step, p, guarded.init(p), g)
    assert set(made) == {0, 1}


@pytest.mark.slow
def test_without_kernels(monkeypatch):
    made = on(stored_step.TPU, monkeypatch)
    p, tx = numbers((256, 32), 0), gradtx.store(gradtx.adam(1e-2), kernel=False)
    for outer in (tx, gradtx.chain(gradtx.clip(1.0), tx)):
        jax.eval_shape(lambda p, s, o=outer: gradtx.apply_gradients(o, p, p, s), p, outer.init(p))
    assert set(made) == {0}
    assert gradtx.from_config(gradtx.to_config(tx)) == tx


@needs_mosaic_gpu
@pytest.mark.parametrize(
    ("shape", "codec"),
    [
        ((256, 16), "int8"),
        pytest.param((2, 512, 32), "int8", marks=slow),  # stacked, and two blocks
        pytest.param((128, 4, 8), "f8_e4m3", marks=slow),  # dimensions after the block's
        pytest.param((256, 32), "f8_e5m2", marks=slow),
        pytest.param((512, 32), gradtx.Codec("int8", rounding="stochastic"), marks=slow),
    ],
)
def test_a_kernel_through_mosaic_gpu_writes_the_codes_of_the_plain_path(shape, codec, monkeypatch):
    tx = gradtx.store(gradtx.sgd(0.1, momentum=0.5), codec, min_size=1)
    check(tx, numbers(shape, 0), CHIPS[MOSAIC_GPU], monkeypatch, 1)


@pytest.mark.parametrize(
    ("shape", "codec", "fits"),
    [
        ((256, 16), "int8", True),
        ((2, 512, 4, 8), "f8_e4m3", True),
        ((320, 48), gradtx.Codec("int8", block=320), True),  # no power of 2
        ((1024, 48), gradtx.Codec("int8", block=1024), False),
        ((2**16, 64, 16), gradtx.Codec("int8", axis=1), False),  # more tiles than CUDA launches
        ((256, 24), "int8", False),  # no multiple of 16 columns
        ((300, 16), "int8", False),  # two blocks of 150
        ((16, 4096), "int8", False),  # blocks along rows
        ((256, 16), "int4", False),
        ((256, 16), "f8_expanded", False),
    ],
)
def test_which_leaves_mosaic_gpu_takes(shape, codec, fits):
    codec = gradtx.Codec(codec) if isinstance(codec, str) else codec
    cut = SimpleNamespace(codecs={codec}, drawn=(), eqns=())
    shard = SimpleNamespace(shape=shape, blocks=blocks_of(codec, shape))
    assert CHIPS[MOSAIC_GPU].fits(cut, shard) == fits
    if fits:
        shape, _ = mosaic_gpu_tiling(*vars(shard).values()).tile(shard.blocks.size)
        assert shape[-2] % mosaic_gpu.ROWS == shape[-1] % mosaic_gpu.COLUMNS == 0


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda x: jnp.where(jnp.isfinite(x), jnp.floor(x) ** 3, jnp.exp(x)), True),
        (lambda x: jnp.log1p(x), False),
        (lambda x: x**1.7, False),
        (lambda x: x**-2, False),
        (lambda x: x % 1.0, False),
        (lambda x: x.astype(jnp.complex64).real, False),
    ],
    ids=["finite", "log1p", "pow", "negative", "rem", "complex"],
)
def test_which_operations_mosaic_gpu_takes(function, takes):
    program = jax.make_jaxpr(function)(jnp.ones((64, 16)))
    eqns = [eqn for eqn, _ in equations(program.jaxpr) if eqn.primitive.name not in CALLS]
    assert mosaic_gpu.takes(eqns) == takes


@slow
@needs_mosaic_gpu
@pytest.mark.parametrize(
    "tx",
    [
        gradtx.adamw(1e-3, weight_decay=0.1),
        gradtx.chain(gradtx.clip(0.5), gradtx.lion(1e-3)),
        gradtx.adam(gradtx.linear_schedule(1e-2, 1e-3, 3)),
    ],
    ids=["adamw", "lion", "schedule"],
)
def test_rules_through_mosaic_gpu(tx, monkeypatch):
    check(gradtx.store(tx, min_size=1), numbers((256, 32), 0), CHIPS[MOSAIC_GPU], monkeypatch, 1)


def lowered_for_a_gpu(tx, p):
    state = tx.init(p)
    with an_h100():
        traced = jax.jit(lambda s: gradtx.apply_gradients(tx, p, p, s)).trace(state)
        return gpu_kernels(traced.lower(lowering_platforms=("cuda",)))


MOMENTUM = gradtx.store(gradtx.sgd(0.1, momentum=0.5), min_size=1)
AFTER_TRITON = MOSAIC_GPU if offers_mosaic_gpu() else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "compiler"),
    [
        pytest.param("7.5", None, marks=slow),
        ("8.0", TRITON),
        pytest.param("9.0", TRITON, marks=slow),
    ],
)
def test_gpus_have_kernels_of_what_compiles_for_them(capability, compiler, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)])
    found = lowered_for_a_gpu(MOMENTUM, numbers((256, 16), 0))
    assert found == ({compiler: 1} if compiler else {})


@slow
@pytest.mark.parametrize(("capability", "compiler"), [("8.0", None), ("9.0", AFTER_TRITON)])
def test_without_triton_newer_gpus_have_kernels_through_mosaic_gpu(
    capability, compiler, monkeypatch
):
    p = numbers((256, 16), 0)
    assert "kernels for GPUs: Triton" in str(gradtx.describe(MOMENTUM, p)).splitlines()
    without(monkeypatch, "triton")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)])
    assert lowered_for_a_gpu(MOMENTUM, p) == ({compiler: 1} if compiler else {})
    if AFTER_TRITON:
        assert gradtx.describe(MOMENTUM, p).gpu_kernels == MOSAIC_GPU


def test_a_jax_without_kernels_for_gpus_says_so(monkeypatch):
    p = numbers((256, 16), 0)
    without(monkeypatch, "triton", "mosaic_gpu")
    assert lowered_for_a_gpu(MOMENTUM, p) == {}
    assert "kernels for GPUs: none, since this JAX has neither Triton nor Mosaic GPU" in str(
        gradtx.describe(MOMENTUM, p)
    )


def test_steps_without_kernels_say_so():
    p = numbers((256, 16), 0)
    adam = gradtx.adam(0.1)
    plain = gradtx.store(adam, min_size=1, kernel=False)
    for tx in (plain, gradtx.chain(gradtx.clip(1.0), plain), gradtx.guard(plain)):
        assert gradtx.describe(tx, p).gpu_kernels.startswith("none, with kernel=False")
    both = gradtx.chain(plain, gradtx.store(adam, min_size=1))
    assert gradtx.describe(both, p).gpu_kernels == TRITON
    assert gradtx.describe(adam, p).gpu_kernels is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cannot be read row by row")
def test_rows_are_left_to_xla(monkeypatch):
    made = on(stored_step.TPU, monkeypatch)
    tx, table = gradtx.store(gradtx.adam(1e-2), min_size=1), jnp.zeros((256, 16))
    rows = gradtx.Rows(jnp.array([3, 5]), jnp.ones((2, 16)), table.shape)
    new, _ = jax.jit(lambda s: gradtx.apply_gradients(tx, rows, table, s))(tx.init(table))
    np.testing.assert_allclose(new[3], -0.01, rtol=1e-6)
    assert set(made) == {0}


@pytest.mark.slow
def test_transformed_steps_are_those_without_kernels():
    """A sweep of learning rates, and a derivative with respect to one."""
    p, g = numbers((256, 4), 0), numbers((256, 4), 1)

    def loss(rate, kernel):
        tx = gradtx.store(gradtx.sgd(rate, momentum=0.9), min_size=1, kernel=kernel)
        new, state = gradtx.apply_gradients(tx, g, p, tx.init(p))
        new, _ = gradtx.apply_gradients(tx, g, new, state)
        return jnp.sum(new**2)

    rates = jnp.array([0.1, 0.2])
    for transformed in (jax.vmap, lambda f: jax.vmap(jax.grad(f))):
        want, found = (
            jax.jit(transformed(lambda r, k=k: loss(r, k)))(rates) for k in (False, True)
        )
        np.testing.assert_allclose(want, found, rtol=1e-6)


@slow
@pytest.mark.parametrize(
    ("axes", "spec", "zero", "count"),
    [
        ((AxisType.Auto,) * 2, ("a", "b"), None, 1),
        ((AxisType.Explicit,) * 2, ("a", "b"), None, 1),
        ((AxisType.Auto,) * 2, (), "a", 1),  # ZeRO: only slots are divided
        ((AxisType.Explicit,) * 2, (), "a", 1),
        ((AxisType.Auto,) * 2, (("a", "b"),), None, 0),  # there are but four blocks
    ],
)
def test_each_device_runs_the_kernel_on_its_part(axes, spec, zero, count, monkeypatch):
    """The codes of one device. A kernel that would divide blocks is left to XLA."""
    made = []

    def counted(*args):
        made.append(len(found := cuts(*args)))
        return found

    monkeypatch.setattr(stored_step, "cuts", counted)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=axes)
    tx, p = gradtx.store(gradtx.adamw(1e-3), min_size=1), numbers((1024, 16), 0)
    plan = gradtx.state_sharding(
        tx, p, NamedSharding(mesh, PartitionSpec(*spec)), zero=zero, min_size=1
    )
    want, state = stepped(tx, p)
    made.clear()
    found, same = stepped(plan.placed(tx), jax.device_put(p, plan.params))
    assert max(made) == count
    np.testing.assert_allclose(found, want, rtol=3e-7, atol=3e-7)
    check_states(state, same, ROUNDING_OF_SCALES)


def draws_on_eight(codecs, shape, spec):
    """Two slots with decays of 1/2, and the same divided over a mesh, with parameters."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    inner = gradtx.chain(gradtx.trace(0.5), gradtx.sgd(0.1, momentum=0.5))
    tx, p = gradtx.store(inner, codecs, min_size=1), numbers(shape, 0)
    plan = gradtx.state_sharding(tx, p, NamedSharding(mesh, PartitionSpec(*spec)), min_size=1)
    return tx, p, plan.placed(tx), jax.device_put(p, plan.params)


@slow
@pytest.mark.parametrize(
    ("chip", "shape", "spec", "codecs"),
    [
        ("CPU", (2, 1024, 16), (None, "a", "b"), RANDOM8),
        ("TPU", (2, 1024, 256), (None, "a", "b"), RANDOM16),
        ("GPU", (521, 16), (None, ("a", "b")), BOTH),
    ],
)
def test_each_device_draws_its_part_of_the_numbers(chip, shape, spec, codecs, monkeypatch):
    """By the place of an entry in the whole slot, and so the codes of one device."""
    tx, p, placed, divided = draws_on_eight(codecs, shape, spec)
    on(PLAIN, monkeypatch)
    want, state = stepped(tx, p)
    made = on(CHIPS[chip], monkeypatch, divided=True)
    found, same = stepped(placed, divided)
    assert max(made) == 1
    np.testing.assert_allclose(found, want, rtol=3e-7, atol=3e-7)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(a, b)


@slow
@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (("b",), 1),
        ((None, "a"), 0),  # of the dimensions before the block's, which are seen as one, the second
        ((None, None, None, "a"), 0),  # what is left is seen as rows, and the leaf is not
    ],
)
def test_what_draws_must_be_divided_evenly(spec, count, monkeypatch):
    _, p, placed, _ = draws_on_eight(RANDOM8, (2, 4, 256, 4), spec)
    made = on(stored_step.CPU, monkeypatch, divided=True)
    jax.eval_shape(lambda s: gradtx.apply_gradients(placed, p, p, s), placed.init(p))
    assert max(made) == count


def test_results_are_written_in_place_of_the_arguments_they_follow():
    """Also where the step holds arrays of its own, such as a rate, which are arguments too."""
    tx = gradtx.store(gradtx.sgd(jnp.array([0.1, 0.2])[0], momentum=0.5), min_size=1)
    p = numbers((256, 4), 0)
    for run, moved in (
        (lambda p, s, g: gradtx.apply_gradients(tx, g, p, s), 0),
        (lambda p, s, g: tx.update(g, s, p), 1),  # new updates are no old parameters
    ):
        jaxpr = jax.make_jaxpr(run)(p, tx.init(p), p).jaxpr
        (step,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "stored_step")
        pairs = [(step.outvars[i], step.invars[k]) for i, k in step.params["overwritten"]]
        count = len(jaxpr.outvars)
        assert len(step.invars) > len(jaxpr.invars)
        assert pairs == list(zip(jaxpr.outvars, jaxpr.invars, strict=False))[moved:count]


def test_a_kernel_is_told_where_parameters_and_gradients_lie():
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    place = NamedSharding(mesh, PartitionSpec(None, "a"))
    tx = gradtx.store(gradtx.sgd(0.1, momentum=0.5), min_size=1)
    p = {"w": jax.ShapeDtypeStruct((256, 4), jnp.float32)}
    plan = gradtx.state_sharding(tx, p, {"w": place}, min_size=1)
    placed = plan.placed(tx)

    def step(p, s, g):
        return gradtx.apply_gradients(placed, g, p, s)

    def stored_steps(jaxpr):
        return [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "stored_step"]

    (outer,) = stored_steps(jax.make_jaxpr(step)(p, jax.eval_shape(tx.init, p), p).jaxpr)
    (inner,) = stored_steps(outer.params["program"].closed.jaxpr)
    floats = [v for v in inner.invars if (v.aval.shape, v.aval.dtype) == ((256, 4), jnp.float32)]
    lies = zip(inner.invars, inner.params["shardings"], strict=True)
    assert [v for v, where in lies if where == place] == floats
    assert len(floats) == 2


@gradtx.transformation
def waiting():
    """The sign of a momentum that takes no gradient in the first step, and so 0 there."""

    def rule(g, s, t):
        trace = 0.5 * s.trace + jnp.where(t.number > 1, g, 0)
        return -jnp.sign(trace), {"trace": trace}

    return gradtx.elementwise(WaitingState, lambda p: {"trace": jnp.zeros_like(p)}, rule)


class WaitingState(NamedTuple):
    count: gradtx.Counter
    trace: gradtx.Slots


@pytest.mark.slow
def test_a_kernel_reads_whether_something_holds_and_has_no_sign_of_zero(monkeypatch):
    tx = gradtx.store(waiting(), min_size=1)
    check(tx, numbers((64, 8), 0), stored_step.TPU, monkeypatch, 1)


def test_on_a_cpu_what_is_encoded_is_computed_once():
    """Behind a barrier, for the scale, the codes and the parameter."""
    p = jax.ShapeDtypeStruct((512, 16), jnp.float32)

    def barriers(tx):
        step = jax.jit(lambda p, s, g: gradtx.apply_gradients(tx, g, p, s))
        lowered = step.lower(p, jax.eval_shape(tx.init, p), p)
        return lowered.as_text().count("optimization_barrier")

    one = gradtx.sgd(0.1, momentum=0.5)
    counts = [barriers(gradtx.store(one, min_size=1, kernel=kernel)) for kernel in (True, False)]
    assert counts == [1, 0]
