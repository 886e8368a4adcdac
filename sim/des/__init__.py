"""A discrete-event simulator of inference fleets in virtual time.

Instances run the step model of :mod:`sim.engine` in closed form between two events, clients are impatient and
retry, and routers decide on samples that are late, lost or wrong. Decisions come in through
:mod:`sim.des.policy`; production minds are adapted to it, never copied.
"""
