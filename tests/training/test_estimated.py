"""Gradients without a backward pass: any optimizer, resumed, inside of scans, and bad input."""

# Sees mutants of: estimated_inside.

import json
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import in_loops
from gradtx.names.namespace import homes

LAYERS, WIDTH = 3, 4
ESTIMATORS = {
    "spsa": gradtx.spsa(1e-2),
    "two samples": gradtx.spsa(1e-2, samples=2, distribution="normal"),
    "sphere": gradtx.spsa(1e-2, distribution="sphere"),
    "forward_gradients": gradtx.forward_gradients(),
    "evolution_strategies": gradtx.evolution_strategies(4, 1e-2),
}
every = pytest.mark.parametrize("name", ESTIMATORS)
one_of_them = pytest.mark.parametrize(
    "name", [n if n == "spsa" else pytest.param(n, marks=pytest.mark.slow) for n in ESTIMATORS]
)


def parameters(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("embed", "head"), (WIDTH, WIDTH))
    shapes |= {"a": (LAYERS, WIDTH, 8), "b": (LAYERS, 8, WIDTH)}
    made = {n: jnp.asarray(rng.normal(size=s) / 3, dtype) for n, s in shapes.items()}
    return {"embed": made.pop("embed"), "head": made.pop("head"), "layers": made}


def batch():
    return jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, WIDTH)), jnp.float32)


def loss(params, x, y):
    def layer(h, w):
        return h + jnp.tanh(h @ w["a"]) @ w["b"], None

    h, _ = jax.lax.scan(layer, x.astype(params["embed"].dtype) @ params["embed"], params["layers"])
    return jnp.mean(((h @ params["head"]).astype(jnp.float32) - y) ** 2)


def with_aux(params, x, y):
    return loss(params, x, y), {"sum": jnp.sum(params["embed"]), "n": jnp.int32(3)}


def trained(estimator, tx=None, of=loss, steps=2, params=None, **options):
    params = parameters() if params is None else params
    tx = gradtx.adam(1e-2) if tx is None else tx
    step = gradtx.make_step(of, tx, gradients=estimator, donate=False, **options)
    state = step.init(params)
    for _ in range(steps):
        params, state, value = step(params, state, *batch())
    return params, state, value


def bits(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    numbers = [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)]
    return [(str(x.dtype), np.asarray(x).tobytes()) for x in numbers]


@pytest.mark.slow
@pytest.mark.compiled
@one_of_them
def test_inside_of_the_scan_are_the_bits_of_the_plain_form(name):
    estimator = ESTIMATORS[name]
    assert bits(trained(estimator, inside=True)) == bits(trained(estimator))


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
@pytest.mark.parametrize("name", ["spsa", "two samples"])
def test_inside_in_bfloat16_are_the_bits_of_the_plain_form(name):
    """With parameters that are cast as a whole before the scan, too."""

    def casting(params, x, y):
        return loss(jax.tree.map(lambda p: p.astype(jnp.float32), params), x, y)

    of = casting if name == "spsa" else loss
    options = {"of": of, "params": parameters(jnp.bfloat16)}
    plain = trained(ESTIMATORS[name], **options)
    assert plain[0]["layers"]["a"].dtype == jnp.bfloat16
    assert bits(trained(ESTIMATORS[name], inside=True, **options)) == bits(plain)


@pytest.mark.compiled
@pytest.mark.slow
def test_inside_with_other_results_of_the_loss_and_other_arguments():
    options = {"of": with_aux, "has_aux": True, "grad_loss": 2.0, "trainable": "layers*"}
    plain = trained(ESTIMATORS["spsa"], **options)
    value, aux = plain[2]
    assert bits(trained(ESTIMATORS["spsa"], inside=True, **options)) == bits(plain)
    assert int(aux["n"]) == 3
    np.testing.assert_array_equal(plain[0]["embed"], parameters()["embed"])
    before = trained(ESTIMATORS["spsa"], steps=1, **options)[0]
    assert float(value) == pytest.approx(float(loss(before, *batch())), rel=1e-6)


@pytest.mark.slow
def test_inside_the_norm_of_all_gradients_is_known_and_slots_may_be_codes():
    adam = gradtx.store(gradtx.adam(1e-2), "bf16")
    tx = gradtx.chain(gradtx.clip_by_global_norm(0.1, two_pass=True), adam)
    inside, plain = (trained(ESTIMATORS["spsa"], tx, inside=i) for i in (True, None))
    for a, b in zip(jax.tree.leaves(inside[0]), jax.tree.leaves(plain[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_what_mixes_layers_is_refused_by_name_inside():
    with pytest.raises(ValueError, match="inside: clip_by_global_norm cannot run"):
        trained(
            ESTIMATORS["spsa"],
            gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.sgd(0.1)),
            inside=True,
        )


def test_the_plan_inside_is_that_of_the_optimizer():
    step = gradtx.make_step(loss, gradtx.adam(1e-2), gradients=gradtx.spsa(), inside=True)
    plan = step.inside(parameters(), *batch())
    assert plan.inside == {"layers/a": LAYERS, "layers/b": LAYERS}
    assert plan.refused is None


def temporaries(layers, inside, estimator=None):
    shapes = {"a": (layers, 64, 128), "b": (layers, 128, 64)}
    p = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((4, 64), jnp.float32)

    def of(params, x):
        turn = lambda h, w: (h + jnp.tanh(h @ w["a"]) @ w["b"], None)  # noqa: E731
        return jnp.mean(jax.lax.scan(turn, x, params)[0] ** 2)

    if estimator is None:
        compiled = jax.jit(of).lower(p, x).compile()
    else:
        step = gradtx.make_step(of, gradtx.adam(1e-3), gradients=estimator, inside=inside)
        compiled = step.lower(p, jax.eval_shape(step.init, p), x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


LAYER = 2 * 64 * 128 * 4


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(
    "estimator",
    [
        gradtx.spsa(),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                gradtx.spsa(samples=3, distribution="sphere"),
                gradtx.forward_gradients(2),
            )
        ),
    ],
    ids=repr,
)
def test_inside_nothing_is_stored_that_grows_with_the_layers(estimator):
    """A CPU stores the numbers that it draws; those of one layer, whatever the number of layers."""
    alone = temporaries(24, None)
    found = temporaries(24, True, estimator)
    assert found < alone + 10 * LAYER
    assert abs(found - temporaries(48, True, estimator)) < LAYER / 2


@pytest.mark.compiled
@pytest.mark.slow
def test_the_plain_form_stores_the_gradient():
    assert temporaries(24, None, gradtx.spsa()) > 24 * LAYER


def on_codes(layers, width, dtype, leaf):
    """Factors of LoRA beside a frozen base in int8, whose columns have scales."""
    of = {"codes": ((width, width), jnp.int8), "scales": ((1, width), dtype)}
    of |= {"lora_a": ((width, 2), dtype), "lora_b": ((2, width), dtype)}
    return {name: leaf((layers, *shape), kind) for name, (shape, kind) in of.items()}


def decoding(params, x, y):
    def layer(h, w):
        base = w["codes"].astype(h.dtype) * w["scales"]
        return h + jnp.tanh(h @ base + (h @ w["lora_a"]) @ w["lora_b"]), None

    h, _ = jax.lax.scan(layer, x.astype(params["scales"].dtype), params)
    return jnp.mean((h.astype(jnp.float32) - y) ** 2)


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_factors_beside_a_base_in_int8(dtype):
    """The base is as it was, and the bits are those of the plain form."""
    rng = np.random.default_rng(0)

    def leaf(shape, kind):
        is_code = kind == jnp.int8
        numbers = rng.integers(-127, 128, shape) if is_code else rng.normal(size=shape) / 50
        return jnp.asarray(numbers, kind)

    before = on_codes(LAYERS, WIDTH, dtype, leaf)
    options = {"of": decoding, "params": before, "trainable": "lora_*"}
    spsa, adam = gradtx.spsa(1e-1), gradtx.adam(1e-1)
    plain, inside = (trained(spsa, adam, inside=i, **options) for i in (None, True))
    assert bits(inside) == bits(plain)
    moved = {name for name in before if bits(before[name]) != bits(inside[0][name])}
    assert moved == {"lora_a", "lora_b"}
    assert {str(x.dtype) for x in inside[0].values()} == {"int8", str(jnp.dtype(dtype))}


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
def test_inside_a_base_in_int8_is_never_decoded_as_a_whole():
    width, x = 128, jax.ShapeDtypeStruct((4, 128), jnp.float32)

    def temporaries(layers, estimator):
        p = on_codes(layers, width, jnp.bfloat16, jax.ShapeDtypeStruct)
        options = {"gradients": estimator, "inside": True, "trainable": "lora_*"}
        step = gradtx.make_step(decoding, gradtx.adam(1e-3), **options)
        takes = (p, jax.eval_shape(step.init, p)) if estimator else (p,)
        lower = step.lower if estimator else jax.jit(decoding).lower
        return lower(*takes, x, x).compile().memory_analysis().temp_size_in_bytes

    # A CPU computes in float32, and converts stacks in bfloat16 before the loop of the loss, too.
    more = [temporaries(n, gradtx.spsa()) - temporaries(n, None) for n in (24, 48)]
    layer = 4 * width * width
    assert max(more) < layer
    assert abs(more[0] - more[1]) < layer / 8


def moments(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.slow
@every
def test_any_optimizer_follows_the_estimate(name):
    """Its steps are those on gradients of compute_gradients with the key of the state."""
    tx = gradtx.estimated_gradients(gradtx.adam(1e-2), ESTIMATORS[name])
    params, x = parameters(), batch()
    state = tx.init(params)

    @jax.jit
    def twice(params, state):
        key = jax.random.split(state.gradient_key)[1]
        value, grads = gradtx.compute_gradients(
            loss, params, *x, gradients=ESTIMATORS[name], gradients_key=key
        )
        one = *gradtx.apply_gradients(tx, grads, params, state), value
        return one, gradtx.minimize(loss, tx, params, state, *x)

    one, other = twice(params, state)
    assert bits(one) == bits(other)


@pytest.mark.slow
def test_each_step_draws_other_directions_from_a_key_that_moves_on():
    step = gradtx.make_step(loss, gradtx.sgd(1.0), gradients=gradtx.spsa(), donate=False)
    params = parameters()
    first = step.init(params)
    one, second, _ = step(params, first, *batch())
    two = step(params, second, *batch())[0]
    stale = step(params, first, *batch())[0]
    signs = [np.sign(x["embed"] - params["embed"]) for x in (one, two, stale)]
    assert not np.array_equal(signs[0], signs[1])
    assert not np.array_equal(signs[0], -signs[1])
    np.testing.assert_array_equal(signs[0], signs[2])
    # The next key is neither the last one nor that of the directions, which was used.
    following, used = jax.random.split(first.gradient_key)
    assert bits(second.gradient_key) == bits(following)
    assert bits(first.gradient_key) != bits(following) != bits(used)


@pytest.mark.slow
def test_a_run_that_is_saved_and_resumed_takes_the_same_steps(tmp_path):
    tx = gradtx.estimated_gradients(gradtx.adam(1e-2), gradtx.spsa(key=3))
    step = gradtx.make_step(loss, tx, donate=False)
    params = parameters()
    params, state, _ = step(params, step.init(params), *batch())
    path = tmp_path / "run.npz"
    gradtx.save_checkpoint(path, params, state, tx)
    restored = gradtx.load_checkpoint(path, tx, params)
    whole = step(params, state, *batch())
    again = step(restored.params, restored.state, *batch())
    assert bits(again) == bits(whole)
    other = gradtx.estimated_gradients(gradtx.adam(1e-2), gradtx.spsa(key=4)).init(params)
    assert bits(other.gradient_key) != bits(state.gradient_key)


@every
def test_an_estimator_is_data(name):
    estimator = ESTIMATORS[name]
    tx = gradtx.estimated_gradients(gradtx.adam(0.1), estimator)
    assert eval(repr(estimator), vars(gradtx) | {n: getattr(gradtx, n) for n in homes("gradtx")})
    for each in (estimator, tx):
        assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(each)))) == each
        again = pickle.loads(pickle.dumps(each))
        assert again == each
        assert hash(again) == hash(each)
        assert jax.tree.unflatten(*jax.tree.flatten(each)[::-1]) == each
    assert estimator != gradtx.spsa(0.5)
    assert repr(estimator) in repr(tx)


@pytest.mark.slow
def test_a_scale_in_a_step_is_replaced_without_compiling_again():
    tx = gradtx.estimated_gradients(gradtx.sgd(0.1), gradtx.spsa(jnp.float32(0.1)))
    calls = []

    def of(x):
        calls.append(1)
        return jnp.sum(x**4)

    step = gradtx.make_step(of, tx, donate=False)
    x, scale = jnp.float32([1.0, 2.0]), jnp.float32(1.0)
    one = step(x, step.init(x))[0]
    traced = len(calls)
    others = [
        step.replace(gradients=gradtx.spsa(scale)),
        step.replace(scale=scale),
        step.replace(**{"gradients.scale": scale}),
    ]
    found = [other(x, step.init(x))[0] for other in others]
    assert not np.array_equal(one, found[0])
    assert bits(found) == 3 * bits(found[0])
    assert len(calls) == traced


@pytest.mark.slow
def test_scales_are_swept_by_path_in_one_program():
    tx = gradtx.estimated_gradients(gradtx.sgd(0.1), gradtx.spsa(jnp.float32(0.1)))
    assert float(gradtx.hyperparams(tx)["gradients.scale"]) == pytest.approx(0.1)
    of = lambda x: jnp.sum(x**4)  # noqa: E731
    x, scales = jnp.float32([1.0, 2.0]), np.float32([0.1, 1.0, 2.0])
    moved = jax.jit(lambda tx: gradtx.minimize(of, tx, x, tx.init(x))[0])
    swept = jax.jit(jax.vmap(lambda tx: gradtx.minimize(of, tx, x, tx.init(x))[0]))
    found = swept(gradtx.replace(tx, {"gradients.scale": scales}))
    each = [moved(gradtx.replace(tx, scale=jnp.float32(scale))) for scale in scales]
    np.testing.assert_allclose(found, each, rtol=1e-5)
    assert len({x.tobytes() for x in np.asarray(found)}) == 3


@pytest.mark.parametrize(
    ("path", "value", "kind", "words"),
    [
        ("gradients.scale", -1.0, ValueError, "spsa.*scale"),
        ("gradients.scale", lambda count: 0.1, TypeError, "spsa: scale.*TrainStep.replace"),
        ("gradients.samples", 0, ValueError, "spsa.*samples"),
        ("gradients.rate", 0.1, ValueError, "gradients.rate.*gradients.scale"),
    ],
)
def test_what_replaces_an_argument_of_an_estimator_is_checked(path, value, kind, words):
    step = gradtx.make_step(flat, gradtx.sgd(0.1), gradients=gradtx.spsa())
    with pytest.raises(kind, match=words):
        step.replace(**{path: value})


def accuracy(w, x, y):
    """One that no derivative knows, of rows of a sphere."""
    return jnp.mean(jnp.sign(x @ w) != y).astype(jnp.float32)


def on_host(w, x, y):
    def count(w, x, y):
        return np.float32(np.mean(np.sign(x @ w) != y))

    kind = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(count, kind, w, x, y, vmap_method="sequential")


@pytest.mark.slow
@pytest.mark.parametrize("of", [accuracy, on_host])
def test_a_loss_without_a_derivative(of):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(200, 3)), jnp.float32)
    y = jnp.sign(x @ jnp.float32([1.0, -2.0, 0.5]))
    step = gradtx.make_step(
        of, gradtx.sgd(0.3), gradients=gradtx.evolution_strategies(10, 0.3), donate=False
    )
    w = jnp.float32([1.0, 1.0, 1.0])
    state = step.init(w)
    for _ in range(30):
        w, state, _ = step(w, state, x, y)
    assert float(accuracy(w, x, y)) < 0.1


@pytest.mark.slow
def test_the_scale_of_a_loss_divides_out():
    plain = trained(ESTIMATORS["spsa"], gradtx.sgd(0.1))[0]
    scaled = trained(ESTIMATORS["spsa"], gradtx.dynamic_loss_scale(gradtx.sgd(0.1)))
    assert float(scaled[1].inner_state.loss_scale) > 1
    for a, b in zip(moments(plain), moments(scaled[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_several_steps_in_one_loop_and_rounding_at_random():
    params = parameters(jnp.bfloat16)
    options = {"gradients": gradtx.spsa(1e-1), "rounding_key": 1, "donate": False}
    one = gradtx.make_step(loss, gradtx.sgd(0.1), **options)
    many = gradtx.make_step(loss, gradtx.sgd(0.1), steps=2, **options)
    state, x = one.init(params), batch()
    several = many(params, state, *jnp.stack([x, x], 1))
    for _ in range(2):
        params, state, _ = one(params, state, *x)
    assert bits(several[:2]) == bits((params, state))


@pytest.mark.slow
def test_leaves_of_size_zero_and_single_numbers_and_complex_ones():
    params = {"none": jnp.zeros((0, 3)), "one": jnp.float32(2.0), "z": jnp.complex64([1 + 2j])}

    def of(p):
        return jnp.sum(p["none"]) + p["one"] ** 2 + jnp.sum(jnp.abs(p["z"] - 1j) ** 2)

    many = gradtx.forward_gradients(4000)
    _, grads = jax.jit(lambda p: gradtx.compute_gradients(of, p, gradients=many, gradients_key=0))(
        params
    )
    assert grads["none"].shape == (0, 3)
    exact = gradtx.compute_gradients(of, params)[1]
    error = 5 * np.sqrt(2 * (16 + 8) / 4000)
    np.testing.assert_allclose(grads["one"], exact["one"], atol=error)
    np.testing.assert_allclose(grads["z"], exact["z"], atol=error)


@pytest.mark.slow
def test_integer_leaves_are_refused_by_name_unless_they_are_not_trained():
    params = {"n": jnp.arange(3), "w": jnp.ones(3)}
    of = lambda p: jnp.sum(p["w"] ** 2 * p["n"])  # noqa: E731
    options = {"gradients": gradtx.spsa(), "gradients_key": 0}
    with pytest.raises(TypeError, match="'n'"):
        gradtx.compute_gradients(of, params, **options)
    _, grads = gradtx.compute_gradients(of, params, trainable="w", **options)
    assert grads["n"] is None
    assert grads["w"].shape == (3,)


@pytest.mark.parametrize("grad_loss", [None, np.ones(2, np.float32)])
def test_a_loss_that_is_not_a_scalar_is_refused_by_name(grad_loss):
    with pytest.raises(ValueError, match=r"spsa takes a scalar loss, not one of shape \(2,\)"):
        gradtx.compute_gradients(
            lambda x: x**2,
            jnp.ones(2),
            grad_loss=grad_loss,
            gradients=gradtx.spsa(),
            gradients_key=0,
        )


@pytest.mark.slow
def test_a_loss_that_is_nan_gives_gradients_that_are_and_guards_skip_them():
    tx = gradtx.guard(gradtx.sgd(0.1))
    step = gradtx.make_step(
        lambda x: jnp.sum(jnp.log(x)), tx, gradients=gradtx.spsa(), report=True, donate=False
    )
    x = jnp.float32([-1.0, 2.0])
    new, _, value, report = step(x, step.init(x))
    assert np.isnan(value)
    np.testing.assert_array_equal(new, x)
    assert int(report.not_finite) == 1


def flat(x):
    return jnp.sum(x**2)


def scanned(x):
    return jax.lax.scan(lambda h, w: (h + w**2, None), 0.0, x)[0]


@pytest.mark.slow
def test_a_scale_too_small_for_the_type_of_the_loss_is_told_with_one_that_would_do():
    x = jnp.ones(3, jnp.float32)
    words = r"scale=1e-10 may be too small.*scale=5e-03 would do"
    small, enough = gradtx.spsa(1e-10), gradtx.spsa(5e-3)
    with pytest.warns(UserWarning, match=words):
        _, grads = gradtx.compute_gradients(flat, x, gradients=small, gradients_key=0)
    np.testing.assert_array_equal(grads, 0)
    for inside in (None, True):
        of = (
            flat
            if inside is None
            else lambda x: jax.lax.scan(lambda h, w: (h + w**2, 0), 0.0, x)[0]
        )
        step = gradtx.make_step(of, gradtx.sgd(0.1), gradients=small, inside=inside, donate=False)
        with pytest.warns(UserWarning, match=words):
            _, state, _ = step(x, step.init(x))
        assert int(step(x, state)[1].flat_steps) == 2
        resumed = gradtx.make_step(flat, gradtx.sgd(0.1), gradients=enough)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert int(resumed(jnp.copy(x), state)[1].flat_steps) == 1
    with pytest.warns(UserWarning, match=r"in float16.*scale=1e-01 would do"):
        gradtx.compute_gradients(
            lambda x: flat(x).astype(jnp.float16), x, gradients=gradtx.spsa(1e-5), gradients_key=0
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradtx.compute_gradients(flat, x, gradients=enough, gradients_key=0)


@pytest.mark.slow
def test_a_direction_along_which_the_loss_is_symmetric_is_not_flat():
    """Along (1, -1) this loss is as large on both sides, and the gradient zero."""
    tx = gradtx.estimated_gradients(gradtx.sgd(0.0), gradtx.spsa(1e-2))
    step = jax.jit(lambda x, s: gradtx.minimize(lambda x: jnp.sum((x - 1) ** 2), tx, x, s))
    x, state = jnp.zeros(2), tx.init(jnp.zeros(2))
    for _ in range(20):
        x, state, _ = step(x, state)
    assert int(state.flat_steps) == 0


@pytest.mark.slow
@pytest.mark.compiled
def test_the_loss_is_evaluated_for_its_two_values_alone():
    """A third value is taken where both are equal, in a loop, before which XLA computes nothing."""
    step = gradtx.make_step(lambda x: jnp.sum(jnp.cos(x)), gradtx.sgd(0.1), gradients=gradtx.spsa())
    x = jax.ShapeDtypeStruct((8, 1024), jnp.float32)
    program = step.lower(x, jax.eval_shape(step.init, x)).compile().as_text()
    cosines = [text.count(" cosine(") for text in (in_loops(program), program)]
    assert cosines == [2, 2]


def test_what_is_no_estimator_or_has_no_key_is_refused_by_name():
    x, tx = jnp.ones(2), gradtx.sgd(0.1)
    with pytest.raises(TypeError, match=r"make_step: gradients must be an estimator"):
        gradtx.make_step(flat, tx, gradients=gradtx.spsa)
    with pytest.raises(TypeError, match=r"estimated_gradients: gradients must be an estimator"):
        gradtx.estimated_gradients(tx, tx)
    with pytest.raises(ValueError, match="gradients_key"):
        gradtx.compute_gradients(flat, x, gradients=gradtx.spsa())
    with pytest.raises(TypeError, match="gradients_key must be a random key"):
        gradtx.compute_gradients(flat, x, gradients=gradtx.spsa(), gradients_key="x")
    with pytest.raises(TypeError, match="key must be a random key"):
        gradtx.estimated_gradients(tx, gradtx.spsa(key=0.5))
    for inside in (None, True):
        with pytest.raises(ValueError, match="no random key for directions"):
            gradtx.minimize(flat, tx, x, tx.init(x), gradients=gradtx.spsa(), inside=inside)


@pytest.mark.slow
def test_estimates_are_outermost_and_once():
    x, own = jnp.ones(2), gradtx.estimated_gradients(gradtx.sgd(0.1), gradtx.spsa())
    inner = gradtx.chain(gradtx.clip(1.0), own)
    with pytest.raises(ValueError, match="estimated_gradients must be the outermost"):
        gradtx.minimize(flat, inner, x, inner.init(x))
    with pytest.raises(ValueError, match="estimated already"):
        gradtx.minimize(flat, own, x, own.init(x), gradients=gradtx.forward_gradients())
    with pytest.raises(ValueError, match="solve: the gradients of the optimizer are estimated"):
        gradtx.solve(flat, x, own)
    same = gradtx.minimize(flat, own, x, own.init(x), gradients=gradtx.spsa())
    assert bits(same) == bits(gradtx.minimize(flat, own, x, own.init(x)))


@pytest.mark.slow
def test_the_value_of_a_population_is_that_of_its_finite_losses():
    """The step is good where losses that are not finite rank last, and a guard takes it."""

    def of(x):
        return jnp.where(x[0] > 1.02, jnp.nan, jnp.sum((x - 0.5) ** 2))

    estimator = gradtx.evolution_strategies(20, 0.05)
    p, steps = jnp.ones(4), {}
    without_ranks = gradtx.evolution_strategies(20, 0.05, ranks=False)
    plain = gradtx.make_step(of, gradtx.sgd(0.05), gradients=without_ranks, donate=False)
    assert np.isnan(plain(p, plain.init(p))[2]), "a loss of the population is NaN"
    for name, wrap in (("guarded", gradtx.guard), ("bare", lambda tx: tx)):
        step = gradtx.make_step(of, wrap(gradtx.sgd(0.05)), gradients=estimator, donate=False)
        steps[name] = step(p, step.init(p))
    assert np.isfinite(steps["guarded"][2])
    np.testing.assert_allclose(steps["guarded"][0], steps["bare"][0], rtol=1e-6)
    assert not np.array_equal(steps["guarded"][0], p)


def test_rows_that_catch_up_are_refused_by_name():
    tx = gradtx.exact_rows(gradtx.sgd(0.1, momentum=0.9))
    of = lambda p: jnp.sum(gradtx.sparse.take(p["t"], jnp.array([1, 2])) ** 2)  # noqa: E731
    with pytest.raises(ValueError, match=r"exact_rows\(.*acts before gradients are taken"):
        gradtx.make_step(of, tx, gradients=gradtx.spsa())


@pytest.mark.slow
@pytest.mark.parametrize("inside", [None, True])
def test_on_a_mesh_are_the_bits_of_one_device(inside):
    """Each device draws its part of the direction; devices add up only numbers of the loss."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])

    def of(p, x, y):
        turn = lambda h, w: (h + 0.1 * jnp.sum(w["a"]) + 0.1 * jnp.sum(w["b"]), None)  # noqa: E731
        return jax.lax.scan(turn, jnp.sum(p["embed"]) * x[0, 0] - y[0, 0], p["layers"])[0] ** 2

    def placed(p):
        spec = PartitionSpec(*[None] * (p.ndim - 1), "d") if p.ndim else PartitionSpec()
        return jax.device_put(p, NamedSharding(mesh, spec))

    params = jax.tree.map(placed, parameters())
    tx = gradtx.estimated_gradients(gradtx.sgd(1e-2), gradtx.spsa(1e-2))
    sharding = gradtx.state_sharding(tx, params)
    found = trained(None, tx, of, params=params, sharding=sharding, inside=inside)
    alone = trained(None, tx, of, inside=inside)
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert found[0]["layers"]["a"].sharding == params["layers"]["a"].sharding


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spsa", pytest.param("two samples", marks=pytest.mark.slow)])
def test_devices_with_losses_of_their_own_take_the_step_of_one(name):
    """The same direction on each: the mean of the estimates is that of the mean of the losses."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    split, whole = PartitionSpec("d"), PartitionSpec()
    params, x = jnp.ones((3, 2)), batch()[0][:4, :3]
    of = lambda p, x: jnp.mean((x @ p) ** 2)  # noqa: E731
    reduced = lambda p, x: jax.lax.pmean(of(p, x), "d")  # noqa: E731

    def stepped(of, tx):
        tx = gradtx.estimated_gradients(tx, ESTIMATORS[name])
        return (lambda p, s, x: gradtx.minimize(of, tx, p, s, x)[:2]), tx.init(params)

    def mapped(of, tx):
        step, state = stepped(of, tx)
        specs = {"in_specs": (whole, whole, split), "out_specs": (whole, whole)}
        return jax.jit(jax.shard_map(step, mesh=mesh, **specs))(params, state, x)

    step, state = stepped(of, gradtx.sgd(0.1))
    wanted, state = jax.jit(step)(params, state, x)
    aggregated = gradtx.chain(gradtx.aggregate("d"), gradtx.sgd(0.1))
    for new, after in (mapped(of, aggregated), mapped(reduced, gradtx.sgd(0.1))):
        np.testing.assert_allclose(new, wanted, rtol=1e-4)
        assert bits(after.gradient_key) == bits(state.gradient_key)
    with pytest.raises(ValueError, match="the loss is the same on all devices"):
        mapped(reduced, aggregated)
