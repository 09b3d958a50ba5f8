"""Train on the handwritten digits on one device, on eight, or in several processes.

    python examples/distributed.py
    python examples/distributed.py --devices 8
    python examples/distributed.py --processes 2

The three print the same losses, to rounding: the batch is divided over all devices, and so is the
optimizer's state (ZeRO). A run that is stopped continues from its checkpoint, on any number of
devices: `--checkpoint run.npz --epochs 3`, then the same with `--epochs 6`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

BATCH = 64


def positive(text: str) -> int:
    """A count of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on many devices, or in many processes.")
    parser.add_argument(
        "--devices", type=positive, default=1, help="virtual CPU devices per process"
    )
    parser.add_argument("--processes", type=positive, default=1)
    parser.add_argument("--epochs", type=positive, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save here; go on from it")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the losses as JSON")
    parser.add_argument(
        "--timeout", type=int, default=30, help="seconds until a silent peer is lost"
    )
    # What this program passes to the processes that it starts.
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    args = parser.parse_args()
    count = args.devices * args.processes
    if BATCH % count:
        parser.error(f"a batch of {BATCH} cannot be divided over {count}")
    return args


def launch(count: int) -> int:
    """Start the processes and wait for all; if one is lost, JAX ends the others in time."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *sys.argv, "--coordinator", f"localhost:{port}", "--process"]
    running = [subprocess.Popen([*command, str(i)]) for i in range(count)]
    codes = [process.wait() for process in running]
    return next((code for code in codes if code), 0)


def train(args: argparse.Namespace) -> None:  # noqa: PLR0915
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
    from train_digits import accuracy, init, load, loss

    import gradtx

    if args.process is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            args.coordinator,
            args.processes,
            args.process,
            initialization_timeout=args.timeout,
            heartbeat_timeout_seconds=args.timeout,
        )
    first = jax.process_index() == 0
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("data"))

    def put(x, sharding):
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    digits = load(args.seed)
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(3e-3))
    params = jax.tree.map(lambda p: put(p, everywhere), init(args.seed))
    sharding = gradtx.state_sharding(tx, params, zero="data", min_size=256)
    step = gradtx.make_step(loss, tx, sharding=sharding)
    state, losses = step.init(params), []
    if first:
        print(f"{len(jax.devices())} devices, {jax.process_count()} processes, {tx!r}")
        print(f"state: {sharding.bytes_per_device:,} bytes on each device", flush=True)

    if args.checkpoint and args.checkpoint.exists():
        saved = dict(np.load(args.checkpoint))
        losses = saved.pop("losses").tolist()
        named = [saved.pop(f"params/{i}") for i in range(len(jax.tree.leaves(params)))]
        params = jax.tree.map(
            put, jax.tree.unflatten(jax.tree.structure(params), named), sharding.params
        )
        state = sharding.put(gradtx.load_state_dict(tx, params, saved))

    def save():
        # Whole arrays: another run may have another number of devices.
        whole = multihost_utils.process_allgather((params, sharding.whole(state)), tiled=True)
        if first:
            arrays = gradtx.state_dict(jax.tree.map(jax.numpy.asarray, whole[1]), tx)
            arrays |= {f"params/{i}": p for i, p in enumerate(jax.tree.leaves(whole[0]))}
            partial = args.checkpoint.with_suffix(".partial.npz")
            np.savez(partial, losses=losses, **{k: np.asarray(v) for k, v in arrays.items()})
            partial.replace(args.checkpoint)

    per_epoch = len(digits.train_labels) // BATCH
    for epoch in range(len(losses) // per_epoch, args.epochs):
        order = np.random.default_rng((args.seed, epoch)).permutation(len(digits.train_labels))
        for rows in order[: per_epoch * BATCH].reshape(per_epoch, BATCH):
            batch = digits.train_images[rows], digits.train_labels[rows]
            params, state, value = step(params, state, *(put(x, divided) for x in batch))
            losses.append(float(value))
        if args.checkpoint:
            save()
        if first:
            print(f"epoch {epoch + 1}: loss {np.mean(losses[-per_epoch:]):.4f}", flush=True)
    if first and args.losses:
        args.losses.write_text(json.dumps(losses))
    found = accuracy(
        params, put(digits.test_images, everywhere), put(digits.test_labels, everywhere)
    )
    if first:
        print(f"test accuracy {float(found):.2%}")


def main() -> None:
    args = arguments()
    if args.processes > 1 and args.process is None:
        sys.exit(launch(args.processes))
    # Before jax is imported.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={args.devices}"
    train(args)


if __name__ == "__main__":
    main()
