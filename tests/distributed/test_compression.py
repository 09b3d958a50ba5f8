"""Compressed aggregation: nothing is lost, only late; what is sent is what is stated."""

# Sees mutants of: chunks.

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import gradtx
from gradtx.core.communication import Communication
from tests.distributed.meshes import P, counted, mesh
from tests.quick import quick

N = 8
FORMS = {
    "bf16": partial(gradtx.aggregate_bf16, "data"),
    "int8": partial(gradtx.aggregate_int8, "data", block_size=32),
    "top_k": partial(gradtx.aggregate_top_k, "data", 0.1),
    "power_sgd": partial(gradtx.aggregate_power_sgd, "data", rank=2),
    "chunked_top_k": partial(gradtx.aggregate_chunked_top_k, "data", 0.1, chunk=8),
    "dct": partial(gradtx.aggregate_dct, "data", 0.1, chunk=8, decay=1.0),
}
SHAPES = {"b": (7,), "s": (), "t": (6, 5, 4), "w": (24, 20)}


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=(steps, N, *s)), jnp.float32) for k, s in SHAPES.items()}


def zeros():
    return {k: jnp.zeros(s) for k, s in SHAPES.items()}


def run(tx, gs, weight=None):
    """What all devices get, and their last states, after some steps; weights are `(steps, N)`."""

    def device(gs, weight):
        def step(state, now):
            g, w = now
            extra = {} if w is None else {"weight": w}
            updates, state = tx.update(g, state, zeros(), **extra)
            return state, updates

        return jax.lax.scan(step, tx.init(zeros()), (gs, weight))

    axes = (1, None if weight is None else 1)
    return jax.jit(jax.vmap(device, in_axes=axes, axis_name="data"))(gs, weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_lost(name):
    """The means that were sent and the mean of the last errors are the means of the gradients."""
    gs = gradients(20)
    states, updates = run(FORMS[name](), gs)
    for k in SHAPES:
        np.testing.assert_array_equal(updates[k], np.broadcast_to(updates[k][:1], updates[k].shape))
        got = np.sum(updates[k][0], axis=0) + np.mean(states.error[k], axis=0)
        want = np.asarray(gs[k], np.float64).mean(1).sum(0)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_weights(name):
    weight = jnp.array([0.0, 1, 2, 3, 4, 0, 1, 2])
    gs = gradients(5)
    gs = {k: g.at[:, 0].set(jnp.nan) for k, g in gs.items()}  # of a device without examples
    states, updates = run(FORMS[name](), gs, jnp.tile(weight, (5, 1)))
    for k in SHAPES:
        got = np.sum(updates[k][0], axis=0) + np.mean(states.error[k], axis=0)
        want = np.average(np.asarray(gs[k], np.float64)[:, 1:], axis=1, weights=weight[1:]).sum(0)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_nothing_of_a_sum_is_lost_whatever_the_weights_of_later_steps(name):
    steps = 6
    weight = np.random.default_rng(1).integers(0, 9, (steps, N)).astype(np.float32)
    weight[3] = 0
    gs = gradients(steps)
    states, updates = run(FORMS[name](op="sum"), gs, jnp.asarray(weight))
    for k in SHAPES:
        got = np.sum(updates[k][0], axis=0) + np.sum(states.error[k], axis=0)
        want = np.einsum("ti,ti...->...", weight, np.asarray(gs[k], np.float64))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_error_feedback_follows_the_algorithm(name):
    """Against the papers' algorithms, written for all devices at once in float64."""
    steps = 6
    gs = {k: np.asarray(g, np.float64) for k, g in gradients(steps).items()}
    _, updates = run(FORMS[name](), gradients(steps))
    whole = Reference(name, FORMS[name]().init(zeros()))
    for t in range(steps):
        want = whole.step({k: g[t] for k, g in gs.items()})
        for k in SHAPES:
            np.testing.assert_allclose(updates[k][0, t], want[k], rtol=2e-4, atol=2e-5)


class Reference:
    """All devices' gradients in the first dimension."""

    def __init__(self, name, state):
        self.name = name
        self.error = {k: np.zeros((N, *s)) for k, s in SHAPES.items()}
        self.q = {k: np.asarray(q, np.float64) for k, q in getattr(state, "q", {}).items()}

    def step(self, g):
        mine = {k: g[k] + self.error[k] for k in SHAPES}
        if self.name in ("bf16", "int8"):
            return self.in_two_steps(mine)
        out = {}
        for k, c in mine.items():
            sent, out[k] = getattr(self, self.name)(k, c)
            self.error[k] = c - sent
        return out

    def rounded(self, x):
        if self.name == "bf16":
            return in_bfloat16(x)
        blocks = x.reshape(-1, 32)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        return (np.round(blocks / np.where(scale == 0, 1, scale)) * scale).reshape(x.shape)

    def in_two_steps(self, mine):
        """One vector of all leaves; part i is averaged by device i, and rounded once more."""
        flat = np.concatenate([mine[k].reshape(N, -1) for k in SHAPES], axis=1)
        size = flat.shape[1]
        flat = np.pad(flat, ((0, 0), (0, -size % (N * (1 if self.name == "bf16" else 32)))))
        sent = np.stack([self.rounded(x) for x in flat])
        mean = sent.mean(0)
        out = self.rounded(mean)
        error = flat - sent
        part = flat.shape[1] // N
        for i in range(N):
            here = slice(i * part, (i + 1) * part)
            error[i, here] += N * (mean - out)[here]
        result, at = {}, 0
        for k, s in SHAPES.items():
            n = math.prod(s)
            self.error[k] = error[:, at : at + n].reshape(N, *s)
            result[k] = out[at : at + n].reshape(s)
            at += n
        return result

    def top_k(self, k, c):
        flat = c.reshape(N, -1)
        keep = max(1, math.ceil(0.1 * flat.shape[1]))
        sent = np.zeros_like(flat)
        for i, row in enumerate(flat):
            largest = np.argsort(-np.abs(row))[:keep]
            sent[i, largest] = row[largest]
        return sent.reshape(c.shape), sent.mean(0).reshape(c.shape[1:])

    def power_sgd(self, k, c):
        s = SHAPES[k]
        m, n = (s[0], math.prod(s[1:])) if len(s) > 1 else (1, 1)
        if 2 * (m + n) >= m * n:
            return c, c.mean(0)
        matrices = c.reshape(N, m, n)
        p = np.linalg.qr((matrices @ self.q[k]).mean(0))[0]
        right = matrices.transpose(0, 2, 1) @ p
        self.q[k] = right.mean(0)
        sent = np.stack([p @ r.T for r in right]).reshape(c.shape)
        return sent, (p @ self.q[k].T).reshape(s)

    def chunked_top_k(self, k, c):
        return chunked(c, 8, 64, lambda x: two_bits(largest(x, tenth(x))), lambda x: x)

    def dct(self, k, c):
        def there(x):
            return in_bfloat16(largest(scipy.fft.dctn(x, norm="ortho"), tenth(x)))

        return chunked(c, 8, 8, there, lambda x: scipy.fft.idctn(x, norm="ortho"))


def tenth(x):
    return math.ceil(0.1 * x.size)


def largest(x, count):
    """So many of the entries, those of the largest size."""
    return np.where(np.abs(x) >= np.sort(np.abs(x), axis=None)[-count], x, 0)


def two_bits(x):
    """The signs, with the mean sizes of those that are below and above the mean size."""
    sizes = np.abs(x[x != 0])
    small, large = sizes[sizes <= sizes.mean()], sizes[sizes > sizes.mean()]
    above = large.mean() if large.size else 0
    return np.sign(x) * np.where(np.abs(x) > sizes.mean(), above, small.mean())


def in_bfloat16(x):
    return np.asarray(jnp.asarray(x, jnp.float32).astype(jnp.bfloat16), np.float64)


def chunked(c, side, length, there, back):
    """What each device sends of `c`, chunk by chunk, and the mean."""
    rows, columns = (1, 1, *c.shape[1:])[-2:]
    height, width = (side, side) if c.ndim > 2 else (1, length)
    height, width = min(height, rows), min(width, columns)
    sent = np.zeros((N, math.prod(c.shape[1:]) // (rows * columns), rows, columns))
    for matrix, out in zip(
        c.reshape(-1, rows, columns), sent.reshape(-1, rows, columns), strict=True
    ):
        for i in range(0, rows, height):
            for j in range(0, columns, width):
                part = matrix[i : i + height, j : j + width]
                chunk = np.zeros((height, width))
                chunk[: part.shape[0], : part.shape[1]] = part
                chunk = back(there(chunk))
                out[i : i + height, j : j + width] = chunk[: part.shape[0], : part.shape[1]]
    sent = sent.reshape(c.shape)
    return sent, sent.mean(0)


@pytest.mark.slow
def test_sums():
    for name, build in FORMS.items():
        one = build()
        gs = gradients(2)
        summed = gradtx.replace(one, op="sum")
        _, means = run(one, gs)
        _, sums = run(summed, gs)
        for k in SHAPES:
            np.testing.assert_allclose(sums[k], N * np.asarray(means[k]), rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_an_entry_of_the_mean_size_counts_as_small():
    tx = gradtx.aggregate_chunked_top_k("data", 1.0)
    run = jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="data")
    assert run(jnp.array([[1.0, -2.0, 3.0]])).tolist() == [[1.5, -1.5, 3.0]]


@pytest.mark.parametrize(
    ("link", "size", "want"),
    [  # entries that are sent and chunks, of 64 entries or of 8
        (gradtx.aggregate_chunked_top_k, 128, 2 * (2 * 13 + 8)),
        (gradtx.aggregate_dct, 24, 3 * 4 * 2),
    ],
)
def test_a_vector_is_cut_into_chunks(link, size, want):
    tx = link("data", 0.2, chunk=8)
    assert gradtx.describe(tx, jnp.zeros(size)).message_bytes == want


def test_a_mean_of_senders_is_weighted_and_leaves_out_who_has_no_weight():
    """Entries of one size are sent exactly; a device without weight is no sender."""
    tx = gradtx.aggregate_chunked_top_k("data", 1.0, op="mean_of_senders")
    value, weight = jnp.array([9.0, 1.0, -2.0, 4.0]), jnp.array([0.0, 1.0, 2.0, 5.0])

    def update(value, weight):
        g = jnp.full(4, value)
        return tx.update(g, tx.init(g), weight=weight)[0]

    found = jax.jit(jax.vmap(update, axis_name="data"))(value, weight)
    np.testing.assert_allclose(found, np.average(value, weights=weight), rtol=1e-6)


STATED = {
    "bf16": 2 * 608,
    "int8": 608 + 4 * (1 + 1 + 4 + 15),
    "top_k": 8 * (1 + 1 + 12 + 48),
    "power_sgd": 4 * (7 + 1 + 2 * (6 + 20) + 2 * (24 + 20)),
    # The entries of a chunk that are sent, and two sizes in float32: of 1, 1, 6 and 9 chunks.
    "chunked_top_k": 2 * (1 + 1 + 6 * 2 + 9 * 7) + 8 * (1 + 1 + 6 + 9),
    "dct": 4 * (1 + 1 + 6 * 2 + 9 * 7),
}


@pytest.mark.parametrize("name", FORMS)
def test_bytes_are_stated(name):
    """`describe` tells the message of one device, to which a leaf without entries adds nothing."""
    tx = gradtx.chain(FORMS[name](), gradtx.adam(1e-3))
    description = gradtx.describe(tx, {**zeros(), "none": jnp.zeros((0, 3))})
    assert description.message_bytes == STATED[name]
    assert f"{STATED[name]:,} bytes" in str(description)
    assert FORMS[name]().facet(Communication).gathers == (name in ("top_k", "chunked_top_k", "dct"))
    plain = gradtx.chain(gradtx.aggregate("data"), gradtx.adam(1e-3))
    assert gradtx.describe(plain, zeros()).message_bytes == 4 * 608


def test_a_group_sends_for_its_own_leaves():
    groups = {"few": gradtx.aggregate_bf16("data"), "all": gradtx.aggregate("data")}
    tx = gradtx.partition(groups, {"b": "all", "s": "all", "t": "few", "w": "few"})
    assert gradtx.describe(tx, zeros()).message_bytes == 4 * (7 + 1) + 2 * (120 + 480)
    for axis, bytes_inside in (("sites", 0), ("data", 4 * 608)):
        # What is inside sends nothing further over the same axis.
        inner = gradtx.chain(gradtx.aggregate(axis), gradtx.sgd(0.1))
        averaged = gradtx.local_sgd(inner, 2, "sites")
        assert gradtx.describe(averaged, zeros()).message_bytes == 4 * 608 // 2 + bytes_inside


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FORMS)
def test_bytes_are_sent(name):
    """The compiled collectives carry what is stated, whatever the number of leaves."""
    tx = gradtx.aggregate_int8("data", block_size=19) if name == "int8" else FORMS[name]()
    shapes = {"v": (760,), "w": (76, 16), "x": (16, 76)}  # 8 parts of 21 blocks of 19 entries
    g = {k: jnp.zeros((N, *s)) for k, s in shapes.items()}
    size = sum(math.prod(s) for s in shapes.values())

    def update(g):
        g = jax.tree.map(lambda x: x[0], g)
        updates, state = tx.update(g, tx.init(g), g)
        return updates, jax.tree.map(lambda x: x[None], state)

    specs = {"in_specs": P("data"), "out_specs": (P(), P("data")), "check_vma": False}
    mapped = jax.jit(jax.shard_map(update, mesh=mesh(data=N), **specs))
    found = counted(mapped.lower(g).compile())
    stated = gradtx.describe(tx, {k: jnp.zeros(s) for k, s in shapes.items()}).message_bytes
    if name in ("bf16", "int8"):  # once to the device that averages a part, once from it
        scales = 1 if name == "bf16" else 2
        assert found == {"all-to-all": (scales, stated), "all-gather": (scales, stated)}
        assert stated == (2 * size if name == "bf16" else size + 4 * size // 19)
    elif name != "power_sgd":
        assert found == {"all-gather": (1, N * stated)}
    else:
        assert found == {"all-reduce": (2, stated)}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pmap", "checked"])
@pytest.mark.parametrize("name", quick(FORMS, "int8", "power_sgd"))
def test_other_ways_to_map(name, way):
    tx, gs = FORMS[name](), {k: g[0] for k, g in gradients(1).items()}
    want = {k: u[0, 0] for k, u in run(tx, gradients(1))[1].items()}

    def update(g):
        return tx.update(g, tx.init(g), g)[0]

    if way == "pmap":
        got = {k: u[0] for k, u in jax.pmap(update, axis_name="data")(gs).items()}
    else:
        specs = {"in_specs": P("data"), "out_specs": P(), "mesh": mesh(data=N)}
        got = jax.jit(jax.shard_map(lambda g: update({k: x[0] for k, x in g.items()}), **specs))(gs)
    for k in SHAPES:
        np.testing.assert_allclose(got[k], want[k], rtol=1e-5, atol=1e-6)


def test_power_sgd_has_no_factor_of_what_is_sent_whole():
    """A vector, a number, and a matrix that its factors would not make smaller."""
    p = {"b": jnp.zeros(7), "s": jnp.zeros(()), "w": jnp.zeros((3, 6)), "x": jnp.zeros((3, 7))}
    q = gradtx.aggregate_power_sgd("data", rank=2).init(p).q
    assert {k: x.shape for k, x in q.items()} == dict.fromkeys("bsw", (0, 0)) | {"x": (7, 2)}


@pytest.mark.slow
def test_a_zero_gradient_does_not_end_power_sgd():
    tx = FORMS["power_sgd"]()
    gs = {k: g.at[0].set(0) for k, g in gradients(8).items()}
    _, updates = run(tx, gs)
    assert np.abs(updates["w"][0, 0]).max() == 0
    assert np.abs(updates["w"][0, -1]).max() > 0


@pytest.mark.slow
def test_a_leaf_without_a_gradient_keeps_its_state():
    for name, build in FORMS.items():
        tx = build()
        state = tx.init(zeros())

        def update(g, tx=tx, state=state):
            return tx.update({**zeros(), "w": None, "t": g}, state)

        updates, new = jax.vmap(update, axis_name="data")(jnp.ones((2, 6, 5, 4)))
        assert updates["w"] is None, name
        assert jax.tree.structure(new) == jax.tree.structure(state), name


@pytest.mark.slow
def test_a_nan_is_seen():
    for name, build in FORMS.items():
        gs = gradients(1)
        gs["w"] = gs["w"].at[0, 3, 2, 2].set(jnp.nan)
        _, updates = run(build(), gs)
        assert np.isnan(updates["w"]).any(), name


class TestBadInput:
    @pytest.mark.parametrize("name", FORMS)
    def test_complex(self, name):
        with pytest.raises(TypeError, match="'w' is complex"):
            FORMS[name]().init({"w": jnp.zeros(2, jnp.complex64)})

    @pytest.mark.parametrize("name", FORMS)
    def test_rows(self, name):
        tx = FORMS[name]()

        def update(v):
            rows = gradtx.Rows(jnp.array([0]), v, (4, 2))
            return tx.update({"t": rows}, tx.init({"t": jnp.zeros((4, 2))}))[0]

        with pytest.raises(TypeError, match="Rows at 't'.*use aggregate"):
            jax.vmap(update, axis_name="data")(jnp.ones((2, 1, 2)))

    @pytest.mark.parametrize("name", ["top_k", "chunked_top_k", "dct"])
    @pytest.mark.parametrize("fraction", [0.0, 1.5])
    def test_a_fraction_that_is_none(self, name, fraction):
        with pytest.raises(ValueError, match="fraction"):
            gradtx.replace(FORMS[name](), fraction=fraction).init(zeros())

    @pytest.mark.parametrize("name", ["chunked_top_k", "dct"])
    def test_chunks_of_which_no_word_could_say_where_an_entry_is(self, name):
        gradtx.replace(FORMS[name](), chunk=128).init(zeros())
        with pytest.raises(ValueError, match="chunk must be at most 128, not 129"):
            gradtx.replace(FORMS[name](), chunk=129).init(zeros())

    def test_a_state_for_other_parameters(self):
        tx = gradtx.aggregate_bf16("data")
        state = tx.init({"v": jnp.zeros(2)})
        with pytest.raises(ValueError, match="'w'"):
            jax.vmap(lambda g: tx.update({"w": g}, state)[0], axis_name="data")(jnp.ones((2, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_digits_are_learnt_as_well(name):
    """Within 0.3 points of the accuracy without compression."""
    pytest.importorskip("sklearn.datasets")
    plain = trained(gradtx.aggregate("data"))
    assert plain > 0.96
    forms = {**FORMS, "power_sgd": lambda: gradtx.aggregate_power_sgd("data", rank=4)}
    assert trained(forms[name]()) >= plain - 0.003


@cache
def trained(aggregation):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = jnp.asarray(images[order] / 16, jnp.float32), jnp.asarray(labels[order])
    train, test = slice(0, 1408), slice(1408, None)
    keys = jax.random.split(jax.random.key(0), 2)
    he = jax.nn.initializers.he_normal()
    p = {"u": he(keys[0], (64, 128)), "v": he(keys[1], (128, 10)), "b": jnp.zeros(128)}

    def logits(p, x):
        return jax.nn.relu(x @ p["u"] + p["b"]) @ p["v"]

    def loss(p, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits(p, x)), y[:, None], 1).mean()

    tx = gradtx.chain(aggregation, gradtx.adam(gradtx.cosine_decay_schedule(5e-3, 660)))

    def device(x, y):
        def step(carry, batch):
            p, state = carry
            updates, state = tx.update(jax.grad(loss)(p, *batch), state, p)
            return (gradtx.apply_updates(p, updates), state), None

        def epoch(carry, key):
            at = jax.random.permutation(key, x.shape[0]).reshape(22, 8)
            return jax.lax.scan(step, carry, (x[at], y[at]))

        (end, _), _ = jax.lax.scan(epoch, (p, tx.init(p)), jax.random.split(jax.random.key(1), 30))
        return end

    shards = x[train].reshape(N, 176, 64), y[train].reshape(N, 176)
    end = jax.tree.map(lambda v: v[0], jax.jit(jax.vmap(device, axis_name="data"))(*shards))
    return float((logits(end, x[test]).argmax(1) == y[test]).mean())
