"""SOAP against its paper and its authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.linalg.eigenbasis import followed
from tests.optimizers import matrix_trees
from tests.optimizers.papers import adam, mean
from tests.quick import quick


def bases_of(shape, largest, one_sided):
    """Which of the two sides has a basis."""
    rows, columns = shape
    kept = rows <= columns or not one_sided, rows > columns or not one_sided
    return [n <= largest and keep for n, keep in zip(shape, kept, strict=True)]


def of_soap(b1, b2, eps, beta, every, largest=100, one_sided=False, polish=lambda a: a):
    """Vyas et al. 2024, algorithm 3, with its moments in the bases as in the authors' code."""

    def update(g, s, t, p):
        sides = bases_of(g.shape, largest, one_sided)
        for i, x in enumerate((g, g.conj().T)):
            s.setdefault(i, np.eye(len(x)))
        moments = {n: s.setdefault(n, np.zeros(g.shape)) for n in "mv"}
        u, k = np.zeros_like(g), t - any(sides)
        if k:
            h = s[0].conj().T @ g @ s[1]
            m, v = b1 * moments["m"] + (1 - b1) * h, b2 * moments["v"] + (1 - b2) * abs(h) ** 2
            low = m / (1 - b1**k) / (np.sqrt(v / (1 - b2**k)) + eps)
            u, s["m"], s["v"] = s[0] @ polish(low) @ s[1].conj().T, m, v
        old = s[0], s[1]
        for i, x in enumerate((g, g.conj().T)):
            gram = mean(s, f"gram{i}", x @ x.conj().T, beta)
            if not sides[i]:
                continue
            if k == 0:
                s[i] = np.linalg.eigh(gram)[1][:, ::-1]
            elif k % every == 0:
                order = np.argsort(-np.diag(s[i].conj().T @ gram @ s[i]).real)
                s["v"] = np.take(s["v"], order, axis=i)
                s[i] = np.linalg.qr(gram @ s[i][:, order])[0]
        turns = [s[i].conj().T @ old[i] for i in range(2)]
        s["m"] = turns[0] @ s["m"] @ turns[1].conj().T
        return u

    return update


def stepped(rule, rate, decay):
    return lambda g, s, t, p: -rate * (rule(g, s, t, p) + decay * p)


@pytest.mark.slow
@pytest.mark.paper("soap")
@pytest.mark.parametrize(
    ("options", "transcribed"),
    [
        ({"precondition_frequency": 4, "max_precond_dim": 5}, {"every": 4, "largest": 5}),
        (
            {"precondition_frequency": 1, "one_sided": True, "shampoo_beta": 0.6},
            {"every": 1, "one_sided": True, "beta": 0.6},
        ),
    ],
    ids=["two sides", "one side"],
)
def test_soap(options, transcribed):
    given = {"beta": 0.8, **transcribed}
    tx = gradtx.soap(0.05, 0.7, 0.8, 0.1, weight_decay=0.3, **options)
    update = stepped(of_soap(0.7, 0.8, 0.1, **given), 0.05, 0.3)
    other = stepped(lambda g, s, t, p: adam(g, s, t, 0.7, 0.8, 0.1), 0.05, 0.3)
    matrix_trees.check(tx, update, other)


@pytest.mark.slow
@pytest.mark.library("soap")
@pytest.mark.parametrize(
    ("name", "tx"),
    [
        (
            "soap",
            lambda: gradtx.soap(0.01, 0.9, 0.95, 1e-12, precondition_frequency=4),
        ),
        (
            "soap one basis",
            lambda: gradtx.soap(0.01, eps=1e-12, precondition_frequency=1, max_precond_dim=3),
        ),
    ],
)
def test_soap_is_its_authors(name, tx):
    """https://github.com/nikhilvyas/SOAP, on a CPU."""
    matrix_trees.check_golden(tx(), name)


@pytest.mark.slow
def test_complex_matrices():
    tx = gradtx.soap(0.05, 0.7, 0.8, 0.1, precondition_frequency=3, max_precond_dim=5)
    update = stepped(of_soap(0.7, 0.8, 0.1, 0.8, 3, 5), 0.05, 0.0)

    def other(g, s, t, p):
        m, v = mean(s, "m", g, 0.7), mean(s, "v", abs(g) ** 2, 0.8)
        return -0.05 * m / (1 - 0.7**t) / (np.sqrt(v / (1 - 0.8**t)) + 0.1)

    matrix_trees.check(tx, update, other, complex_too=True)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_bases_by_products_take_as_many_sweeps_as_steps(every):
    tx = gradtx.scale_by_soap(shampoo_beta=0.8, precondition_frequency=every, basis="products")
    gs = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    state, gram, basis = tx.init(jnp.asarray(gs[0])), 0.0, jnp.eye(3)
    for t, g in enumerate(gs):
        _, state = tx.update(jnp.asarray(g), state)
        gram = 0.8 * gram + 0.2 * g @ g.T
        if t % every == 0:
            basis = followed([gram], [basis], every, t == 0)[0]
        np.testing.assert_allclose(state.left_basis[0], basis, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("build", [gradtx.scale_by_soap, gradtx.scale_by_kl_shampoo])
def test_bases_that_are_not_finite_leave_those_before_them(build):
    """The moments of one matrix are infinite; the other one has new bases."""
    tx = build(precondition_frequency=1)
    g = [jnp.asarray(np.random.default_rng(i).normal(size=(3, 2)), jnp.float32) for i in (0, 1)]
    before = tx.update(g, tx.init(g))[1]
    before = before._replace(left=[jnp.full_like(before.left[0], jnp.inf), before.left[1]])
    updates, after = tx.update(g, before)
    np.testing.assert_array_equal(after.left_basis[0], before.left_basis[0])
    assert not np.array_equal(after.left_basis[1], before.left_basis[1])
    assert np.all(np.isfinite(updates[0]))


@pytest.mark.slow
def test_bases_whose_first_gradient_overflows_are_those_of_the_parameters():
    g = jnp.full((3, 2), 1e30)
    state = gradtx.scale_by_soap().update(g, gradtx.scale_by_soap().init(g))[1]
    np.testing.assert_array_equal(sorted(state.left_basis[0].tolist()), np.eye(3)[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["kl_soap", "soap", "soap_muon", "splus"], "splus"))
def test_rounding_chooses_the_bases_of_factors_without_full_rank(name):
    """1e-7 of the gradients is a large part of where a tall matrix goes, unless only its smaller
    side has a basis, and nothing to a square one: docs/distributed_measured.md says so."""
    rng = np.random.default_rng(0)
    shapes = {"square": (8, 8), "tall": (16, 6)}
    gs = {n: rng.normal(size=(2, *shape)) for n, shape in shapes.items()}
    others = {n: g * (1 + 1e-7 * rng.normal(size=g.shape)) for n, g in gs.items()}

    def apart(tx):
        """How far two runs end from each other, over how far one of them went."""
        p = {n: jnp.zeros(shape) for n, shape in shapes.items()}
        runs = [matrix_trees.path_of(tx, p, jax.tree.map(jnp.float32, g)) for g in (gs, others)]
        return {
            n: np.linalg.norm(runs[0][n][-1] - runs[1][n][-1]) / np.linalg.norm(runs[0][n][-1])
            for n in shapes
        }

    found = apart(getattr(gradtx, name)(0.01))
    assert found["square"] < 1e-4
    assert found["tall"] > 0.1
    if name in ("soap", "soap_muon"):
        assert max(apart(getattr(gradtx, name)(0.01, one_sided=True)).values()) < 1e-4
