"""What the paper states, as data: its claims, and the few numbers that are known. An em dash stands for every other one."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from fedinit.errors import unknown

EM_DASH = "—"


@dataclass(frozen=True)
class Claim:
    """One statement of the paper: its id here, the words, the published number (em dash: none is known), the notebook that tests it."""

    id: str
    text: str
    published: str
    notebook: str


CLAIMS = tuple(
    Claim(*row)
    for row in (
        ("M1", "β = 0 is exactly the method without RI", "exact", "table6_plugin"),
        ("M2", "RI sends nothing extra between server and clients", "1.0× FedAvg's bytes", "table9_cost"),
        ("M3", "RI costs about no time", "≈ FedAvg's s/round", "table7_8_time"),
        ("M4", "RI composes with every method", EM_DASH, "table6_plugin"),
        ("A1", "FedInit beats FedAvg: CIFAR-10, ResNet-18-GN, 10%-100, Dir-0.1", "+3.42 points", "table4_cifar10"),
        ("A2", "participation 10% → 5%: FedInit hardly drops, FedAvg does", "−0.1 vs −1.88 points", "table4_cifar10"),
        ("A3", "CIFAR-100 at the lower participation", "FedInit 43.77%; SCAFFOLD, second best, drops 3.21", "table5_cifar100"),
        ("A4", "FedInit is above the other six methods overall", EM_DASH, "table4_cifar10"),
        ("A5", "+RI improves each method: FedAvg by > 3, SCAFFOLD by 2 to 3 points", "> 3; 2–3", "table6_plugin"),
        ("A6", "the more heterogeneous (smaller D_r, more noise), the larger RI's gain", EM_DASH, "table4_cifar10"),
        ("S1", "accuracy first rises, then falls with K", EM_DASH, "figure1_sensitivity"),
        ("S2", "accuracy is stable in β inside a range; beyond a threshold training diverges quickly", EM_DASH, "figure1_sensitivity"),
        ("D1", "β > 0 lowers Δ^t and raises accuracy (FedAvg, SCAFFOLD)", "≥ +2 points", "figure2_divergence"),
        ("D2", "β < 0 raises Δ^t and lowers accuracy, in most cases", EM_DASH, "figure2_divergence"),
        ("D3", "with RI, Δ^t fluctuates strongly early while accuracy improves steadily", EM_DASH, "figure2_divergence"),
        ("C1", "time a round: FedSAM slowest; FedInit ≈ FedAvg ≈ FedAdam; SCAFFOLD, FedDyn, FedCM in between", "order", "table7_8_time"),
        ("C2", "SCAFFOLD and FedDyn win in rounds to target, but not in time; FedInit wins in time", EM_DASH, "table7_8_time"),
        (
            "C3",
            "SCAFFOLD and FedCM send 2× FedAvg's bytes; FedSAM computes 2× gradients; SCAFFOLD and FedDyn keep extra vectors on the client",
            "2×",
            "table9_cost",
        ),
        (
            "T1",
            "Thm 1: with η = O((N/KT)^½) the rate is O((NKT)^−½), and the Δ^T term enters with a minus sign",
            EM_DASH,
            "table2_3_theory",
        ),
        ("T4", "Thm 4 (PŁ): Õ((NKT)^−1)", EM_DASH, "table2_3_theory"),
        ("T6", "Thm 6 (interpolation): O((NKT)^−1)", EM_DASH, "table2_3_theory"),
        ("T9", "Thm 9 (interpolation and PŁ): Õ(T^−2)", EM_DASH, "table2_3_theory"),
        (
            "T12",
            "Thm 12: stability O((NKT)^{cKL/(1+cKL)}/(CS)), times (1/(1+2β))^{1/(1+cKL)} with RI: < 1, and → 1 as K grows",
            EM_DASH,
            "table2_3_theory",
        ),
        ("T3", "Table 3: SGD O(T^{cL/(1+cL)}/(CS)) vs FedAvg's T12 at β = 0; worst at N = C", EM_DASH, "table2_3_theory"),
        ("T15", "Thm 15 (interpolation): O(K/(CS)) when β is decayed with Σβ^t bounded", EM_DASH, "table2_3_theory"),
        (
            "T17",
            "Thm 17: Δ = O(1/T) under Thm 1's η, Õ(T^−2) under Thm 4's; a constant η leaves a constant floor",
            EM_DASH,
            "table2_3_theory",
        ),
        ("T19", "Thm 19: Δ falls at least as O(1/T) under interpolation", EM_DASH, "table2_3_theory"),
    )
)

#: Ours, not the paper's: what its claims leave open. Same form, so that the ledger can keep them.
QUESTIONS = tuple(
    Claim(id, text, EM_DASH, "open_questions")
    for id, text in (
        ("Q1", "the relaxed start adds to RI's server term: FedInit is above FedAvg with that term alone"),
        ("Q2", "FedInit is above FedAvg with server momentum, the best of its coefficients"),
        ("Q3", "with the released code's server (aggregate = start) FedInit is above FedAvg"),
        ("Q4", "at full participation, where RI's server term is zero, FedInit (β = 0.1) is above FedAvg"),
        ("Q5", "the β from which RI harms is one multiple of the participation N/C"),
        ("Q6", "both noises together raise RI's gain (the second half of A6)"),
        ("Q7", "FedInit is above FedAvg under either reading of a client's first participation"),
        ("Q8", "β > 0 lowers Δ^t relative to the size of the model, Δ^t / ‖w‖²"),
        ("Q9", "β > 0 lowers Δ^t relative to the local movement, Δ^t / mean ‖end − start‖²"),
        ("Q10", "the relaxed start itself lowers Δ^t, the server's step being the same"),
        ("Q11", "with the released code's server (aggregate = start) +RI improves each method"),
    )
)

#: Not the paper's. README of the authors' released code: CIFAR-10, ResNet-18-GN, T = 1000, no noise, V100.
README_SOURCE = "released code's README (CIFAR-10, ResNet-18-GN, T = 1000, no noise, V100); not the paper's numbers"
_README = {
    "10%-100": {
        "fedavg": (80.65, 77.31, 15.86),
        "fedadam": (82.56, 77.58, 15.91),
        "scaffold": (83.53, 79.92, 20.09),
        "feddyn": (84.22, 78.96, 20.82),
        "fedcm": (83.81, 78.92, 20.74),
    },
    "5%-200": {
        "fedavg": (79.93, 75.21, 17.03),
        "fedadam": (81.22, 75.83, 17.67),
        "scaffold": (83.01, 78.23, 22.21),
        "feddyn": (80.25, 75.43, 22.68),
        "fedcm": (82.01, 75.91, 21.24),
    },
}


def claim(claim_id: str) -> Claim:
    """The claim or question with this id; raises InputError for an id that is not one of `CLAIMS` or `QUESTIONS`."""
    for one in (*CLAIMS, *QUESTIONS):
        if one.id == claim_id:
            return one
    raise unknown("claim_id", claim_id, (one.id for one in (*CLAIMS, *QUESTIONS)))


def readme_figures() -> pd.DataFrame:
    """The released code's README figures, one row a (setup, label): accuracies in %, seconds a round on a V100,
    and their `source`, which has to be shown with them: they are not the paper's."""
    return pd.DataFrame(
        [
            {"setup": setup, "label": label, "dir_0.6": a, "dir_0.1": b, "seconds_per_round": s, "source": README_SOURCE}
            for setup, methods in _README.items()
            for label, (a, b, s) in methods.items()
        ]
    )
