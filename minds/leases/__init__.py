"""Leases: how the region that owns capacity lets others admit work, and never more than its cap.

The invariant: the sum over all holders of (live leases or unfinished work, whichever is more) plus floors
never exceeds the cap at the time of a grant, whatever is delayed, lost or restarted. It rests on four rules:

1. A holder counts a lease from the moment at which it *sent* the request that the lease answers; the grantor
   counts it from the moment of the grant for the duration plus clock skew. The grant is later than the
   request, so the holder's right always ends first, and no clocks are compared (only their rates).
2. A holder admits only while its in-flight work of that class fits its live lease. So after a report of X
   in flight, its unfinished work is at most max(X, every lease that it held then or has taken up since).
   Reports name the newest lease taken up, so the grantor knows which those are.
3. A lease replaces the holder's earlier one; a smaller one frees capacity only once a report names it.
4. A silent holder's work counts until its leases have expired and the longest intent has ended. A new boot
   of the same holder ends the old one's work after the skew: its connections are gone.

A holder also gets a floor with its leases, carved out of the cap for as long as it is known, with which it
goes on while the broker is away. It is granted only when it fits; work under it is counted apart.
"""

from minds.leases.grantor import Grant, Grantor, water_fill
from minds.leases.holder import Holder, Refusal, Ticket
from minds.leases.terms import FORGET_MS, DemandLike, LeaseLike, LeaseTerms, PoolKey, ReportLike

__all__ = [
    "FORGET_MS",
    "DemandLike",
    "Grant",
    "Grantor",
    "Holder",
    "LeaseLike",
    "LeaseTerms",
    "PoolKey",
    "Refusal",
    "ReportLike",
    "Ticket",
    "water_fill",
]
