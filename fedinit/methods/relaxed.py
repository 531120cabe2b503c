from __future__ import annotations

from dataclasses import dataclass, field

from fedinit.errors import unknown
from fedinit.methods.base import Method, Wrapper, number, once
from fedinit.methods.fedavg import FedAvg
from fedinit.methods.momentum import Lagged


@dataclass(frozen=True)
class RelaxedInit(Wrapper):
    """Personalized relaxed initialization (RI) over any method without it; over FedAvg it is FedInit (Algorithm 1, line 6).

    start: s_i = w + β (w − last_i);  last_i ← end_i

    vector | holder | shape | unit
    last   | client | (d,)  | parameters: the client's latest local model

    Every client formula of the base sees the actual start s_i, never w (mixing the two biases SCAFFOLD's c_i and makes
    FedCM blow up). Nothing more is sent than the base sends; but a base that needs the movement as well as the end
    (FedCM, FedDyn) sends two vectors with aggregate="end".

    beta       any finite number; 0 is the base, bit for bit; negative starts towards the last local model. With aggregate="end" β
               acts as momentum of total gain β · C / N: it speeds training up near 1 and diverges near 2.
    aggregate  "end": the server averages the final local models, D = mean(end) − w (Algorithm 1);
               "start": D = mean(end − start) (the authors' released code). Equal at β = 0 and under full participation.
    first      last_i before the first participation: "initial" = w^0 (released code), "none" = no offset at first.
    """

    base: Method = field(default_factory=FedAvg)
    beta: float = 0.1
    aggregate: str = "end"
    first: str = "initial"

    def __post_init__(self):
        super().__post_init__()
        once(self, RelaxedInit, Lagged)  # Lagged is its server term
        number(self, "beta")
        if self.aggregate not in ("end", "start"):
            raise unknown("RelaxedInit: aggregate", self.aggregate, ("end", "start"))
        if self.first not in ("initial", "none"):
            raise unknown("RelaxedInit: first", self.first, ("initial", "none"))

    def step(self, w, server, cohort):
        return self.base.step(w, server, cohort.from_global() if self.aggregate == "end" else cohort)

    def init_client(self, initial, w):
        return {**self.base.init_client(initial, w), "last": initial if self.first == "initial" else w}

    def start(self, w, mine):
        return self.base.start(w, mine) + self.beta * (w - mine["last"])

    def keep(self, received, mine, start, end, lr_sum):
        return {**self.base.keep(received, mine, start, end, lr_sum), "last": end}
