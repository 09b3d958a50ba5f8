"""Brax's PPO on its environment `fast` with Optax, and with the import changed.

    git clone https://github.com/google/brax CHECKOUT
    python -m benchmarks.brax_ppo CHECKOUT

Needs Brax's own packages, MuJoCo among them. Trains as Brax's test `testTrain0`, which asks for a
reward of 135; prints the rewards, and how far the parameters of the two ends are apart.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.suites import change_imports
from benchmarks.tables import markdown

# The arguments of Brax's test.
CONFIG = {
    "num_timesteps": 2**15,
    "episode_length": 128,
    "num_envs": 64,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-2,
    "discounting": 0.95,
    "unroll_length": 5,
    "batch_size": 64,
    "num_minibatches": 8,
    "num_updates_per_batch": 4,
    "normalize_observations": True,
    "seed": 2,
    "num_evals": 3,
    "reward_scaling": 10,
    "normalize_advantage": False,
}


def arm(folder: str) -> dict[str, Any]:
    """A run of one copy."""
    sys.path.insert(0, folder)
    import jax
    import numpy as np

    environments: Any = __import__("brax.envs").envs
    train: Any = __import__("brax.training.agents.ppo.train").training.agents.ppo.train
    environment = environments.get_environment("fast", obs_mode="ndarray")
    rewards: list[float] = []

    def progress(_: int, metrics: dict[str, Any]) -> None:
        rewards.append(float(metrics["eval/episode_reward"]))

    _, params, _ = train.train(environment, **CONFIG, progress_fn=progress)
    leaves = [np.ravel(x) for x in jax.tree.leaves(params[1:])]  # without the normalizer's
    return {"rewards": rewards, "params": np.concatenate(leaves).astype(float).tolist()}


def main(checkout: str) -> None:
    import numpy as np

    found = []
    with tempfile.TemporaryDirectory() as home:
        for name in ("Optax", "gradtx"):
            folder = Path(home, name)
            shutil.copytree(Path(checkout, "brax"), folder / "brax")
            if name == "gradtx":
                change_imports(folder)
            command = [sys.executable, "-m", "benchmarks.brax_ppo", "arm", str(folder)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(name, found[-1]["rewards"], flush=True)
    before, after = found
    off = np.abs(np.subtract(before["params"], after["params"])).max()
    rows = [
        ["Optax", *before["rewards"], 0.0],
        ["gradtx", *after["rewards"], float(off)],
    ]
    header = ["", "reward before", "halfway", "at the end", "parameters off by"]
    print(markdown("Brax's PPO", header, rows))


if __name__ == "__main__":
    if sys.argv[1] == "arm":
        print(json.dumps(arm(sys.argv[2])))
    else:
        main(sys.argv[1])
