"""The same rolling aggregate by this app, a naive Faust agent, quixstreams and bytewax, on one real Kafka.

``events`` makes the bytes and the plain loop, ``arms`` starts what is measured; ``catch_up``, ``steady`` and
``table`` measure. CPU time is that of all processes of an arm, from ``/proc``, from after their start (each
has taken one event a key) to their last row. Peers live in an environment of their own: see
``bench/requirements-peers.txt``.

The peers keep a thinner aggregate (a 10 s ring and totals of count, ok and tokens) than this app's tables:
three windows with up to three latency sketches each, a region's sums, and everything in a changelog.

An event of 200 bytes holds what the tables use of an outcome; our routers write all of it, 650 bytes.
"""
