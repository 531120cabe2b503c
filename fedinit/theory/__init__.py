"""The paper's theorems as formulas, and experiments on federated quadratics that measure what the theorems bound."""

from fedinit.theory.measured import findings, rate_curves, stability_curves

__all__ = ["findings", "rate_curves", "stability_curves"]
