"""Table 9: what is counted from running rounds is what each algorithm's text says, in vectors of d numbers a client and round."""

from dataclasses import dataclass

import pytest

from fedinit.methods import FedAvg, RelaxedInit
from fedinit.runs.costs import COUNTS, METHODS, analytic_costs, metered_costs


@pytest.fixture(scope="module")
def costs():
    return metered_costs(readings=("end", "start")).set_index(["label", "reading"])


@pytest.mark.parametrize("reading", ["end", "start"])
@pytest.mark.parametrize("name", METHODS)
def test_counted_is_analytic(costs, name, reading):
    rows = costs.loc[name]
    row = rows.loc[next(kind for kind in (reading, "either", "") if kind in rows.index)]
    assert {count: row[count] for count in COUNTS} == analytic_costs(name, reading)


def test_bytes_are_vectors_times_parameters_times_four(costs):
    """One round of one client: w down and the final model up are 2 d float32 numbers; SCAFFOLD's c and c_i make it 4 d."""
    d = costs.parameters["fedavg"].item()
    assert costs.bytes["fedavg"].item() == 2 * d * 4
    assert costs.bytes["scaffold"].item() == 4 * d * 4


def test_the_papers_statements(costs):
    """SCAFFOLD communicates 2× FedAvg; FedCM 2× down, but 1× up, so 1.5×; FedSAM computes 2×; RI over FedAvg communicates 1.0×."""
    relative = costs.droplevel("reading")
    assert relative.communication["scaffold"] == 2 * relative.communication["fedavg"]
    assert (relative.down["fedcm"], relative.up["fedcm"], relative.communication["fedcm"] / relative.communication["fedavg"]) == (2, 1, 1.5)
    assert relative.gradients["fedsam"] == 2 and relative.gradients["scaffold"] == 1
    assert relative.communication["fedinit"] == relative.communication["fedavg"]
    assert relative.stored[["fedavg", "scaffold", "feddyn", "fedinit"]].tolist() == [0, 1, 1, 1]


def test_one_row_a_method_by_default():
    """The claims ledger looks methods up by name."""
    assert metered_costs(["fedavg", "fedcm+ri"]).label.tolist() == ["fedavg", "fedcm+ri"]


def test_precision_sets_the_bytes():
    single, double = (metered_costs(["fedavg"], precision=kind).bytes.item() for kind in ("float32", "float64"))
    assert double == 2 * single


@dataclass(frozen=True)
class Wasteful(FedAvg):
    """Sends a vector that nobody needs, computes three gradients a step, keeps one vector."""

    def init_server(self, initial):
        return {"a": initial, "b": initial}

    def broadcast(self, server):
        return {"a": server["a"]}

    def direction(self, gradient, y, constants):
        return gradient(y) + gradient(y) - gradient(y)

    def keep(self, received, mine, start, end, lr_sum):
        return {"mine": end - start}


@pytest.mark.parametrize(("method", "stored"), [(Wasteful(), 1), (RelaxedInit(Wasteful()), 2)])
def test_a_method_of_ones_own_is_counted_too(method, stored):
    row = metered_costs([method]).iloc[0]
    assert (row.up, row.down, row.gradients, row.stored, row.server) == (1, 2, 3, stored, 2)
