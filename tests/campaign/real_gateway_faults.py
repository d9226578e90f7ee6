"""Which faults through the gateway the real stack gets, and how; the others are simulated only."""

from __future__ import annotations

from tests.campaign.real_faults import RealFault

REAL_GATEWAY: dict[int, RealFault] = {
    3: RealFault(
        how="the proxy takes the answer of a commit, and the gateway is killed", action="kill_over_reply"
    ),
    4: RealFault(how="the proxy drops answers of commits, clients drop answers", plan=("reply 4",)),
    5: RealFault(
        how="the proxy drops the answers of one gateway's commits, the other one commits on top",
        plan=("reply 4",),
    ),
    6: RealFault(
        how="the proxy answers 500, 502 or 504, before or after it forwards, or cuts the connection",
        plan=("cut 2", "500 2", "502 2", "504 2", "500-done 2", "502-done 2", "504-done 2"),
    ),
    10: RealFault(
        how="one gateway is frozen for 15 s, its clients repeat at the other",
        action="freeze_gateway",
        lasts_s=15,
    ),
    11: RealFault(how="each write is sent to both gateways at once", action="wait_for_twins"),
    12: RealFault(how="the gateways are killed six times in quick succession", action="kill_often"),
    16: RealFault(how="half of the rows are bad, one gateway is killed meanwhile", action="kill_one"),
    23: RealFault(how="the store is killed, or frozen, for 20 s", action="stop_store", alone=True),
}

REAL_HOW: dict[int, str] = {number: fault.how for number, fault in REAL_GATEWAY.items()} | {
    24: "simulated only: containers share the clock of the machine"
}
"""Number of the fault -> how the real stack gets it, or why not."""
