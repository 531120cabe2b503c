"""The command line: run, sweep, status, plan, reproduce, bench. Human output on a terminal, `--json` for programs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence

from fedinit.errors import InputError, unknown

EXAMPLES = {
    None: """examples:
  fedinit run --method fedinit                         one run of the quick preset, offline
  fedinit sweep --methods fedavg,fedinit --seeds 0,1   several, side by side
  fedinit plan --preset small --data cifar10.npz       what a preset would cost here
  fedinit reproduce                                    every table and figure
  fedinit status                                       what is stored""",
    "run": """examples:
  fedinit run --method fedinit --beta 0.05
  fedinit run --method scaffold+ri --data cifar10 --preset small --rounds 60 --seed 1
  fedinit run --method fedavg --dirichlet 0.6 --json""",
    "sweep": """examples:
  fedinit sweep --methods fedavg,fedinit,scaffold --seeds 0,1,2 --jobs 2
  fedinit sweep --methods fedinit --grid beta=0,0.05,0.1 --grid local_epochs=1,5
  fedinit sweep --engine ray --seeds 0,1,2             over the Ray cluster that this machine is in""",
    "plan": """examples:
  fedinit plan --preset quick
  fedinit plan --preset paper --only table4 --device cuda""",
    "reproduce": """examples:
  fedinit reproduce                                    preset quick: offline, minutes
  fedinit reproduce --only table4 --jobs 1
  fedinit reproduce --preset small --data cifar10.npz --seeds 0,1,2
  fedinit reproduce --preset small --redraw            figures from stored and committed runs; nothing is trained""",
    "bench": """examples:
  fedinit bench --width 16
  fedinit bench --methods fedavg,fedinit,fedsam,scaffold,feddyn,fedcm --threads 2""",
    "status": """examples:
  fedinit status
  fedinit status --json""",
}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line and exit code 2."""

    def error(self, message: str):
        raise InputError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    from fedinit.runs.workers import WorkerDied

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # so that --model my_module:factory finds a module beside the user
    try:
        with _terminable():
            arguments = _parser().parse_args(argv)
            return arguments.command(arguments) or 0
    except InputError as error:
        print(f"fedinit: {error}", file=sys.stderr)
        return 2
    except WorkerDied as error:
        print(f"fedinit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fedinit: interrupted; what was computed is stored, run the same command again to go on.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has gone
        sys.stderr.close()
        return 1


@contextlib.contextmanager
def _terminable():
    """A scheduler's SIGTERM ends a command as Ctrl-C does: its workers with it, in one line."""

    def interrupt(*_):
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    from fedinit import __version__
    from fedinit.experiment import PRESETS, SETUPS, Experiment

    parser = _Parser(prog="fedinit", description="Relaxed initialization in federated learning, reproduced.", **_shape(None))
    parser.add_argument("--version", action="version", version=f"fedinit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    stored = _Parser(add_help=False)
    group = stored.add_argument_group("store (changes no number)")
    group.add_argument(
        "--runs", type=_folder, metavar="FOLDER", help="where runs are stored (default $FEDINIT_RUNS, or runs/ of the checkout)"
    )
    group.add_argument("--json", action="store_true", help="print JSON, nothing else, on standard output")

    machine = _Parser(add_help=False, parents=[stored])
    group = machine.add_argument_group("machine (changes no number)")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default auto)")
    group.add_argument("--threads", type=_whole, default=1, help="threads a process (default 1)")

    settings = _Parser(add_help=False)
    settings.add_argument("--preset", default="quick", help=f"{', '.join(PRESETS)} (default quick)")
    settings.add_argument("--setup", default="10%-100", help=f"participation: {', '.join(SETUPS)} (default 10%-100)".replace("%", "%%"))
    fields = settings.add_argument_group("experiment (default: the preset's)")
    for field in dataclasses.fields(Experiment):
        if field.name in ("method", "seed"):
            continue
        unit = f" [{field.metadata['unit']}]" if field.metadata["unit"] else ""
        fields.add_argument(f"--{field.name.replace('_', '-')}", metavar="VALUE", help=(field.metadata["doc"] + unit).replace("%", "%%"))
    coefficients = settings.add_argument_group("hyperparameters of the method (default: the method's own)")
    for name, owners in _hyperparameters().items():
        coefficients.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"of {', '.join(owners)}")

    cadence = _Parser(add_help=False)
    cadence.add_argument("--evaluate-every", type=_whole, default=1, metavar="N", help="test every N rounds (default 1)")
    cadence.add_argument("--evaluate-last", type=_whole, default=1, metavar="N", help="and in each of the last N rounds (default 1)")
    cadence.add_argument("--compile", action="store_true", dest="compiled", help="train through torch.compile, for long runs on a GPU")
    memory = "where clients' vectors live (default auto: RAM if they fit)"
    cadence.add_argument("--memory", default="auto", choices=("auto", "ram", "disk"), help=memory)

    run = commands.add_parser("run", parents=[settings, cadence, machine], help="one run", **_shape("run"))
    run.add_argument("--method", default="fedinit", help="fedavg, fedinit, scaffold+ri, fedsam, … (default fedinit)")
    run.add_argument("--seed", default="0", help="default 0")
    run.add_argument("--jobs", type=_whole, help="processes for the clients of a round, where the run is long (default: one a core)")
    run.set_defaults(command=_run)

    sweep = commands.add_parser("sweep", parents=[settings, cadence, machine], help="many runs over the cores", **_shape("sweep"))
    sweep.add_argument("--methods", default="fedavg,fedinit", metavar="A,B", help="default fedavg,fedinit")
    sweep.add_argument("--seeds", default="0", metavar="0,1", help="default 0")
    sweep.add_argument("--grid", action="append", default=[], metavar="NAME=V,V", help="vary a field or hyperparameter; may be repeated")
    sweep.add_argument("--jobs", type=_whole, help="runs at a time (default: one a core; with --engine ray: as many as the cluster takes)")
    sweep.add_argument("--engine", help="local: processes of this machine; ray: a Ray cluster (default $FEDINIT_ENGINE, or local)")
    sweep.add_argument("--gpu-share", metavar="0–1", help="part of a GPU that a run takes, with --engine ray (default: from its memory)")
    sweep.set_defaults(command=_sweep)

    status = commands.add_parser("status", parents=[stored], help="what is stored", **_shape("status"))
    status.set_defaults(command=_status)

    artefacts = _Parser(add_help=False)
    artefacts.add_argument("--preset", default="quick", help=f"{', '.join(PRESETS)} (default quick)")
    artefacts.add_argument("--only", metavar="A,B", help="some notebooks only, by the start of their names, e.g. table4,figure1")
    artefacts.add_argument("--data", help="data set (default: the preset's)")
    artefacts.add_argument("--seeds", metavar="0,1", help="default: the preset's")

    plan = commands.add_parser("plan", parents=[artefacts, machine], help="what a preset would run and cost here", **_shape("plan"))
    plan.add_argument("--jobs", type=_whole, help="processes (default: one a core)")
    plan.set_defaults(command=_plan)

    reproduce = commands.add_parser("reproduce", parents=[artefacts, machine], help="every table and figure", **_shape("reproduce"))
    reproduce.add_argument("--jobs", type=_whole, help="processes (default: one a core)")
    reproduce.add_argument(
        "--out", type=_folder, metavar="FOLDER", help="where figures and tables go (default figures/<preset> of the checkout)"
    )
    reproduce.add_argument("--redraw", action="store_true", help="from stored and committed runs alone: train nothing, time nothing")
    reproduce.set_defaults(command=_reproduce)

    bench = commands.add_parser("bench", help="a plain PyTorch loop beside the engine, and the methods side by side", **_shape("bench"))
    bench.add_argument("--methods", default="fedavg,fedinit", metavar="A,B", help="default fedavg,fedinit")
    bench.add_argument("--model", default="resnet18-gn", help="default resnet18-gn")
    bench.add_argument("--width", type=_whole, default=64, help="default 64")
    bench.add_argument("--batch-size", type=_whole, default=50, help="default 50")
    bench.add_argument("--steps", type=_whole, default=10, help="local steps of a client, in five epochs (default 10; the paper's 50)")
    bench.add_argument("--repeats", type=_whole, default=5, help="interleaved rounds of each (default 5)")
    bench.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    bench.add_argument("--threads", type=_whole, default=1, help="default 1")
    bench.add_argument("--out", type=_folder, default="bench", metavar="FOLDER", help="where bench.csv and bench.png go (default bench)")
    bench.set_defaults(command=_bench)
    return parser


def _shape(command: str | None) -> dict:
    return {"epilog": EXAMPLES[command], "formatter_class": argparse.RawDescriptionHelpFormatter}


def _hyperparameters() -> dict[str, list[str]]:
    from fedinit.methods.registry import BASES, WRAPPERS

    owners: dict[str, list[str]] = {}
    for name, cls in {**BASES, **WRAPPERS}.items():
        for field in dataclasses.fields(cls):
            if field.name != "base":
                owners.setdefault(field.name, []).append(name)
    return owners


def _whole(text: str) -> int:
    """argparse type: a whole number ≥ 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number ≥ 1")
    return int(text)


def _folder(text: str) -> str:
    """argparse type: a folder's name."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a folder's name, or leave it out for the default")
    return text


def value(name: str, text: str, kind: str):
    """A field's or hyperparameter's value from its text. Raises InputError when the text is not of that kind."""
    plain = text.strip()
    if plain.lower() == "none" and "None" in kind:
        return None
    kind = kind.split(" | ")[0]
    try:
        if kind == "int":
            return int(plain)
        if kind == "float":
            return float(plain)
        if kind == "bool":
            return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[plain.lower()]
    except (ValueError, KeyError):
        nature = {"int": "a whole number", "float": "a number, with a decimal point", "bool": "true or false"}[kind]
        raise InputError(f"{name} = {text!r} is not allowed; allowed: {nature}.") from None
    return plain


def _kinds() -> dict[str, str]:
    from fedinit.experiment import Experiment
    from fedinit.methods.registry import BASES, WRAPPERS

    classes = [Experiment, *BASES.values(), *WRAPPERS.values()]
    return {f.name: str(f.type) for cls in classes for f in dataclasses.fields(cls) if f.name not in ("method", "base")}


def _experiment(arguments, method: str, seed: int, changes: dict | None = None):
    """The preset's experiment with the fields and hyperparameters that were named on the command line."""
    from fedinit.experiment import preset

    kinds, own = _kinds(), _hyperparameters()
    texts = {name: getattr(arguments, name, None) for name in kinds if name != "seed"}
    given = {name: value(name, text, kinds[name]) for name, text in texts.items() if text is not None}
    given |= changes or {}
    hyper = {name: given.pop(name) for name in list(given) if name in own}
    return preset(arguments.preset, method, arguments.setup, hyper=hyper, seed=seed, **given)


def _store(arguments):
    from fedinit.runs import Store

    return Store(arguments.runs)


def _machine(arguments) -> None:
    """Refuse a device or cores that are not there before anything starts."""
    from fedinit.runs.workers import cores
    from fedinit.training.rounds import pick_device

    pick_device(arguments.device)
    if arguments.threads > cores():
        raise InputError(f"threads = {arguments.threads} is more than the {cores()} cores here; allowed: 1 to {cores()}.")


def _pending(experiments: list, store, device: str) -> list:
    """Those that are not stored yet. One of each kind is set up, nothing run: unusable images, clients or models are refused here."""
    from fedinit.data import load_images
    from fedinit.training.rounds import Simulation

    pending = [experiment for experiment in experiments if store.load(experiment) is None]
    if pending:
        store.check_writable()
    kinds = {tuple(sorted((dataclasses.asdict(e) | {"method": 0, "seed": 0}).items(), key=str)): e for e in pending}
    for experiment in kinds.values():
        Simulation(experiment, load_images(experiment.data), device=device)
    return pending


def _run(arguments) -> None:
    experiment = _experiment(arguments, arguments.method, value("seed", arguments.seed, "int"))
    from fedinit.runs import run
    from fedinit.runs.progress import Progress

    _machine(arguments)
    store = _store(arguments)
    with Progress([experiment], _pending([experiment], store, arguments.device), store, not arguments.json) as display:
        done = run(
            experiment,
            store=store,
            device=arguments.device,
            threads=arguments.threads,
            jobs=arguments.jobs,
            evaluate_every=arguments.evaluate_every,
            evaluate_last=arguments.evaluate_last,
            memory=arguments.memory,
            compiled=arguments.compiled,
            on_round=lambda _: display.update(),
        )
    _print_runs(arguments, done.tidy(), f"history: {done.folder / 'history.csv'}")


def _sweep(arguments) -> None:
    grid: list[dict] = [{}]
    kinds = _kinds()
    for item in arguments.grid:
        name, equals, values = item.partition("=")
        name = name.strip().replace("-", "_")
        if not (equals and name and values.strip()):
            raise InputError(f"--grid {item!r} lacks a name or values; allowed: NAME=VALUE[,VALUE…] such as beta=0,0.1.")
        if name not in kinds:
            raise unknown("--grid", name, kinds)
        if name in grid[0] or getattr(arguments, name, None) is not None:
            other = "in another --grid" if name in grid[0] else f"by --{name.replace('_', '-')}"
            raise InputError(f"--grid {item!r}: {name} is given {other} too; allowed: once, NAME=VALUE[,VALUE…] with all its values.")
        if name == "seed":
            raise InputError(f"--grid {item!r}: seeds are given by --seeds, such as --seeds {values}.")
        if name == "rounds":
            raise InputError(f"--grid {item!r}: a run holds the runs of fewer rounds; ask for the most with --rounds.")
        grid = [{**point, name: value(name, text, kinds[name])} for point in grid for text in values.split(",")]
    from fedinit.artefacts import listed
    from fedinit.runs.sweep import chosen, sweep

    seeds = listed("seeds", arguments.seeds, int)
    experiments = [
        _experiment(arguments, method.strip(), seed, point) for method in arguments.methods.split(",") for point in grid for seed in seeds
    ]
    here = chosen(arguments.engine) == "local"
    if here:
        _machine(arguments)
    share = None if arguments.gpu_share is None else value("gpu-share", arguments.gpu_share, "float")
    store = _store(arguments)
    _pending(experiments, store, arguments.device if here else "cpu")
    frame = sweep(
        experiments,
        jobs=arguments.jobs,
        device=arguments.device,
        threads=arguments.threads,
        store=store,
        evaluate_every=arguments.evaluate_every,
        evaluate_last=arguments.evaluate_last,
        memory=arguments.memory,
        compiled=arguments.compiled,
        engine=arguments.engine,
        gpu_share=share,
        progress=not arguments.json,
    )
    _print_runs(arguments, frame, f"histories: {store.folder}")


def _print_runs(arguments, frame, where: str) -> None:
    from fedinit.results import metrics

    summary = metrics.summarise(frame)
    if arguments.json:
        print(json.dumps(json.loads(summary.to_json(orient="records"))))
        return
    varying = [c for c in summary.columns if c not in ("key",) and summary[c].nunique(dropna=False) > 1]
    columns = list(dict.fromkeys(["label", "seed", *varying, "accuracy", "diverged_round"]))
    shown = summary[[c for c in columns if c in summary.columns]]
    print(shown.to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep="—"))
    print(f"accuracy: {metrics.rule_text('smoothed_max')}\n{where}")


def _status(arguments) -> None:
    from fedinit.data.known import CONTENT
    from fedinit.runs.store import default_folder

    store = _store(arguments)
    if arguments.runs and not os.access(store.folder, os.R_OK | os.X_OK):
        raise InputError(
            f"--runs {arguments.runs!r}: no folder that can be read; allowed: a folder of runs, or no --runs: {default_folder()}."
        )
    runs = store.runs()
    if arguments.json:
        print(runs.to_json(orient="records"))
        return
    if runs.empty:
        print(f"no runs in {store.folder}")
        return
    runs["MB"] = runs["bytes"] / 1e6
    for name in ("data", "clients", "cohort_size", "dirichlet", "model", "width", "local_epochs"):
        runs[name] = [experiment[name] for experiment in runs["experiment"]]
    parts = [experiment["method"]["parts"] for experiment in runs["experiment"]]
    runs["beta"] = [next((str(part["beta"]) for part in method if "beta" in part), "") for method in parts]
    runs["data"] = [
        CONTENT.get(images, data if len(data) < 30 else data[:20] + "…") for images, data in zip(runs["images"], runs["data"], strict=True)
    ]
    runs["key"] = runs["key"].str[:12]
    print(runs.drop(columns=["experiment", "bytes", "images"]).to_string(index=False, float_format=lambda x: f"{x:.3g}"))
    print(f"{len(runs)} runs, {runs['MB'].sum():.0f} MB in {store.folder}")


def _plan(arguments) -> None:
    from fedinit.reproduce import plan

    report = plan(**_artefacts(arguments))
    print(json.dumps(report.data()) if arguments.json else report)


def _reproduce(arguments) -> int:
    from fedinit.reproduce import reproduce

    return reproduce(**_artefacts(arguments), out=arguments.out, json_output=arguments.json, redraw=arguments.redraw)


def _bench(arguments) -> None:
    from fedinit.artefacts import output_folder
    from fedinit.bench import report, work
    from fedinit.training.rounds import pick_device

    _machine(arguments)
    methods = [name.strip() for name in arguments.methods.split(",")]
    for name in methods:  # bad input is refused before any work
        work(name, arguments.model, arguments.width, batch=arguments.batch_size, steps=arguments.steps)
    print(
        report(
            output_folder(arguments.out),
            methods,
            arguments.model,
            arguments.width,
            repeats=arguments.repeats,
            device=str(pick_device(arguments.device)),
            threads=arguments.threads,
            batch=arguments.batch_size,
            steps=arguments.steps,
        )
    )


def _artefacts(arguments) -> dict:
    from fedinit.artefacts import listed
    from fedinit.experiment import PRESETS

    if arguments.preset not in PRESETS:
        raise unknown("preset", arguments.preset, PRESETS)
    _machine(arguments)
    return {
        "preset": arguments.preset,
        "only": None if arguments.only is None else arguments.only.split(","),
        "data": arguments.data,
        "seeds": None if arguments.seeds is None else listed("seeds", arguments.seeds, int),
        "jobs": arguments.jobs,
        "device": arguments.device,
        "threads": arguments.threads,
        "store": _store(arguments),
    }


if __name__ == "__main__":
    sys.exit(main())
