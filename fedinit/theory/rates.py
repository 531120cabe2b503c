"""Tables 2 and 3: what each theorem states, as functions. Orders only: the constants inside O(·), and the logarithms inside
Õ(·), are dropped, so a value is meaningful up to a factor and only its dependence on N, K, T, C, S and β is the theorem's.

Notation: N active of C clients a round, K local steps, T rounds, S samples a client, L smoothness, μ the PŁ constant, c the
constant of the decaying rate η ≤ c/t in the stability analysis, β the relaxed-initialization coefficient. All pure numbers;
arguments may be NumPy arrays and broadcast.

Assumptions, by their numbers in the paper: 1 L-smooth; 2 PŁ: μ (f − f*) ≤ ‖∇f‖²; 3 bounded variance σ_l² of the stochastic
gradients; 4 interpolation ‖g_i‖² ≤ a² ‖∇f_i‖²; 5 bounded dissimilarity σ_g²; 6 global interpolation ‖∇f_i‖² ≤ b² ‖∇f‖²;
7 ‖∇f‖ ≤ L_G at the last state.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedinit.errors import InputError

# --- learning rates that the theorems prescribe ---------------------------------------------------------------------------


def eta_theorem_1(N, K, T, scale=1.0):
    """Theorem 1: η = O((N/(KT))^½). Unit: step per gradient, up to `scale`."""
    return scale * np.sqrt(N / (K * T))


def eta_theorem_4(N, K, T, rate):
    """Theorem 4: η = O(log(NKT)/(λμKT)); `rate` is the product λμ."""
    return np.log(N * K * T) / (rate * K * T)


def eta_theorem_6(N, scale=1.0):
    """Theorem 6: η = O(1/N), constant in T."""
    return scale / N


def eta_theorem_9(K, T, rate):
    """Theorem 9: η = O(2 log(KT)/(ζμKT)); `rate` is the product ζμ."""
    return 2 * np.log(K * T) / (rate * K * T)


# --- Table 2: convergence -------------------------------------------------------------------------------------------------


def convergence_theorem_1(N, K, T):
    """Theorem 1 (assumptions 1, 3, 5; non-convex): (1/T) Σ E‖∇f(w^t)‖² = O((NKT)^−½) under `eta_theorem_1`. The Δ^T term, with
    β > 0, enters the bound with a minus sign and is weaker than the rate by O(1/N)."""
    return (N * K * T) ** -0.5


def convergence_theorem_4(N, K, T):
    """Theorem 4 (1, 2, 3, 5; PŁ): E[f(w^T) − f*] = Õ((NKT)^−1) under `eta_theorem_4`."""
    return 1.0 / (N * K * T)


def convergence_theorem_6(N, K, T):
    """Theorem 6 (1, 4, 6; interpolation, non-convex): (1/T) Σ E‖∇f(w^t)‖² = O((NKT)^−1) under `eta_theorem_6`."""
    return 1.0 / (N * K * T)


def convergence_theorem_9(T):
    """Theorem 9 (1, 2, 4, 6; interpolation and PŁ): E[f(w^T) − f*] = Õ(T^−2) under `eta_theorem_9`."""
    return np.asarray(T, float) ** -2.0


# --- Table 3: uniform stability ---------------------------------------------------------------------------------------------


def stability_sgd(T, C, S, c, L):
    """Vanilla SGD on all CS samples, T iterations (Hardt et al. 2016): O(T^{cL/(1+cL)} / (CS))."""
    return T ** (c * L / (1 + c * L)) / (C * S)


def stability_factor(beta, c, K, L):
    """Theorem 12's gain by RI: (1/(1+2β))^{1/(1+cKL)}. Below 1 for β > 0, 1 at β = 0, rising to 1 as K → ∞.

    Raises InputError for β ≤ −½, where the expression is not defined.
    """
    if np.any(np.asarray(beta) <= -0.5):
        raise InputError(f"beta = {beta!r} must be larger than −1/2: 1/(1+2β) is not a positive number otherwise.")
    return (1 / (1 + 2 * np.asarray(beta, float))) ** (1 / (1 + c * K * L))


def stability_theorem_12(N, K, T, C, S, c, L, beta=0.0):
    """Theorem 12 (1, 3, 5, 7): O((NKT)^{cKL/(1+cKL)} / (CS)) · `stability_factor`; β = 0 is FedAvg, Table 3's second row.
    At N = K = 1 it is `stability_sgd`."""
    power = c * K * L / (1 + c * K * L)
    return (N * K * T) ** power / (C * S) * stability_factor(beta, c, K, L)


def stability_full_participation(K, C, S, c, L):
    """The worst case N = C, its dependence on C and S: (as the formula gives it, as the paper's text prints it).

    Theorem 12 with N = C has C^{cKL/(1+cKL)} / (CS) = (1/C)^{1/(1+cKL)} / S, since cKL/(1+cKL) − 1 = −1/(1+cKL). The text prints the
    exponent cKL/(1+cKL) instead. The two agree only at cKL = 1; both fall with C, but as K grows the first tends to 1/S (many clients do
    not help) and the second to 1/(CS). Only the first supports the text's conclusion that many clients hinder stability.
    """
    x = c * K * L
    return (1 / C) ** (1 / (1 + x)) / S, (1 / C) ** (x / (1 + x)) / S


def stability_theorem_15(K, C, S):
    """Theorem 15 (1, 4, 6; interpolation): O(K/(CS)) when β is decayed by the round so that Σ β^t stays bounded."""
    return K / (C * S)


# --- divergence -------------------------------------------------------------------------------------------------------------


def divergence_theorem_17(T, eta: str = "theorem 1"):
    """Theorem 17 (1, 3, 5): Δ^T = O(1/T) under Theorem 1's η, Õ(T^−2) under Theorem 4's, O(1) (a floor) under a constant η."""
    powers = {"theorem 1": -1.0, "theorem 4": -2.0, "constant": 0.0}
    if eta not in powers:
        raise InputError(f"eta = {eta!r} is not known. Allowed: {', '.join(powers)}.")
    return np.asarray(T, float) ** powers[eta]


def divergence_theorem_19(T):
    """Theorem 19 (1, 4, 6; interpolation): Δ^T falls at least as O(1/T)."""
    return np.asarray(T, float) ** -1.0


# --- as printed -------------------------------------------------------------------------------------------------------------


def table_2() -> pd.DataFrame:
    """Table 2 rebuilt from the text: theorem, gradients, function, η, what is bounded, its order (text cells)."""
    return pd.DataFrame(
        [
            ("Theorem 1", "bounded variance", "non-convex", "O((N/KT)^½)", "(1/T) Σ E‖∇f(w^t)‖²", "O((NKT)^−½)"),
            ("Theorem 4", "bounded variance", "PŁ", "O(log(NKT)/(λμKT))", "E f(w^T) − f*", "Õ((NKT)^−1)"),
            ("Theorem 6", "interpolation", "non-convex", "O(1/N)", "(1/T) Σ E‖∇f(w^t)‖²", "O((NKT)^−1)"),
            ("Theorem 9", "interpolation", "PŁ", "O(2 log(KT)/(ζμKT))", "E f(w^T) − f*", "Õ(T^−2)"),
        ],
        columns=["theorem", "gradients", "function", "η", "bounded", "order"],
    ).set_index("theorem")


def table_3() -> pd.DataFrame:
    """Table 3 rebuilt from the text, with RI's factor, and with both exponents for N = C (see `stability_full_participation`)."""
    return pd.DataFrame(
        [
            ("vanilla SGD, all CS samples", "O(T^{cL/(1+cL)} / (CS))", "Hardt et al. 2016"),
            ("FedAvg (β = 0)", "O((NKT)^{cKL/(1+cKL)} / (CS))", "Theorem 12"),
            ("FedInit", "O((NKT)^{cKL/(1+cKL)} / (CS)) · (1/(1+2β))^{1/(1+cKL)}", "Theorem 12"),
            ("FedAvg, N = C", "O((1/C)^{1/(1+cKL)} / S)", "what the formula gives"),
            ("FedAvg, N = C", "O((1/C)^{cKL/(1+cKL)} / S)", "what the text prints"),
            ("FedInit, interpolation, Σβ^t bounded", "O(K / (CS))", "Theorem 15"),
        ],
        columns=["method", "order", "source"],
    ).set_index("method")
