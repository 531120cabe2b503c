"""The command line: bad input is one line and exit code 2 before any work; --json prints JSON and nothing else; --help has examples."""

import json
import os
import subprocess
import sys

import pytest

from fedinit import artefacts, cli

TINY = [
    *("--data", "synthetic:200/100", "--clients", "4", "--cohort-size", "2", "--rounds", "2", "--local-epochs", "1"),
    *("--batch-size", "25", "--model", "cnn", "--width", "4", "--device", "cpu"),
]  # fmt: skip

BAD = {
    "method": (["run", "--method", "scafold"], "Did you mean 'scaffold'?"),
    "wrapper": (["run", "--method", "scaffold+ir"], "'ir' is not known"),
    "file": (["run", "--data", "no/such.npz"], "no such file"),
    "data": (["run", "--data", "cifra10"], "Did you mean 'cifar10'?"),
    "decimal comma": (["run", "--beta", "0,1"], "beta = '0,1' is not allowed"),
    "beta of fedavg": (["run", "--method", "fedavg", "--beta", "0.1"], "beta"),
    "dirichlet": (["run", "--dirichlet", "0"], "dirichlet = 0"),
    "cohort": (["run", "--cohort-size", "101", "--clients", "100"], "101"),
    "batch": (["run", "--batch-size", "0"], "batch_size = 0"),
    "nan": (["run", "--lr", "nan"], "lr = nan"),
    "preset": (["run", "--preset", "quik"], "Did you mean 'quick'?"),
    "preset of plan": (["plan", "--preset", "quik"], "Did you mean 'quick'?"),
    "preset of reproduce": (["reproduce", "--preset", "quik"], "Did you mean 'quick'?"),
    "setup": (["run", "--setup", "10%"], "setup"),
    "seed": (["run", "--seed", "-1"], "seed"),
    "seed in words": (["run", "--seed", "one"], "seed"),
    "device": (["run", "--device", "abacus"], "device = 'abacus'"),
    "threads": (["run", "--threads", "0"], "--threads"),
    "memory": (["run", "--memory", "tape"], "--memory"),
    "unusable file": (["run", "--data", __file__], "not .npz"),
    "clients of few images": (["run", "--data", "synthetic:200/100", "--clients", "300"], "clients = 300"),
    "threads of no core": (["run", "--threads", "100000"], "threads = 100000"),
    "option": (["run", "--metod", "fedavg"], "--metod"),
    "command": (["runn"], "'runn'"),
    "no command": ([], "COMMAND"),
    "methods": (["sweep", "--methods", "fedavg,scafold"], "Did you mean 'scaffold'?"),
    "grid name": (["sweep", "--grid", "betta=0,1"], "Did you mean 'beta'?"),
    "grid form": (["sweep", "--grid", "nonsense"], "allowed: NAME=VALUE[,VALUE…]"),
    "grid of no values": (["sweep", "--grid", "beta="], "allowed: NAME=VALUE[,VALUE…]"),
    "grid of no name": (["sweep", "--grid", "=0,1"], "allowed: NAME=VALUE[,VALUE…]"),
    "grid twice": (["sweep", "--grid", "beta=0", "--grid", "beta=0.1"], "beta is given in another --grid too"),
    "grid and option": (["sweep", "--grid", "lr-decay=0.9,1", "--lr-decay", "1"], "lr_decay is given by --lr-decay too"),
    "grid of seeds": (["sweep", "--grid", "seed=0,1"], "by --seeds, such as --seeds 0,1"),
    "grid of rounds": (["sweep", "--grid", "rounds=1,2"], "a run holds the runs of fewer rounds"),
    "grid value": (["sweep", "--grid", "beta=0,x"], "beta = 'x'"),
    "grid of fields": (["sweep", "--grid", "dirichlet=0.1,0"], "dirichlet = 0"),
    "seeds": (["sweep", "--seeds", "0;1"], "seeds"),
    "jobs": (["sweep", "--jobs", "100000"], "jobs"),
    "only": (["plan", "--only", "table44"], "table44"),
    "only of reproduce": (["reproduce", "--only", "table44"], "table44"),
    "only nothing": (["plan", "--only", ""], "only = ''"),
    "only nothing of reproduce": (["reproduce", "--only", ""], "only = ''"),
    "seeds of reproduce": (["reproduce", "--seeds", ""], "seeds = ''"),
    "runs of run": (["run", "--runs", "/proc/none"], "--runs"),
    "runs of sweep": (["sweep", "--runs", "/proc/none"], "--runs"),
    "runs of reproduce": (["reproduce", "--runs", "/proc/none"], "--runs"),
    "runs without a name": (["run", "--runs", ""], "--runs: '' is not allowed"),
    "out of bench is a file": (["bench", "--out", __file__], "cannot be written (File exists); name a folder of yours with --out"),
    "out of bench": (["bench", "--out", "/proc/none"], "cannot be written"),
    "out of reproduce": (["reproduce", "--out", " "], "--out: ' ' is not allowed"),
    "out of reproduce is a file": (["reproduce", "--out", __file__], "cannot be written (File exists); name a folder"),
    "steps of bench": (["bench", "--steps", "7"], "steps = 7 is not allowed; allowed: a multiple of the 5"),
    "device of status": (["status", "--device", "cpu"], "unrecognized arguments: --device"),
    "runs of a long name": (["run", "--runs", "x" * 300], "cannot be written"),
    "runs of status": (["status", "--runs", "none/of/that/name"], "--runs 'none/of/that/name': no folder"),
    "data of plan": (["plan", "--data", "no/such.npz"], "no such file"),
    "data of reproduce": (["reproduce", "--data", "no/such.npz"], "no such file"),
}


@pytest.mark.parametrize("arguments, says", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_before_any_work(arguments, says, tmp_path, capsys):
    if arguments and arguments[0] in ("run", "sweep") and "--model" not in arguments:
        arguments = [*arguments, "--model", "cnn"]  # were it accepted, it should at least be quick
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1 and printed.err.startswith("fedinit: ")
    assert says in printed.err and "Traceback" not in printed.err
    assert not (tmp_path / "runs").exists()


def shell(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "fedinit.cli", *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )


def test_exit_codes_of_the_process(tmp_path):
    for arguments in (["run", "--method", "scafold"], ["run", "--cohort-size", "101", "--clients", "100"]):
        done = shell(*arguments)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [None, "run", "sweep", "plan", "reproduce", "status"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([*([command] if command else []), "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and "examples:" in text and f"fedinit {command or 'reproduce'}" in text.split("examples:")[1]
    assert "%%" not in text


@pytest.mark.parametrize("command", list(filter(None, cli.EXAMPLES)))
def test_examples_parse(command):
    """Every example that a --help shows is accepted by the parser (that they run is tested on smaller ones below)."""
    import shlex

    for lines in (cli.EXAMPLES[command], cli.EXAMPLES[None]):
        for line in lines.splitlines()[1:]:
            cli._parser().parse_args(shlex.split(line.strip().split("   ")[0])[1:])


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith("fedinit ")


def test_run_json_is_json_alone():
    done = shell("run", "--method", "fedinit", "--beta", "0.05", "--json", *TINY)
    assert done.returncode == 0 and done.stderr == ""
    (row,) = json.loads(done.stdout)
    assert row["label"] == "fedinit" and row["beta"] == 0.05 and 0 <= row["accuracy"] <= 1


def test_run_then_read_then_status(tmp_path, capsys):
    assert cli.main(["run", "--method", "fedavg", *TINY]) == 0
    first = capsys.readouterr()
    assert "fedavg" in first.out and "accuracy: " in first.out and str(tmp_path / "runs") in first.out
    assert cli.main(["run", "--method", "fedavg", *TINY]) == 0
    again = capsys.readouterr()
    assert again.out == first.out and again.err == ""  # read, not run
    assert cli.main(["status"]) == 0
    assert "1 runs" in capsys.readouterr().out
    assert cli.main(["status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["label"], row["rounds"], row["experiment"]["clients"]) == ("fedavg", 2, 4)
    assert cli.main(["run", "--method", "fedavg+ri", *TINY]) == 0
    capsys.readouterr()
    assert cli.main(["status"]) == 0
    assert " fedinit " in capsys.readouterr().out  # as `run` calls it


def test_no_runs_yet_is_no_fault(capsys):
    """The default folder is made by the first run."""
    assert cli.main(["status"]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_sweep_over_methods_seeds_and_grid(capsys):
    methods = ["--methods", "fedavg+ri,scaffold+ri", "--seeds", "[0, 1]", "--grid", "beta=0,0.1"]
    assert cli.main(["sweep", *methods, "--jobs", "1", "--json", *TINY]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["label"], row["seed"], row["beta"]) for row in rows} == {
        (m, s, b) for m in ("fedinit", "scaffold+ri") for s in (0, 1) for b in (0.0, 0.1)
    }
    assert cli.main(["sweep", "--methods", "fedavg+ri", "--grid", "beta=0,0.1", "--jobs", "1", *TINY]) == 0
    assert "beta" in capsys.readouterr().out


def test_plan_and_its_json(monkeypatch, capsys):
    def runs(name, seeds, data=None):
        from fedinit.experiment import Experiment

        small = {"data": "synthetic:200/100", "clients": 4, "cohort_size": 2, "rounds": 2, "model": "cnn", "width": 4, "batch_size": 25}
        return [Experiment(seed=seed, **small) for seed in seeds or (0, 1)]

    monkeypatch.setattr(artefacts, "RUNS", {"table4_cifar10": (runs,)})
    assert cli.main(["plan", "--only", "table4", "--seeds", "0,1,2", "--jobs", "1", "--device", "cpu"]) == 0
    assert "table4_cifar10" in capsys.readouterr().out
    assert cli.main(["plan", "--json", "--jobs", "1", "--device", "cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["total"]["runs"] == 2 and report["total"]["local_steps"] == 2 * 2 * 2 * 5 * 2  # seeds, rounds, clients, epochs, batches


def test_interrupted(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_status", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert cli.main(["status"]) == 130
    assert "interrupted" in capsys.readouterr().err
